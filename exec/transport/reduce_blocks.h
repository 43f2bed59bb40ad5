/* An all-reduce of host memory: every replica gets what the others have of its part, adds it up in
 * one tree, and gives the sums to the others. The tree is that of gradient blocks
 * (schedule/plan/gradient_blocks.h): neighbours in pairs, the sums in pairs and so on, so the bits
 * depend on the order of the replicas alone. */
#ifndef SMP_EXEC_TRANSPORT_REDUCE_BLOCKS_H
#define SMP_EXEC_TRANSPORT_REDUCE_BLOCKS_H

#include <mpi.h>

#include "graph/base/status.h"

/* data: [replicas][block]. Then parts: [replicas][block] is block `own` of every replica. */
smp_status smp__blocks_scatter(MPI_Comm group, const float *data, float *parts, int block,
                               MPI_Request *request);
/* After that: the sum of the parts, which it spoils, into block `own` of data. */
void smp__blocks_fold(int replicas, int own, float *parts, float *data, int block);
/* After that: `data` holds all sums on all replicas. */
smp_status smp__blocks_gather(MPI_Comm group, float *data, int block, MPI_Request *request);

#endif
