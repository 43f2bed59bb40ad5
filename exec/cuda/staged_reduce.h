/* Sums over the replicas of what lies in device memory, through pinned host memory and MPI: part of
 * the staged transport. */
#ifndef SMP_EXEC_CUDA_STAGED_REDUCE_H
#define SMP_EXEC_CUDA_STAGED_REDUCE_H

#include <cuda_runtime_api.h>

#include "exec/transport/transport.h"

typedef struct smp__staged_reduce smp__staged_reduce;

/* Collective over the replicas. `compute`: the device's stream. */
smp_status smp__staged_reduce_open(const smp_transport_options *options, cudaStream_t compute,
                                   smp__staged_reduce **out);
void smp__staged_reduce_close(smp__staged_reduce *reduce); /* accepts NULL */
/* As in smp_transport. */
smp_status smp__staged_reduce_start(smp__staged_reduce *reduce, const smp_sum *sum,
                                    smp_reduction **out);
smp_status smp__staged_reduce_test(smp__staged_reduce *reduce, smp_reduction **reduction,
                                   bool *done);
smp_status smp__staged_reduce_progress(smp__staged_reduce *reduce);

#endif
