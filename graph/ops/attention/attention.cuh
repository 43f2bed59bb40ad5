/* What attention and ring_attention do on a GPU before the tiled kernels: arguments, the biases of
 * all heads, delta of the backward pass, and what there is no kernel for. */
#ifndef SMP_GRAPH_OPS_ATTENTION_CUH
#define SMP_GRAPH_OPS_ATTENTION_CUH

#include "graph/cuda/cuda_attention.cuh"
extern "C" {
#include "graph/ops/ops.h"
}

/* Eight lanes to a head: rows of some fifty values. */
constexpr int HEAD_LANES = 8;

/* delta = sum over a head's columns of dout * out. */
template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK) attention_delta(attention_args<T> args)
{
    const int lane = threadIdx.x % HEAD_LANES, width = args.width;
    const int64_t n = (int64_t)args.batch * args.queries * args.heads;
    const int64_t step = (int64_t)gridDim.x * blockDim.x / HEAD_LANES;
    const int64_t first = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / HEAD_LANES;
    /* whole warps stay together for the shuffles */
    for (int64_t i = first; i - first % (SMP_WARP / HEAD_LANES) < n; i += step) {
        const int64_t at = min(i, n - 1); // of (B, Tq, heads)
        const int64_t row = at / args.heads, sample = row / args.queries;
        const int64_t query = row - sample * args.queries;
        const int head = (int)(at - row * args.heads);
        const T *out = args.out.head(sample, head, width) + query * args.out.stride;
        const T *dout = args.dout.head(sample, head, width) + query * args.dout.stride;
        float sum = 0;
        if (width % smp_pack<T>::N == 0) {
            for (int x = lane * smp_pack<T>::N; x < width; x += HEAD_LANES * smp_pack<T>::N) {
                const smp_pack<T> a = smp_load16(out + x), b = smp_load16(dout + x);
                for (int e = 0; e < smp_pack<T>::N; e++)
                    sum = fmaf(smp_float(a.v[e]), smp_float(b.v[e]), sum);
            }
        } else {
            for (int x = lane; x < width; x += HEAD_LANES)
                sum = fmaf(smp_float(out[x]), smp_float(dout[x]), sum);
        }
        for (int flip = HEAD_LANES / 2; flip > 0; flip /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, flip);
        if (lane == 0 && i < n)
            args.delta[(sample * args.heads + head) * args.queries + query] = sum;
    }
}

template <typename T>
static smp_status attention_fill_delta(const smp_cuda *cuda, const attention_args<T> &args)
{
    const int64_t n = (int64_t)args.batch * args.queries * args.heads;
    SMP_LAUNCH(attention_delta<T>, smp_grid(cuda, n * HEAD_LANES), SMP_BLOCK, 0, cuda->stream,
               args);
    return smp__cuda_launched("attention, delta");
}

static __global__ void __launch_bounds__(SMP_BLOCK)
    attention_bias(smp__attention at, const float *weight, float *bias)
{
    const int64_t distances = at.queries + at.keys - 1;
    for (int64_t i = smp_thread(); i < at.heads * distances; i += smp_threads())
        bias[i] = smp__attention_bias(&at, weight, i / distances,
                                      i % distances + 1 - at.queries - at.before);
}

/* The biases of all heads, (heads, queries + keys - 1), if there are any: *bias is then `to`. */
static inline smp_status attention_fill_bias(const smp_op_call *call, const smp__attention &at,
                                             float *to, const float **bias)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    *bias = NULL;
    if (!smp__attention_is_biased(&at))
        return SMP_OK;
    SMP_LAUNCH(attention_bias, smp_grid(cuda, at.heads * (at.queries + at.keys - 1)), SMP_BLOCK, 0,
               cuda->stream, at, at.buckets > 0 ? call->param[0] : NULL, to);
    *bias = to;
    return smp__cuda_launched("attention, bias");
}

/* Part i of the call's inputs, or of an array like the input that has it. */
template <typename T>
static attention_part<T> attention_input(const smp_op_call *call, const smp__attention &at, int i,
                                         T *array)
{
    const smp_tensor *in = smp__in(call->graph, call->op, at.input[i]);
    return {array + at.offset[i], in->elements, at.stride[i]};
}

/* Of a backward call; else NULL. */
template <typename T> static T *attention_dout(const smp_op_call *call)
{
    return call->dout ? const_cast<T *>(reinterpret_cast<const T *>(call->dout[0])) : NULL;
}

/* All but gradients of inputs, statistics and the bias. */
template <typename T>
static attention_args<T> attention_args_of(const smp_op_call *call, const smp__attention &at)
{
    attention_args<T> args = {};
    attention_part<T> *const value[3] = {&args.q, &args.k, &args.v};
    for (int i = SMP__Q; i <= SMP__V; i++)
        *value[i] = attention_input(call, at, i,
                                    static_cast<T *>(const_cast<void *>(call->in[at.input[i]])));
    args.out = {static_cast<T *>(call->out[0]), at.queries * at.d, at.d};
    args.dout = {attention_dout<T>(call), at.queries * at.d, at.d};
    if (at.mask >= 0)
        args.mask = static_cast<const int32_t *>(call->in[at.mask]);
    args.mask_keys = at.keys;
    args.queries = (int)at.queries;
    args.keys = (int)at.keys;
    args.before = (int)at.before;
    args.heads = (int)at.heads;
    args.width = (int)at.width;
    args.group = (int)(at.heads / at.kv_heads);
    args.batch = (int)call->batch;
    args.causal = at.causal;
    args.scale = at.scale;
    args.softcap = at.softcap;
    args.window = (int)at.window;
    return args;
}

/* last: the position after the last query. */
static inline smp_status attention_check(const smp_graph *graph, const smp_op *op,
                                         const smp__attention *at, int64_t last)
{
    if (at->width > ATTENTION_MAX_WIDTH)
        return smp_fail_at(smp_op_where(graph, op),
                           "op '%s' (%s): heads of %lld features, expected at most %d on a GPU",
                           op->name, op->kind->name, (long long)at->width, ATTENTION_MAX_WIDTH);
    const int64_t longest = last > at->keys ? last : at->keys;
    if (longest > ATTENTION_MAX_ROWS || at->heads > INT32_MAX)
        return smp_fail_at(smp_op_where(graph, op),
                           "op '%s' (%s): %lld rows, expected at most 2^29 on a GPU", op->name,
                           op->kind->name, (long long)longest);
    return SMP_OK;
}

#endif
