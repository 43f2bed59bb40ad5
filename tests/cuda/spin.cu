/* Kernels for test_cuda_queues.c. The emulator runs a kernel to its end: there an item of the
 * stream waits. */
#include <cuda_runtime.h>

#ifdef SMP_EMULATED
#include "emulate.h"
#else
__global__ void spin_kernel(const volatile int *flag)
{
    while (*flag == 0)
        __nanosleep(200);
}

__global__ void mark_kernel(volatile int *mark)
{
    *mark = 1;
}
#endif

/* Two launches: one that ends when the host sets the flag, one after it that sets the mark. Both
 * lie in pinned memory. */
extern "C" cudaError_t spin_then_mark(cudaStream_t stream, const volatile int *flag,
                                      volatile int *mark)
{
#ifdef SMP_EMULATED
    emulate_enqueue(stream, [flag] { return *flag != 0; });
    emulate_enqueue(stream, [mark] {
        *mark = 1;
        return true;
    });
#else
    spin_kernel<<<1, 1, 0, stream>>>(flag);
    mark_kernel<<<1, 1, 0, stream>>>(mark);
#endif
    return cudaGetLastError();
}
