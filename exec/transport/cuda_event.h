/* Events and streams of the transports of a GPU. */
#ifndef SMP_EXEC_TRANSPORT_CUDA_EVENT_H
#define SMP_EXEC_TRANSPORT_CUDA_EVENT_H

#include <cuda_runtime_api.h>

#include "graph/cuda/cuda.h"

/* One that orders streams and takes no time. */
static inline smp_status smp__make_event(cudaEvent_t *event)
{
    return smp__cuda_check(cudaEventCreateWithFlags(event, cudaEventDisableTiming),
                           "cudaEventCreateWithFlags");
}

/* One whose work goes before the kernels': of a message and a kernel that are both ready the message. */
static inline smp_status smp__make_urgent_stream(cudaStream_t *stream)
{
    int least, greatest;
    SMP_TRY(smp__cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                            "cudaDeviceGetStreamPriorityRange"));
    return smp__cuda_check(cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, greatest),
                           "cudaStreamCreateWithPriority");
}

#endif
