/* An all-reduce of host memory in two halves. Every element is summed on exactly one replica and
 * then copied: the replicas hold the same bits whatever algorithm MPI chooses inside. */
#ifndef SMP_EXEC_TRANSPORT_REDUCE_BLOCKS_H
#define SMP_EXEC_TRANSPORT_REDUCE_BLOCKS_H

#include <mpi.h>

#include "graph/base/status.h"

/* data: [replicas][block]. Then the sum of block r lies at the front on replica r. */
smp_status smp__blocks_scatter(MPI_Comm replicas, float *data, int block, MPI_Request *request);
/* After that: `data` holds all sums on all replicas. */
smp_status smp__blocks_gather(MPI_Comm replicas, int replica, float *data, int block,
                              MPI_Request *request);

#endif
