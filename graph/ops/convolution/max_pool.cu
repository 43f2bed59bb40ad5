/* max_pool on a GPU: a thread for each window forward, for each pixel backward, both with the
 * CPU's comparisons and sums. */
#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/ops/convolution/pool.h"

template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    max_pool_forward(const T *in, T *out, uint16_t *place, smp__pool p)
{
    const int64_t windows = p.out_height * p.out_width;
    for (int64_t i = smp_thread(); i < p.planes * windows; i += smp_threads()) {
        const int64_t oy = i % windows / p.out_width, ox = i % p.out_width;
        const T *plane = in + i / windows * (p.height * p.width);
        const smp__pool_range ys = smp__pool_pixels(&p, oy, p.height);
        const smp__pool_range xs = smp__pool_pixels(&p, ox, p.width);
        int64_t best_y = ys.begin, best_x = xs.begin;
        float best = -INFINITY;
        for (int64_t y = ys.begin; y < ys.end; y++)
            for (int64_t x = xs.begin; x < xs.end; x++) {
                const float pixel = smp_float(plane[y * p.width + x]);
                if (pixel > best || pixel != pixel) {
                    best = pixel;
                    best_y = y;
                    best_x = x;
                }
            }
        best_y -= oy * p.stride - p.padding;
        best_x -= ox * p.stride - p.padding;
        out[i] = smp_from<T>(best);
        place[i] = (uint16_t)(best_y << 8 | best_x);
    }
}

template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    max_pool_backward(const uint16_t *place, const T *dout, T *dx, smp__pool p)
{
    const int64_t pixels = p.height * p.width;
    for (int64_t i = smp_thread(); i < p.planes * pixels; i += smp_threads()) {
        const int64_t y = i % pixels / p.width, x = i % p.width;
        const int64_t plane = i / pixels * (p.out_height * p.out_width);
        const smp__pool_range ys = smp__pool_windows(&p, y, p.out_height);
        const smp__pool_range xs = smp__pool_windows(&p, x, p.out_width);
        float sum = 0;
        for (int64_t oy = ys.begin; oy < ys.end; oy++)
            for (int64_t ox = xs.begin; ox < xs.end; ox++) {
                const int64_t window = plane + oy * p.out_width + ox;
                const int64_t row = y + p.padding - oy * p.stride;
                const int64_t column = x + p.padding - ox * p.stride;
                if (place[window] == (row << 8 | column))
                    sum += smp_float(dout[window]);
            }
        dx[i] = smp_from<T>(sum);
    }
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const smp__pool p = smp__pool_of(call->graph, call->op, call->batch);
    SMP_LAUNCH(max_pool_forward<T>, smp_grid(cuda, p.planes * p.out_height * p.out_width),
               SMP_BLOCK, 0, cuda->stream, static_cast<const T *>(call->in[0]),
               static_cast<T *>(call->out[0]), static_cast<uint16_t *>(call->aux), p);
    return smp__cuda_launched("max_pool");
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const smp__pool p = smp__pool_of(call->graph, call->op, call->batch);
    if (!call->din[0])
        return SMP_OK;
    SMP_LAUNCH(max_pool_backward<T>, smp_grid(cuda, p.planes * p.height * p.width), SMP_BLOCK, 0,
               cuda->stream, static_cast<const uint16_t *>(call->aux), (const T *)call->dout[0],
               (T *)call->din[0], p);
    return smp__cuda_launched("max_pool");
}

SMP_CUDA_KERNELS(max_pool) = {.forward = SMP_TYPED(forward),
                              .backward_input = SMP_TYPED(backward_input)};
