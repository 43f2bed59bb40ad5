/* Exchange, fold and all-gather; see the header. */
#include "exec/transport/reduce_blocks.h"

#include <stdint.h>
#include <string.h>

#include "exec/transport/comm.h"

smp_status smp__blocks_scatter(MPI_Comm group, const float *data, float *parts, int block,
                               MPI_Request *request)
{
    return smp__comm_check(
        MPI_Ialltoall(data, block, MPI_FLOAT, parts, block, MPI_FLOAT, group, request),
        "MPI_Ialltoall");
}

void smp__blocks_fold(int replicas, int own, float *parts, float *data, int block)
{
    for (int64_t width = 1; width < replicas; width *= 2)
        for (int64_t i = 0; i + width < replicas; i += 2 * width) {
            float *restrict left = parts + i * block;
            const float *restrict right = parts + (i + width) * block;
            for (int64_t k = 0; k < block; k++)
                left[k] += right[k];
        }
    memcpy(data + (int64_t)own * block, parts, (size_t)block * sizeof(float));
}

smp_status smp__blocks_gather(MPI_Comm group, float *data, int block, MPI_Request *request)
{
    return smp__comm_check(
        MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, block, MPI_FLOAT, group, request),
        "MPI_Iallgather");
}
