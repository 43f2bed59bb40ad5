/* mse on a GPU: squares of the differences added in double, in an order that depends on the number
 * of elements alone; both gradients in one pass. */
#include "graph/cuda/cuda_kernel.cuh"
#include "graph/ops/ops.h"

template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    mse_parts(const T *a, const T *b, double *part, int64_t n) // [n], [n], [gridDim.x]
{
    constexpr int N = smp_pack<T>::N;
    const int64_t packs = n / N;
    const int64_t first = smp_thread(), stride = smp_threads();
    double sum = 0;
    for (int64_t i = first; i < packs; i += stride) {
        const smp_pack<T> x = smp_load16(a + i * N), y = smp_load16(b + i * N);
        for (int k = 0; k < N; k++) {
            const double d = (double)(smp_float(x.v[k]) - smp_float(y.v[k]));
            sum += d * d;
        }
    }
    for (int64_t i = packs * N + first; i < n; i += stride) {
        const double d = (double)(smp_float(a[i]) - smp_float(b[i]));
        sum += d * d;
    }
    sum = smp_block_sum_double(sum);
    if (threadIdx.x == 0)
        part[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(SMP_BLOCK)
    mse_mean(const double *part, int parts, int64_t n, float *loss) // [parts], [1]
{
    double sum = 0;
    for (int i = threadIdx.x; i < parts; i += SMP_BLOCK)
        sum += part[i];
    sum = smp_block_sum_double(sum);
    if (threadIdx.x == 0)
        *loss = n > 0 ? (float)(sum / (double)n) : 0.0f;
}

template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    mse_backward(const T *a, const T *b, const float *dout, T *da, T *db, int64_t n,
                 int64_t counted) // da, db: NULL where not wanted
{
    constexpr int N = smp_pack<T>::N;
    const int64_t packs = n / N;
    const int64_t first = smp_thread(), stride = smp_threads();
    const float scale = 2.0f * *dout / (float)(counted > 0 ? counted : 1);
    for (int64_t i = first; i < packs; i += stride) {
        const smp_pack<T> x = smp_load16(a + i * N), y = smp_load16(b + i * N);
        smp_pack<T> dx, dy;
        for (int k = 0; k < N; k++) {
            const float d =
                i * N + k < counted ? scale * (smp_float(x.v[k]) - smp_float(y.v[k])) : 0.0f;
            dx.v[k] = smp_from<T>(d);
            dy.v[k] = smp_from<T>(-d);
        }
        if (da)
            smp_store(da + i * N, dx);
        if (db)
            smp_store(db + i * N, dy);
    }
    for (int64_t i = packs * N + first; i < n; i += stride) {
        const float d = i < counted ? scale * (smp_float(a[i]) - smp_float(b[i])) : 0.0f;
        if (da)
            da[i] = smp_from<T>(d);
        if (db)
            db[i] = smp_from<T>(-d);
    }
}

/* Elements of samples; the rest is padding. */
static int64_t counted_elements(const smp_op_call *call)
{
    return smp__count(smp__in(call->graph, call->op, 0), call->batch - call->padding);
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    cudaStream_t stream = smp_cuda_of(call)->stream;
    const int64_t n = counted_elements(call);
    double *part = static_cast<double *>(call->workspace);
    smp_op_needs needs;
    smp_op_needs_get(call->graph, call->op, call->batch, &needs);
    const int parts = (int)(needs.workspace_bytes / (int64_t)sizeof *part);
    SMP_LAUNCH(mse_parts<T>, parts, SMP_BLOCK, 0, stream, static_cast<const T *>(call->in[0]),
               static_cast<const T *>(call->in[1]), part, n);
    SMP_LAUNCH(mse_mean, 1, SMP_BLOCK, 0, stream, static_cast<const double *>(part), parts, n,
               static_cast<float *>(call->out));
    return smp__cuda_launched("mse");
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    if (!call->din[0] && !call->din[1])
        return SMP_OK;
    const smp_cuda *cuda = smp_cuda_of(call);
    const int64_t n = smp__count(smp__in(call->graph, call->op, 0), call->batch);
    SMP_LAUNCH(mse_backward<T>, smp_grid(cuda, n / smp_pack<T>::N), SMP_BLOCK, 0, cuda->stream,
               static_cast<const T *>(call->in[0]), static_cast<const T *>(call->in[1]), call->dout,
               reinterpret_cast<T *>(call->din[0]), reinterpret_cast<T *>(call->din[1]), n,
               counted_elements(call));
    return smp__cuda_launched("mse backward");
}

SMP_CUDA_KERNELS(mse) = {NULL, NULL, SMP_TYPED(forward), SMP_TYPED(backward_input), NULL, NULL};
