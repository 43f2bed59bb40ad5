/* What kernels, products and copies read and write of device memory: of each of them every page
 * that it touches once, seen by the processor's memory protection, so nothing that a kernel says of
 * itself is trusted. What it reads again is taken to come from caches. Arrays that are pages of
 * their own are counted exactly. For C and C++. */
#ifndef SMP_TESTS_EMULATE_EMULATE_TRAFFIC_H
#define SMP_TESTS_EMULATE_EMULATE_TRAFFIC_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct emulate_traffic {
    long launches;      /* of kernels, products, copies and fills; groups of messages */
    long read, written; /* bytes, whole pages */
} emulate_traffic;

/* Starts at zero, or ends, behind all that was enqueued. False: it cannot be counted here. */
bool emulate_traffic_count(bool on);
emulate_traffic emulate_traffic_counted(void);

#ifdef __cplusplus
}
#endif

#endif
