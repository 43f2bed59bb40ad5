/* add on a GPU: one pass, 16 bytes at a time, over however many there are: a sum is rounded once.
 * All gradients are dout. A norm or a relu after it is made in the same pass. */
#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/ops/elementwise/unary.h"

struct add_values {
    __device__ void operator()(const float *x, float *y) const
    {
        y[0] = x[0] + x[1];
    }
};

template <typename T> struct add_terms {
    const T *in[SMP_OP_MAX_IN]; // each [n], 16-byte aligned, as out
    T *out;
    int terms;
};

template <int W, typename T>
__device__ __forceinline__ void add_at(const add_terms<T> &a, int64_t at)
{
    float sum[W], x[W];
    smp_read<W>(sum, a.in[0] + at);
    for (int i = 1; i < a.terms; i++) {
        smp_read<W>(x, a.in[i] + at);
        for (int k = 0; k < W; k++)
            sum[k] += x[k];
    }
    smp_write<W>(a.out + at, sum);
}

template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK) add_kernel(add_terms<T> a, int64_t n)
{
    constexpr int W = smp_pack<T>::N;
    const int64_t packs = n / W;
    for (int64_t i = smp_thread(); i < packs; i += smp_threads())
        add_at<W>(a, i * W);
    for (int64_t i = packs * W + smp_thread(); i < n; i += smp_threads())
        add_at<1>(a, i);
}

template <typename T> static smp_status add_all(const smp_op_call *call, int64_t n)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    add_terms<T> a = {{NULL}, (T *)call->out[0], call->op->n_in};
    for (int i = 0; i < a.terms; i++)
        a.in[i] = (const T *)call->in[i];
    SMP_LAUNCH(add_kernel<T>, smp_grid(cuda, n / smp_pack<T>::N), SMP_BLOCK, 0, cuda->stream, a, n);
    return smp__cuda_launched("add");
}

static smp_status forward(const smp_op_call *call)
{
    const int64_t n = smp__count(smp__out(call->graph, call->op), call->batch);
    if (call->op->n_in > 2)
        return SMP_AS(smp_dtype_of_call(call), add_all, call, n);
    return smp_map2(call, call->in[0], call->in[1], call->out[0], n, add_values());
}

/* a, b to the sum, rounded, and the relu of it. */
template <typename T> struct sum_relu {
    __device__ void operator()(const float *in, float *out) const
    {
        out[0] = smp_float(smp_from<T>(in[0] + in[1]));
        out[1] = smp__relu(out[0]);
    }
};

template <typename T> static smp_status with_relu(const smp_op_call *call, const smp_op_call *next)
{
    const smp_streams<T, 2, 2> streams = {
        {(const T *)call->in[0], (const T *)call->in[1]},
        {(T *)call->out[0], (T *)next->out[0]},
    };
    return smp_map(call, streams, smp__count(smp__out(call->graph, call->op), call->batch),
                   sum_relu<T>());
}

static smp_status forward_fused(const smp_op_call *call, const smp_op_call *next)
{
    return next->op->kind == &smp__op_relu ? SMP_TYPED_PAIR(with_relu)(call, next)
                                           : smp__cuda_forward_of_sum(call, next);
}

SMP_CUDA_KERNELS(add) = {.forward = forward, .forward_fused = forward_fused};
