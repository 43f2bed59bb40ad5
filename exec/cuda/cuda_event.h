/* Events and streams of a GPU, for its transports. */
#ifndef SMP_EXEC_CUDA_CUDA_EVENT_H
#define SMP_EXEC_CUDA_CUDA_EVENT_H

#include <cuda_runtime_api.h>

#include "graph/cuda/cuda.h"

/* One that orders streams and takes no time. */
static inline smp_status smp__make_event(cudaEvent_t *event)
{
    return SMP_CUDA(cudaEventCreateWithFlags, event, cudaEventDisableTiming);
}

/* One whose work goes before the kernels': a message that is ready before a kernel that is. */
static inline smp_status smp__make_urgent_stream(cudaStream_t *stream)
{
    int least, greatest;
    SMP_TRY(SMP_CUDA(cudaDeviceGetStreamPriorityRange, &least, &greatest));
    return SMP_CUDA(cudaStreamCreateWithPriority, stream, cudaStreamNonBlocking, greatest);
}

static inline smp_status smp__event_passed(cudaEvent_t event, int *passed)
{
    cudaError_t code = cudaEventQuery(event);
    *passed = code == cudaSuccess;
    return code == cudaErrorNotReady ? SMP_OK : smp__cuda_check(code, "cudaEventQuery");
}

#endif
