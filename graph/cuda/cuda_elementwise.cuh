/* What operators that treat elements one by one are written with: reads and writes of several
 * values at once as float, one loop over any number of arrays, and plain copies.
 *
 * Widths are compile-time constants: 16 bytes where every address is a multiple of 16, 1 value
 * where sizes are odd. Buffers are 64-byte aligned, so whole tensors always take the wide way
 * with a tail of single values. All of it is bound by memory: O(n). */
#ifndef SMP_GRAPH_CUDA_CUDA_ELEMENTWISE_CUH
#define SMP_GRAPH_CUDA_CUDA_ELEMENTWISE_CUH

#include "graph/cuda/cuda_kernel.cuh"

/* W values from p, which is aligned to the smaller of W values and 16 bytes. */
template <int W, typename T> __device__ __forceinline__ void smp_read(float (&x)[W], const T *p)
{
    constexpr int STEP = W < smp_pack<T>::N ? W : smp_pack<T>::N;
    for (int at = 0; at < W; at += STEP) {
        const smp_pack<T, STEP> part = smp_load<STEP>(p + at);
        for (int k = 0; k < STEP; k++)
            x[at + k] = smp_float(part.v[k]);
    }
}

template <int W, typename T> __device__ __forceinline__ void smp_write(T *p, const float (&x)[W])
{
    constexpr int STEP = W < smp_pack<T>::N ? W : smp_pack<T>::N;
    for (int at = 0; at < W; at += STEP) {
        smp_pack<T, STEP> part;
        for (int k = 0; k < STEP; k++)
            part.v[k] = smp_from<T>(x[at + k]);
        smp_store(p + at, part);
    }
}

/* The arrays of a map: each [n], 16-byte aligned. */
template <typename T, int IN, int OUT> struct smp_streams {
    const T *in[IN];
    T *out[OUT];
};

template <int W, typename T, int IN, int OUT, typename F>
__device__ __forceinline__ void smp_map_at(const smp_streams<T, IN, OUT> &s, int64_t at, const F &f)
{
    float x[IN][W], y[OUT][W];
    for (int k = 0; k < IN; k++)
        smp_read<W>(x[k], s.in[k] + at);
    for (int e = 0; e < W; e++) {
        float in[IN], out[OUT];
        for (int k = 0; k < IN; k++)
            in[k] = x[k][e];
        f(in, out);
        for (int k = 0; k < OUT; k++)
            y[k][e] = out[k];
    }
    for (int k = 0; k < OUT; k++)
        smp_write<W>(s.out[k] + at, y[k]);
}

template <typename T, int IN, int OUT, typename F>
__global__ void __launch_bounds__(SMP_BLOCK)
    smp_map_kernel(smp_streams<T, IN, OUT> s, int64_t n, F f)
{
    constexpr int W = smp_pack<T>::N;
    const int64_t packs = n / W;
    for (int64_t i = smp_thread(); i < packs; i += smp_threads())
        smp_map_at<W>(s, i * W, f);
    for (int64_t i = packs * W + smp_thread(); i < n; i += smp_threads())
        smp_map_at<1>(s, i, f);
}

/* f(in values, out values) of every element: a copyable struct with a const __device__ call
 * operator over (const float *, float *). An output may be one of the inputs. */
template <typename T, int IN, int OUT, typename F>
static inline smp_status smp_map(const smp_op_call *call, const smp_streams<T, IN, OUT> &streams,
                                 int64_t n, const F &f)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const auto kernel = smp_map_kernel<T, IN, OUT, F>;
    SMP_LAUNCH(kernel, smp_grid(cuda, n / smp_pack<T>::N), SMP_BLOCK, 0, cuda->stream, streams, n,
               f);
    return smp__cuda_launched(call->op->kind->name);
}

/* The usual cases, over untyped pointers of a call: y = f(x), and y = f(a, b). */
template <typename T, typename F>
static inline smp_status smp_map1_as(const smp_op_call *call, const void *x, void *y, int64_t n,
                                     const F &f)
{
    return smp_map(call, smp_streams<T, 1, 1>{{(const T *)x}, {(T *)y}}, n, f);
}
template <typename F>
static inline smp_status smp_map1(const smp_op_call *call, const void *x, void *y, int64_t n,
                                  const F &f)
{
    return SMP_AS(smp_dtype_of_call(call), smp_map1_as, call, x, y, n, f);
}
template <typename T, typename F>
static inline smp_status smp_map2_as(const smp_op_call *call, const void *a, const void *b, void *y,
                                     int64_t n, const F &f)
{
    return smp_map(call, smp_streams<T, 2, 1>{{(const T *)a, (const T *)b}, {(T *)y}}, n, f);
}
template <typename F>
static inline smp_status smp_map2(const smp_op_call *call, const void *a, const void *b, void *y,
                                  int64_t n, const F &f)
{
    return SMP_AS(smp_dtype_of_call(call), smp_map2_as, call, a, b, y, n, f);
}

