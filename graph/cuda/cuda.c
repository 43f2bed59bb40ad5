/* Errors of the CUDA runtime as statuses. */
#include "graph/cuda/cuda.h"

smp_status smp__cuda_check(cudaError_t code, const char *call)
{
    if (code == cudaSuccess)
        return SMP_OK;
    return smp_fail(code == cudaErrorMemoryAllocation ? SMP_ERR_NO_MEMORY : SMP_ERR_FAILED,
                    "%s: %s", call, cudaGetErrorString(code));
}

smp_status smp__cuda_launched(const char *kernel)
{
    cudaError_t code = cudaGetLastError();
    /* "Not yet", of a query of an event or a stream before the launch, is noted like an error. */
    return smp__cuda_check(code == cudaErrorNotReady ? cudaSuccess : code, kernel);
}
