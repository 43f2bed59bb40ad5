/* softmax on a GPU: a warp or a block per row; maximum and sum in one pass (cuda_row.cuh), the
 * values in a second one over a row that is still in the caches. */
#include "graph/cuda/cuda_row.cuh"
#include "graph/ops/ops.h"

template <typename T, bool ONE_WARP>
__global__ void __launch_bounds__(SMP_ROW_MAX_LANES)
    softmax_forward(const T *in, T *out, int64_t rows, int64_t columns) // (rows, columns)
{
    __shared__ float scratch[32];
    constexpr int N = smp_pack<T>::N;
    for (int64_t r = smp_first_row(); r < rows; r += smp_row_stride()) {
        const smp_normalizer z = smp_normalize_row<T, ONE_WARP>(in, r, columns, scratch);
        const smp_row_parts parts = smp_split_row<T>(r, columns);
        const T *x = in + r * columns;
        T *y = out + r * columns;
        const float factor = 1.0f / z.sum;
        for (int64_t c = threadIdx.x; c < parts.head; c += blockDim.x)
            y[c] = smp_from<T>(smp_exp<T>(smp_float(x[c]) - z.max) * factor);
        for (int64_t p = threadIdx.x; p < parts.packs; p += blockDim.x) {
            smp_pack<T> pack = smp_load16(x + parts.head + p * N);
            for (int k = 0; k < N; k++)
                pack.v[k] = smp_from<T>(smp_exp<T>(smp_float(pack.v[k]) - z.max) * factor);
            smp_store(y + parts.head + p * N, pack);
        }
        for (int64_t c = parts.tail + threadIdx.x; c < columns; c += blockDim.x)
            y[c] = smp_from<T>(smp_exp<T>(smp_float(x[c]) - z.max) * factor);
    }
}

/* A lane's share of sum(dy * y). */
template <typename T>
__device__ __forceinline__ float row_dot(const T *y, const T *dy, smp_row_parts parts,
                                         int64_t columns)
{
    constexpr int N = smp_pack<T>::N;
    float sum = 0;
    for (int64_t c = threadIdx.x; c < parts.head; c += blockDim.x)
        sum += smp_float(dy[c]) * smp_float(y[c]);
    for (int64_t p = threadIdx.x; p < parts.packs; p += blockDim.x) {
        const smp_pack<T> a = smp_load16(y + parts.head + p * N);
        const smp_pack<T> b = smp_load16(dy + parts.head + p * N);
        for (int k = 0; k < N; k++)
            sum += smp_float(b.v[k]) * smp_float(a.v[k]);
    }
    for (int64_t c = parts.tail + threadIdx.x; c < columns; c += blockDim.x)
        sum += smp_float(dy[c]) * smp_float(y[c]);
    return sum;
}

template <typename T, bool ONE_WARP>
__global__ void __launch_bounds__(SMP_ROW_MAX_LANES)
    softmax_backward(const T *out, const T *dout, T *din, int64_t rows,
                     int64_t columns) // each (rows, columns)
{
    __shared__ float scratch[32];
    constexpr int N = smp_pack<T>::N;
    for (int64_t r = smp_first_row(); r < rows; r += smp_row_stride()) {
        const smp_row_parts parts = smp_split_row<T>(r, columns);
        const T *y = out + r * columns, *dy = dout + r * columns;
        T *dx = din + r * columns;
        const float dot = smp_row_sum<ONE_WARP>(row_dot(y, dy, parts, columns), scratch);
        for (int64_t c = threadIdx.x; c < parts.head; c += blockDim.x)
            dx[c] = smp_from<T>(smp_float(y[c]) * (smp_float(dy[c]) - dot));
        for (int64_t p = threadIdx.x; p < parts.packs; p += blockDim.x) {
            smp_pack<T> a = smp_load16(y + parts.head + p * N);
            const smp_pack<T> b = smp_load16(dy + parts.head + p * N);
            for (int k = 0; k < N; k++)
                a.v[k] = smp_from<T>(smp_float(a.v[k]) * (smp_float(b.v[k]) - dot));
            smp_store(dx + parts.head + p * N, a);
        }
        for (int64_t c = parts.tail + threadIdx.x; c < columns; c += blockDim.x)
            dx[c] = smp_from<T>(smp_float(y[c]) * (smp_float(dy[c]) - dot));
    }
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    const smp_tensor *in = smp__in(call->graph, call->op, 0);
    const int64_t columns = smp__columns(in), rows = smp__count(in, call->batch) / columns;
    const int lanes = smp_row_lanes<T>(columns);
    const auto kernel = lanes == SMP_WARP ? softmax_forward<T, true> : softmax_forward<T, false>;
    SMP_LAUNCH(kernel, smp_row_grid(rows, lanes), smp_row_block(lanes), 0,
               smp_cuda_of(call)->stream, static_cast<const T *>(call->in[0]),
               static_cast<T *>(call->out[0]), rows, columns);
    return smp__cuda_launched("softmax");
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    if (!call->din[0])
        return SMP_OK;
    const smp_tensor *in = smp__in(call->graph, call->op, 0);
    const int64_t columns = smp__columns(in), rows = smp__count(in, call->batch) / columns;
    const int lanes = smp_row_lanes<T>(columns);
    const auto kernel = lanes == SMP_WARP ? softmax_backward<T, true> : softmax_backward<T, false>;
    SMP_LAUNCH(kernel, smp_row_grid(rows, lanes), smp_row_block(lanes), 0,
               smp_cuda_of(call)->stream, static_cast<const T *>(call->out[0]),
               reinterpret_cast<const T *>(call->dout[0]), reinterpret_cast<T *>(call->din[0]),
               rows, columns);
    return smp__cuda_launched("softmax backward");
}

SMP_CUDA_KERNELS(softmax) = {.forward = SMP_TYPED(forward),
                             .backward_input = SMP_TYPED(backward_input)};
