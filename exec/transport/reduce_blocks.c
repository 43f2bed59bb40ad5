/* Reduce-scatter and all-gather; see the header. */
#include "exec/transport/reduce_blocks.h"

#include <string.h>

#include "exec/transport/comm.h"

smp_status smp__blocks_scatter(MPI_Comm replicas, float *data, int block, MPI_Request *request)
{
    return smp__comm_check(
        MPI_Ireduce_scatter_block(MPI_IN_PLACE, data, block, MPI_FLOAT, MPI_SUM, replicas, request),
        "MPI_Ireduce_scatter_block");
}

smp_status smp__blocks_gather(MPI_Comm replicas, int replica, float *data, int block,
                              MPI_Request *request)
{
    float *own = data + (int64_t)replica * block;
    if (own != data)
        memcpy(own, data, (size_t)block * sizeof(float));
    return smp__comm_check(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, block,
                                          MPI_FLOAT, replicas, request),
                           "MPI_Iallgather");
}
