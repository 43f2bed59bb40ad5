/* SMP_LAUNCH: a kernel with copies of its arguments goes into its stream's queue. */
#ifndef SMP_TESTS_EMULATE_EMULATE_LAUNCH_H
#define SMP_TESTS_EMULATE_EMULATE_LAUNCH_H

#include <functional>
#include <tuple>
#include <utility>

#include "cuda_runtime_api.h"

#define SMP_LAUNCH(kernel, grid, block, shared, stream, ...)                                       \
    emulate_launch_of(kernel, #kernel, grid, block, shared, stream)(__VA_ARGS__)

struct emulate_launch {
    const char *name;
    const void *kernel;
    dim3 grid, block;
    size_t shared_bytes;
};

/* Checks the launch as CUDA does (an error is left for cudaGetLastError) and enqueues it; `thread`
 * is what each thread runs. */
void emulate_enqueue_launch(const emulate_launch &launch, cudaStream_t stream,
                            std::function<void()> thread);

template <typename... P> struct emulate_launcher {
    void (*kernel)(P...);
    emulate_launch launch;
    cudaStream_t stream;

    void operator()(P... arguments) const
    {
        emulate_enqueue_launch(launch, stream,
                               [kernel = kernel, copies = std::tuple<P...>(arguments...)] {
                                   std::apply(kernel, copies);
                               });
    }
};

template <typename... P>
emulate_launcher<P...> emulate_launch_of(void (*kernel)(P...), const char *name, dim3 grid,
                                         dim3 block, size_t shared_bytes, cudaStream_t stream)
{
    return {
        kernel, {name, reinterpret_cast<const void *>(kernel), grid, block, shared_bytes}, stream};
}

#endif
