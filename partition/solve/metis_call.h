/* Around each call of METIS, which is made for programs of its own: it replaces the handlers of
 * SIGABRT and SIGTERM, to leave its depths by them, puts them back without their flags, and takes
 * its numbers from the process's rand(). The process is the host's. */
#ifndef SMP_PARTITION_SOLVE_METIS_CALL_H
#define SMP_PARTITION_SOLVE_METIS_CALL_H

#include <metis.h>
#include <signal.h>

#include "graph/base/status.h"

typedef struct smp__metis_call {
    struct sigaction on_abort, on_term;
    char *random;         /* the host's */
    char own_random[128]; /* as large as the C library's own, so that METIS gets the same numbers */
} smp__metis_call;

/* METIS's default options but for the seed; indices from 0. */
void smp__metis_begin(smp__metis_call *call, uint64_t seed, idx_t options[METIS_NOPTIONS]);
/* `code`: what METIS returned. */
smp_status smp__metis_end(smp__metis_call *call, int code);

#endif
