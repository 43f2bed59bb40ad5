/* Losses that are a mean over the elements of two tensors of one shape: values added in double, in
 * an order that depends on the number of elements alone; both gradients in one pass. O(n).
 *
 * A Loss is a struct of static __device__ functions: double value(float a, float b), and
 * void gradients(float a, float b, float scale, float *da, float *db): scale times its
 * derivatives. */
#ifndef SMP_GRAPH_CUDA_CUDA_PAIR_LOSS_CUH
#define SMP_GRAPH_CUDA_CUDA_PAIR_LOSS_CUH

#include "graph/cuda/cuda_kernel.cuh"

template <typename Loss, typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    smp_pair_loss_parts(const T *a, const T *b, double *part, int64_t n) // [n], [n], [gridDim.x]
{
    constexpr int N = smp_pack<T>::N;
    const int64_t packs = n / N;
    const int64_t first = smp_thread(), stride = smp_threads();
    double sum = 0;
    for (int64_t i = first; i < packs; i += stride) {
        const smp_pack<T> x = smp_load16(a + i * N), y = smp_load16(b + i * N);
        for (int k = 0; k < N; k++)
            sum += Loss::value(smp_float(x.v[k]), smp_float(y.v[k]));
    }
    for (int64_t i = packs * N + first; i < n; i += stride)
        sum += Loss::value(smp_float(a[i]), smp_float(b[i]));
    sum = smp_block_sum_double(sum);
    if (threadIdx.x == 0)
        part[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(SMP_BLOCK)
    smp_pair_loss_mean(const double *part, int parts, int64_t n, float *loss) // [parts], [1]
{
    double sum = 0;
    for (int i = threadIdx.x; i < parts; i += SMP_BLOCK)
        sum += part[i];
    sum = smp_block_sum_double(sum);
    if (threadIdx.x == 0)
        *loss = n > 0 ? (float)(sum / (double)n) : 0.0f;
}

template <typename Loss, typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    smp_pair_loss_gradients(const T *a, const T *b, const float *dout, T *da, T *db, int64_t n,
                            int64_t counted) // da, db: NULL where not wanted
{
    constexpr int N = smp_pack<T>::N;
    const int64_t packs = n / N;
    const int64_t first = smp_thread(), stride = smp_threads();
    const float scale = *dout / (float)(counted > 0 ? counted : 1);
    for (int64_t i = first; i < packs; i += stride) {
        const smp_pack<T> x = smp_load16(a + i * N), y = smp_load16(b + i * N);
        smp_pack<T> dx, dy;
        for (int k = 0; k < N; k++) {
            float gx = 0.0f, gy = 0.0f;
            if (i * N + k < counted)
                Loss::gradients(smp_float(x.v[k]), smp_float(y.v[k]), scale, &gx, &gy);
            dx.v[k] = smp_from<T>(gx);
            dy.v[k] = smp_from<T>(gy);
        }
        if (da)
            smp_store(da + i * N, dx);
        if (db)
            smp_store(db + i * N, dy);
    }
    for (int64_t i = packs * N + first; i < n; i += stride) {
        float gx = 0.0f, gy = 0.0f;
        if (i < counted)
            Loss::gradients(smp_float(a[i]), smp_float(b[i]), scale, &gx, &gy);
        if (da)
            da[i] = smp_from<T>(gx);
        if (db)
            db[i] = smp_from<T>(gy);
    }
}

/* counted: elements of samples, the first of the tensors; the rest is padding. The workspace has
 * room for a double of every block. */
template <typename Loss, typename T>
static smp_status smp_pair_loss_forward(const smp_op_call *call, int64_t counted)
{
    cudaStream_t stream = smp_cuda_of(call)->stream;
    double *part = static_cast<double *>(call->workspace);
    smp_op_needs needs;
    smp_op_needs_get(call->graph, call->op, call->batch, &needs);
    const int parts = (int)(needs.workspace_bytes / (int64_t)sizeof *part);
    const auto kernel = smp_pair_loss_parts<Loss, T>;
    SMP_LAUNCH(kernel, parts, SMP_BLOCK, 0, stream, static_cast<const T *>(call->in[0]),
               static_cast<const T *>(call->in[1]), part, counted);
    SMP_LAUNCH(smp_pair_loss_mean, 1, SMP_BLOCK, 0, stream, static_cast<const double *>(part),
               parts, counted, static_cast<float *>(call->out[0]));
    return smp__cuda_launched(call->op->kind->name);
}

/* n: elements of either tensor, padding included. */
template <typename Loss, typename T>
static smp_status smp_pair_loss_backward(const smp_op_call *call, int64_t n, int64_t counted)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const auto kernel = smp_pair_loss_gradients<Loss, T>;
    if (!call->din[0] && !call->din[1])
        return SMP_OK;
    SMP_LAUNCH(kernel, smp_grid(cuda, n / smp_pack<T>::N), SMP_BLOCK, 0, cuda->stream,
               static_cast<const T *>(call->in[0]), static_cast<const T *>(call->in[1]),
               call->dout[0], reinterpret_cast<T *>(call->din[0]),
               reinterpret_cast<T *>(call->din[1]), n, counted);
    return smp__cuda_launched(call->op->kind->name);
}

#endif