/* Copies a tensor of the micro-batch. */
static inline smp_status smp_copy_tensor(const smp_op_call *call, int32_t tensor, void *to,
                                         const void *from)
{
    const size_t bytes = (size_t)smp_tensor_bytes(call->graph, tensor, call->batch);
    return SMP_CUDA(cudaMemcpyAsync, to, from, bytes, cudaMemcpyDeviceToDevice,
                    smp_cuda_of(call)->stream);
}

/* Kernels of operators that only rename a shape: out = in[0], din[0] = dout. */
static inline smp_status smp_copy_forward(const smp_op_call *call)
{
    return smp_copy_tensor(call, call->op->out, call->out[0], call->in[0]);
}
static inline smp_status smp_copy_backward(const smp_op_call *call)
{
    return call->din[0] ? smp_copy_tensor(call, call->op->out, call->din[0], call->dout[0])
                        : SMP_OK;
}

template <int W, typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    smp_batch_sums_kernel(const T *dout, float *dweight, int64_t batch, int64_t n)
// dout (B, n), dweight (n) +=, n a multiple of W
{
    for (int64_t i = smp_thread() * W; i < n; i += smp_threads() * W) {
        float sum[W] = {0}, value[W];
        for (int64_t at = i; at < batch * n; at += n) {
            smp_read<W>(value, dout + at);
            for (int k = 0; k < W; k++)
                sum[k] += value[k];
        }
        smp_read<W>(value, dweight + i);
        for (int k = 0; k < W; k++)
            value[k] += sum[k];
        smp_write<W>(dweight + i, value);
    }
}

/* The gradient of a weight that is part of every sample as it is: the sum of dout over the batch,
 * in order. A thread takes some elements. */
template <typename T> static inline smp_status smp_batch_sums(const smp_op_call *call)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const int64_t n = call->graph->tensor[call->op->out].elements;
    const int width = smp_width<T>(n);
    const auto kernel =
        width > 1 ? smp_batch_sums_kernel<smp_pack<T>::N, T> : smp_batch_sums_kernel<1, T>;
    SMP_LAUNCH(kernel, smp_grid(cuda, n / width), SMP_BLOCK, 0, cuda->stream,
               (const T *)call->dout[0], call->dparam[0], call->batch, n);
    return smp__cuda_launched(call->op->kind->name);
}

/* The widest access, in bytes, that divides all of the given lengths and offsets (ored
 * together). */
static inline int smp_access_bytes(int64_t lengths)
{
    return lengths % 16 == 0 ? 16 : lengths % 4 == 0 ? 4 : 2;
}

/* to[r * to_stride + i] = from[r * from_stride + i] for i < width, r < rows; all in units of U */
template <typename U>
__global__ void __launch_bounds__(SMP_BLOCK)
    smp_strided_kernel(U *to, int64_t to_stride, const U *from, int64_t from_stride, int64_t width,
                       int64_t rows)
{
    for (int64_t i = smp_thread(); i < width * rows; i += smp_threads()) {
        const int64_t row = i / width, column = i - row * width;
        to[row * to_stride + column] = from[row * from_stride + column];
    }
}

/* Where chunks of one length lie in two arrays, in bytes; the arrays begin at multiples of 16. */
struct smp_strided {
    char *to;
    const char *from;
    int64_t to_stride, from_stride, width, rows;
};

template <typename U> static smp_status smp_copy_strided_as(const smp_op_call *call, smp_strided c)
{
    const int64_t size = (int64_t)sizeof(U);
    const smp_cuda *cuda = smp_cuda_of(call);
    SMP_LAUNCH(smp_strided_kernel<U>, smp_grid(cuda, c.width / size * c.rows), SMP_BLOCK, 0,
               cuda->stream, (U *)c.to, c.to_stride / size, (const U *)c.from, c.from_stride / size,
               c.width / size, c.rows);
    return smp__cuda_launched(call->op->kind->name);
}

/* Bytes are moved, whatever the type: 16 at a time where chunks, strides and offsets are multiples
 * of 16. */
static inline smp_status smp_copy_strided(const smp_op_call *call, smp_strided c)
{
    const int unit =
        smp_access_bytes(c.to_stride | c.from_stride | c.width | (int64_t)c.to | (int64_t)c.from);
    return unit == 16  ? smp_copy_strided_as<uint4>(call, c)
           : unit == 4 ? smp_copy_strided_as<uint32_t>(call, c)
                       : smp_copy_strided_as<uint16_t>(call, c);
}

#endif
