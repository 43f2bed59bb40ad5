/* Copies by threads, one for each way, where the device does everything on the calling thread. */
#ifndef SMP_EXEC_OFFLOAD_FAR_THREADS_H
#define SMP_EXEC_OFFLOAD_FAR_THREADS_H

#include "exec/offload/far.h"

typedef struct smp__far_threads smp__far_threads;

smp_status smp__far_threads_start(const smp_far_kind *kind, void *context, int slots,
                                  smp__far_threads **out);
/* Accepts NULL. Joins the threads; what they have not begun is left undone. */
void smp__far_threads_stop(smp__far_threads *threads);
/* They end by themselves, if they ever do; what they use stays. */
void smp__far_threads_leave(smp__far_threads *threads);

void smp__far_threads_ask(smp__far_threads *threads, int slot, smp_far_way way, void *values,
                          int64_t at, int64_t bytes);
/* As smp_far_join. */
smp_status smp__far_threads_test(smp__far_threads *threads, int slot, bool *done);
/* When a copy that is done began and ended. */
void smp__far_threads_times(const smp__far_threads *threads, int slot, double *begin_s,
                            double *end_s);

#endif
