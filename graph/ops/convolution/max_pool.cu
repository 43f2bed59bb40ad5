/* max_pool on a GPU: a thread for each window forward, for each pixel backward, both with the
 * CPU's comparisons and sums; for W channels of it where they lie last. */
#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/ops/convolution/pool.h"

/* in: planes of pixels of p.values values, which W divides; out, place: of windows. */
template <int W, typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    max_pool_forward(const T *in, T *out, uint16_t *place, smp__pool p)
{
    const int64_t steps = p.values / W, windows = p.out_height * p.out_width * steps;
    for (int64_t i = smp_thread(); i < p.planes * windows; i += smp_threads()) {
        const int64_t image = i / windows, rest = i - image * windows;
        const int64_t window = rest / steps, column = (rest - window * steps) * W;
        const int64_t oy = window / p.out_width, ox = window - oy * p.out_width;
        const T *plane = in + image * (p.height * p.width * p.values) + column;
        const smp__pool_range ys = smp__pool_pixels(&p, oy, p.height);
        const smp__pool_range xs = smp__pool_pixels(&p, ox, p.width);
        const int64_t top = oy * p.stride - p.padding, left = ox * p.stride - p.padding;
        float best[W];
        smp_pack<uint16_t, W> at;
        for (int k = 0; k < W; k++) {
            best[k] = -INFINITY;
            at.v[k] = (uint16_t)((ys.begin - top) << 8 | (xs.begin - left));
        }
        for (int64_t y = ys.begin; y < ys.end; y++)
            for (int64_t x = xs.begin; x < xs.end; x++) {
                float pixel[W];
                smp_read<W>(pixel, plane + (y * p.width + x) * p.values);
                for (int k = 0; k < W; k++)
                    if (pixel[k] > best[k] || pixel[k] != pixel[k]) {
                        best[k] = pixel[k];
                        at.v[k] = (uint16_t)((y - top) << 8 | (x - left));
                    }
            }
        smp_write<W>(out + i * W, best);
        smp_store(place + i * W, at);
    }
}

template <int W, typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    max_pool_backward(const uint16_t *place, const T *dout, T *dx, smp__pool p)
{
    const int64_t steps = p.values / W, pixels = p.height * p.width * steps;
    for (int64_t i = smp_thread(); i < p.planes * pixels; i += smp_threads()) {
        const int64_t image = i / pixels, rest = i - image * pixels;
        const int64_t pixel = rest / steps, column = (rest - pixel * steps) * W;
        const int64_t y = pixel / p.width, x = pixel - y * p.width;
        const int64_t plane = image * (p.out_height * p.out_width * p.values) + column;
        const smp__pool_range ys = smp__pool_windows(&p, y, p.out_height);
        const smp__pool_range xs = smp__pool_windows(&p, x, p.out_width);
        float sum[W] = {};
        for (int64_t oy = ys.begin; oy < ys.end; oy++)
            for (int64_t ox = xs.begin; ox < xs.end; ox++) {
                const int64_t window = plane + (oy * p.out_width + ox) * p.values;
                const int64_t row = y + p.padding - oy * p.stride;
                const int64_t chosen = row << 8 | (x + p.padding - ox * p.stride);
                const smp_pack<uint16_t, W> at = smp_load<W>(place + window);
                float own[W];
                smp_read<W>(own, dout + window);
                for (int k = 0; k < W; k++)
                    if (at.v[k] == chosen)
                        sum[k] += own[k];
            }
        smp_write<W>(dx + i * W, sum);
    }
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const smp__pool p = smp__pool_of(call->graph, call->op, call->batch);
    const int width = smp_width<T>(p.values);
    const auto kernel = width > 1 ? max_pool_forward<smp_pack<T>::N, T> : max_pool_forward<1, T>;
    SMP_LAUNCH(kernel, smp_grid(cuda, p.planes * p.out_height * p.out_width * p.values / width),
               SMP_BLOCK, 0, cuda->stream, static_cast<const T *>(call->in[0]),
               static_cast<T *>(call->out[0]), static_cast<uint16_t *>(call->aux), p);
    return smp__cuda_launched("max_pool");
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const smp__pool p = smp__pool_of(call->graph, call->op, call->batch);
    const int width = smp_width<T>(p.values);
    const auto kernel = width > 1 ? max_pool_backward<smp_pack<T>::N, T> : max_pool_backward<1, T>;
    if (!call->din[0])
        return SMP_OK;
    SMP_LAUNCH(kernel, smp_grid(cuda, p.planes * p.height * p.width * p.values / width), SMP_BLOCK,
               0, cuda->stream, static_cast<const uint16_t *>(call->aux), (const T *)call->dout[0],
               (T *)call->din[0], p);
    return smp__cuda_launched("max_pool");
}

SMP_CUDA_KERNELS(max_pool) = {.forward = SMP_TYPED(forward),
                              .backward_input = SMP_TYPED(backward_input)};
