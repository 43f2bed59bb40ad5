/* mul_rows on a GPU: a warp or a block per row, which has its sum at hand in backward. */
#include "graph/cuda/cuda_row.cuh"
#include "graph/ops/ops.h"

template <typename T>
__global__ void __launch_bounds__(SMP_ROW_MAX_LANES)
    mul_rows_forward(const T *x, const T *s, T *y, int64_t rows, int64_t columns)
// x, y (rows, columns), s (rows)
{
    for (int64_t r = smp_first_row(); r < rows; r += smp_row_stride())
        for (int64_t c = threadIdx.x; c < columns; c += blockDim.x)
            y[r * columns + c] = smp_from<T>(smp_float(x[r * columns + c]) * smp_float(s[r]));
}

/* dx, ds: NULL where not wanted. */
template <typename T, bool ONE_WARP>
__global__ void __launch_bounds__(SMP_ROW_MAX_LANES)
    mul_rows_backward(const T *x, const T *s, const T *dy, T *dx, T *ds, int64_t rows,
                      int64_t columns)
{
    __shared__ float scratch[32];
    for (int64_t r = smp_first_row(); r < rows; r += smp_row_stride()) {
        float sum = 0;
        for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) {
            const float gradient = smp_float(dy[r * columns + c]);
            sum = fmaf(gradient, smp_float(x[r * columns + c]), sum);
            if (dx)
                dx[r * columns + c] = smp_from<T>(gradient * smp_float(s[r]));
        }
        sum = smp_row_sum<ONE_WARP>(sum, scratch);
        if (ds && threadIdx.x == 0)
            ds[r] = smp_from<T>(sum);
    }
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    const int64_t columns = smp__columns(smp__in(call->graph, call->op, 0));
    const int64_t rows = smp__count(smp__in(call->graph, call->op, 1), call->batch);
    const int lanes = smp_row_lanes<T>(columns);
    SMP_LAUNCH(mul_rows_forward<T>, smp_row_grid(rows, lanes), smp_row_block(lanes), 0,
               smp_cuda_of(call)->stream, static_cast<const T *>(call->in[0]),
               static_cast<const T *>(call->in[1]), static_cast<T *>(call->out[0]), rows, columns);
    return smp__cuda_launched("mul_rows");
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    const int64_t columns = smp__columns(smp__in(call->graph, call->op, 0));
    const int64_t rows = smp__count(smp__in(call->graph, call->op, 1), call->batch);
    const int lanes = smp_row_lanes<T>(columns);
    const auto kernel =
        lanes == SMP_WARP ? mul_rows_backward<T, true> : mul_rows_backward<T, false>;
    SMP_LAUNCH(kernel, smp_row_grid(rows, lanes), smp_row_block(lanes), 0,
               smp_cuda_of(call)->stream, static_cast<const T *>(call->in[0]),
               static_cast<const T *>(call->in[1]), reinterpret_cast<const T *>(call->dout[0]),
               reinterpret_cast<T *>(call->din[0]), reinterpret_cast<T *>(call->din[1]), rows,
               columns);
    return smp__cuda_launched("mul_rows backward");
}

SMP_CUDA_KERNELS(mul_rows) = {.forward = SMP_TYPED(forward),
                              .backward_input = SMP_TYPED(backward_input)};
