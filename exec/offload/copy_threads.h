/* Copies by threads, one for each way, where the device does everything on the calling thread. */
#ifndef SMP_EXEC_OFFLOAD_COPY_THREADS_H
#define SMP_EXEC_OFFLOAD_COPY_THREADS_H

#include "exec/offload/offload_area.h"

typedef struct smp__copy_threads smp__copy_threads;

smp_status smp__copy_threads_start(const smp_offload_area_kind *kind, void *context, int slots,
                                   smp__copy_threads **out);
/* Accepts NULL. Joins the threads; what they have not begun is left undone. */
void smp__copy_threads_stop(smp__copy_threads *threads);
/* They end by themselves, if they ever do; what they use stays. */
void smp__copy_threads_leave(smp__copy_threads *threads);

void smp__copy_threads_ask(smp__copy_threads *threads, int slot, smp_copy_direction way,
                           void *values, int64_t at, int64_t bytes);
/* As smp_offload_area_join. */
smp_status smp__copy_threads_test(smp__copy_threads *threads, int slot, bool *done);
/* When a copy that is done began and ended. */
void smp__copy_threads_times(const smp__copy_threads *threads, int slot, double *begin_s,
                             double *end_s);

#endif
