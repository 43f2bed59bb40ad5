/* Recording failures. The function that detects a failure calls smp_fail once; callers pass the
 * status on. Thread-local, bounded, never allocates. */
#ifndef SMP_GRAPH_BASE_STATUS_H
#define SMP_GRAPH_BASE_STATUS_H

#include "smp.h"

#ifdef __cplusplus /* .cu files include it */
extern "C" {
#endif

/* A place in an input file; line and column count from 1, 0 means unknown. */
typedef struct smp_where {
    const char *file;
    int line;
    int column;
} smp_where;

/* Records "what, which object, got, expected, hint" and returns `status`. */
smp_status smp_fail(smp_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Records "file:line:column: message" and returns SMP_ERR_INPUT. */
smp_status smp_fail_at(smp_where where, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Records the out-of-memory message for `bytes` and returns SMP_ERR_NO_MEMORY. */
smp_status smp_fail_memory(size_t bytes);

/* Puts "context: " before the recorded message and returns `status`; does nothing for SMP_OK. */
smp_status smp_fail_context(smp_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Passes a failure on. For functions that own nothing yet. */
#define SMP_TRY(call)                                                                              \
    do {                                                                                           \
        smp_status smp_try_status = (call);                                                        \
        if (smp_try_status != SMP_OK)                                                              \
            return smp_try_status;                                                                 \
    } while (0)

#ifdef __cplusplus
}
#endif

#endif
