/* avg_pool on a GPU: a thread for each window forward, for each pixel backward; both add in the
 * CPU's order; for W channels of it where they lie last. */
#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/ops/convolution/pool.h"

/* Sums over planes [from_height][from_width] for each place of planes [to_height][to_width], of
 * p.values values, which W divides: of the pixels in a window, or (BACK) of the windows with a
 * pixel. */
template <int W, typename T, bool BACK>
__global__ void __launch_bounds__(SMP_BLOCK)
    avg_pool_sums(const T *from, T *to, smp__pool p, float factor)
{
    const int64_t from_height = BACK ? p.out_height : p.height;
    const int64_t from_width = BACK ? p.out_width : p.width;
    const int64_t to_height = BACK ? p.height : p.out_height;
    const int64_t to_width = BACK ? p.width : p.out_width;
    const int64_t steps = p.values / W, n = p.planes * to_height * to_width * steps;
    for (int64_t i = smp_thread(); i < n; i += smp_threads()) {
        const int64_t place = i / steps, column = (i - place * steps) * W;
        const int64_t line = place / to_width, at_x = place - line * to_width;
        const int64_t plane = line / to_height, at_y = line - plane * to_height;
        const smp__pool_range ys = BACK ? smp__pool_windows(&p, at_y, from_height)
                                        : smp__pool_pixels(&p, at_y, from_height);
        const smp__pool_range xs =
            BACK ? smp__pool_windows(&p, at_x, from_width) : smp__pool_pixels(&p, at_x, from_width);
        float sum[W] = {};
        for (int64_t x = xs.begin; x < xs.end; x++) {
            float lines[W] = {}, own[W];
            for (int64_t y = ys.begin; y < ys.end; y++) {
                const int64_t pixel = (plane * from_height + y) * from_width + x;
                smp_read<W>(own, from + pixel * p.values + column);
                for (int k = 0; k < W; k++)
                    lines[k] += own[k];
            }
            for (int k = 0; k < W; k++)
                sum[k] += lines[k];
        }
        for (int k = 0; k < W; k++)
            sum[k] *= factor;
        smp_write<W>(to + i * W, sum);
    }
}

template <typename T, bool BACK>
static smp_status sums(const smp_op_call *call, const void *from, void *to)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const smp__pool p = smp__pool_of(call->graph, call->op, call->batch);
    const int64_t pixels = BACK ? p.height * p.width : p.out_height * p.out_width;
    const int width = smp_width<T>(p.values);
    const auto kernel =
        width > 1 ? avg_pool_sums<smp_pack<T>::N, T, BACK> : avg_pool_sums<1, T, BACK>;
    SMP_LAUNCH(kernel, smp_grid(cuda, p.planes * pixels * p.values / width), SMP_BLOCK, 0,
               cuda->stream, static_cast<const T *>(from), static_cast<T *>(to), p,
               1.0f / (float)(p.kernel * p.kernel));
    return smp__cuda_launched("avg_pool");
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    return sums<T, false>(call, call->in[0], call->out[0]);
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    return call->din[0] ? sums<T, true>(call, call->dout[0], call->din[0]) : SMP_OK;
}

SMP_CUDA_KERNELS(avg_pool) = {.forward = SMP_TYPED(forward),
                              .backward_input = SMP_TYPED(backward_input)};
