/* mean_pool on a GPU.
 *
 * Forward: a block takes 32 columns of a sample, one to a lane; its warps add every 8th row each,
 * then the 8 partial sums are added in their order. Which block does it does not matter. Backward
 * spreads dout / T over the positions, 16 bytes at a time where rows allow it. */
#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/ops/ops.h"

enum { WARPS = SMP_BLOCK / SMP_WARP };

template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    mean_pool_forward(const T *x, T *out, int64_t batch, int64_t positions, int64_t d)
// x (B, T, d), out (B, d)
{
    __shared__ float part[WARPS][SMP_WARP];
    const int lane = threadIdx.x % SMP_WARP, warp = threadIdx.x / SMP_WARP;
    const int64_t tiles = (d + SMP_WARP - 1) / SMP_WARP;
    const float scale = 1.0f / (float)positions;
    for (int64_t item = blockIdx.x; item < batch * tiles; item += gridDim.x) {
        const int64_t sample = item / tiles, column = item % tiles * SMP_WARP + lane;
        const T *top = x + sample * positions * d + column;
        float sum = 0;
        for (int64_t t = warp; column < d && t < positions; t += WARPS)
            sum += smp_float(top[t * d]);
        part[warp][lane] = sum;
        __syncthreads();
        if (warp == 0 && column < d) {
            for (int w = 1; w < WARPS; w++)
                sum += part[w][lane];
            out[sample * d + column] = smp_from<T>(sum * scale);
        }
        __syncthreads();
    }
}

template <int W, typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    mean_pool_backward(const T *dout, T *dx, int64_t batch, int64_t positions, int64_t d)
// dout (B, d), dx (B, T, d), d a multiple of W
{
    const int64_t columns = d / W;
    const float scale = 1.0f / (float)positions;
    for (int64_t i = smp_thread(); i < batch * positions * columns; i += smp_threads()) {
        const int64_t row = i / columns, column = i - row * columns;
        float value[W];
        smp_read<W>(value, dout + row / positions * d + column * W);
        for (int k = 0; k < W; k++)
            value[k] *= scale;
        smp_write<W>(dx + i * W, value);
    }
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const smp_shape *shape = &smp__in(call->graph, call->op, 0)->shape;
    const int64_t d = shape->dim[1];
    const int64_t items = call->batch * ((d + SMP_WARP - 1) / SMP_WARP);
    SMP_LAUNCH(mean_pool_forward<T>, smp_grid(cuda, items * SMP_BLOCK), SMP_BLOCK, 0, cuda->stream,
               static_cast<const T *>(call->in[0]), static_cast<T *>(call->out), call->batch,
               shape->dim[0], d);
    return smp__cuda_launched("mean_pool");
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const smp_shape *shape = &smp__in(call->graph, call->op, 0)->shape;
    const int64_t positions = shape->dim[0], d = shape->dim[1];
    const int width = smp_width<T>(d);
    const auto kernel =
        width > 1 ? mean_pool_backward<smp_pack<T>::N, T> : mean_pool_backward<1, T>;
    if (!call->din[0])
        return SMP_OK;
    SMP_LAUNCH(kernel, smp_grid(cuda, call->batch * positions * (d / width)), SMP_BLOCK, 0,
               cuda->stream, (const T *)call->dout, (T *)call->din[0], call->batch, positions, d);
    return smp__cuda_launched("mean_pool");
}

SMP_CUDA_KERNELS(mean_pool) = {NULL, NULL, SMP_TYPED(forward), SMP_TYPED(backward_input),
                               NULL, NULL};
