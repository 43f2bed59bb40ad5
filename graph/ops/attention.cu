/* attention on a GPU: tiled kernels (cuda_attention_*.cu), or cuDNN's fused one for the forward
 * pass in bf16 where it has one. Neither puts the T x T matrix into memory: forward saves the
 * logarithm of each row's sum of exponentials, (B, heads, Tq), and backward computes the
 * probabilities again. In fp32 and TF32 nothing is rounded below fp32. SMP_ATTENTION=tiled or
 * cudnn insists on one kind. */
#include "graph/cuda/cuda_attention.cuh"
#include "graph/cuda/cuda_attention_dnn.h"
#include "graph/ops/ops.h"

#include <stdlib.h>
#include <string.h>

/* delta = sum over a head's columns of dout * out, eight lanes to a head. */
enum { DELTA_LANES = 8 };

template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK) attention_delta(attention_args<T> args)
{
    const int lane = threadIdx.x % DELTA_LANES, width = args.width;
    const int64_t n = (int64_t)args.batch * args.queries * args.heads;
    const int64_t step = (int64_t)gridDim.x * blockDim.x / DELTA_LANES;
    const int64_t first = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / DELTA_LANES;
    /* whole warps stay together for the shuffles */
    for (int64_t i = first; i - first % (SMP_WARP / DELTA_LANES) < n; i += step) {
        const int64_t at = min(i, n - 1); // of (B, Tq, heads)
        const T *out = args.out.at + at * width, *dout = args.dout.at + at * width;
        float sum = 0;
        if (width % smp_pack<T>::N == 0) {
            for (int x = lane * smp_pack<T>::N; x < width; x += DELTA_LANES * smp_pack<T>::N) {
                const smp_pack<T> a = smp_load16(out + x), b = smp_load16(dout + x);
                for (int e = 0; e < smp_pack<T>::N; e++)
                    sum = fmaf(smp_float(a.v[e]), smp_float(b.v[e]), sum);
            }
        } else {
            for (int x = lane; x < width; x += DELTA_LANES)
                sum = fmaf(smp_float(out[x]), smp_float(dout[x]), sum);
        }
        for (int flip = DELTA_LANES / 2; flip > 0; flip /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, flip);
        const int64_t row = at / args.heads, head = at % args.heads; // row: of (B, Tq)
        if (lane == 0 && i < n)
            args.delta[(row / args.queries * args.heads + head) * args.queries +
                       row % args.queries] = sum;
    }
}

__global__ void __launch_bounds__(SMP_BLOCK) attention_bias(smp__attention at, float *bias)
{
    const int64_t distances = at.queries + at.keys - 1;
    for (int64_t i = smp_thread(); i < at.heads * distances; i += smp_threads())
        bias[i] = smp__attention_bias(&at, i / distances, i % distances + 1 - at.queries);
}

static smp_status check(const smp_graph *graph, const smp_op *op, const smp__attention *at)
{
    if (at->width > ATTENTION_MAX_WIDTH)
        return smp_fail_at(
            smp_op_where(graph, op),
            "op '%s' (attention): heads of %lld features, expected at most %d on a GPU", op->name,
            (long long)at->width, ATTENTION_MAX_WIDTH);
    const int64_t longest = at->queries > at->keys ? at->queries : at->keys;
    if (longest > INT32_MAX / 2 || at->heads > INT32_MAX)
        return smp_fail_at(smp_op_where(graph, op),
                           "op '%s' (attention): %lld rows, expected fewer than 2^30 on a GPU",
                           op->name, (long long)longest);
    return SMP_OK;
}

static void release(void *state)
{
    smp__dnn_attention_destroy(static_cast<smp__dnn_attention *>(state));
}

/* *state: cuDNN's plan; NULL: the tiled kernel. */
static smp_status prepare(const smp_graph *graph, const smp_op *op, int64_t batch, void *device,
                          void **state)
{
    const smp__attention at = smp__attention_of(graph, op);
    const char *given = getenv("SMP_ATTENTION"), *kind = given ? given : "";
    const bool only_dnn = strcmp(kind, "cudnn") == 0;
    *state = NULL;
    SMP_TRY(check(graph, op, &at));
    if (*kind && !only_dnn && strcmp(kind, "tiled") != 0)
        return smp_fail(SMP_ERR_INPUT, "SMP_ATTENTION=%s: expected tiled or cudnn", kind);
    if (graph->target.precision == SMP_PRECISION_BF16 && (only_dnn || !*kind))
        *state = smp__dnn_attention_create(static_cast<const smp_cuda *>(device), &at, batch);
    if (only_dnn && !*state)
        return smp_fail_at(smp_op_where(graph, op),
                           "op '%s' (attention): SMP_ATTENTION=cudnn, but cuDNN has no plan for it",
                           op->name);
    return SMP_OK;
}

/* The biases of all heads, behind the deltas in the workspace. */
static smp_status fill_bias(const smp_op_call *call, const smp__attention *at, const float **bias)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    float *to = static_cast<float *>(call->workspace) + call->batch * at->heads * at->queries;
    *bias = NULL;
    if (!smp__attention_is_biased(at))
        return SMP_OK;
    SMP_LAUNCH(attention_bias, smp_grid(cuda, at->heads * (at->queries + at->keys - 1)), SMP_BLOCK,
               0, cuda->stream, *at, to);
    *bias = to;
    return smp__cuda_launched("attention, bias");
}

/* din NULL: forward. */
template <typename T>
static smp_status make_args(const smp_op_call *call, float *const *din, attention_args<T> *made)
{
    const smp__attention at = smp__attention_of(call->graph, call->op);
    attention_args<T> args = {};
    attention_part<T> *const value[3] = {&args.q, &args.k, &args.v};
    attention_part<T> *const grad[3] = {&args.dq, &args.dk, &args.dv};
    for (int i = SMP__Q; i <= SMP__V; i++) {
        const int slot = at.input[i];
        const int64_t sample = smp__in(call->graph, call->op, slot)->elements;
        T *in = static_cast<T *>(const_cast<void *>(call->in[slot]));
        *value[i] = {in + at.offset[i], sample, at.stride[i]};
        if (din && din[slot])
            *grad[i] = {reinterpret_cast<T *>(din[slot]) + at.offset[i], sample, at.stride[i]};
    }
    args.out = {static_cast<T *>(call->out), at.queries * at.d, at.d};
    args.dout = {const_cast<T *>(reinterpret_cast<const T *>(call->dout)), at.queries * at.d, at.d};
    if (at.mask >= 0)
        args.mask = static_cast<const int32_t *>(call->in[at.mask]);
    args.lse = static_cast<float *>(call->aux);
    args.delta = static_cast<float *>(call->workspace);
    args.queries = (int)at.queries;
    args.keys = (int)at.keys;
    args.heads = (int)at.heads;
    args.width = (int)at.width;
    args.group = (int)(at.heads / at.kv_heads);
    args.batch = (int)call->batch;
    args.causal = at.causal;
    args.scale = at.scale;
    args.window = (int)at.window;
    SMP_TRY(fill_bias(call, &at, &args.bias));
    *made = args;
    return SMP_OK;
}

static smp_status forward(const smp_op_call *call)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    if (!smp_is_bf16(call)) {
        attention_args<float> args;
        SMP_TRY(make_args(call, NULL, &args));
        return attention_forward(cuda, args);
    }
    attention_args<bf16> args;
    SMP_TRY(make_args(call, NULL, &args));
    if (!call->state)
        return attention_forward(cuda, args);
    const smp__dnn_attention_data data = {args.q.at, args.k.at, args.v.at, args.out.at, args.lse};
    return smp__dnn_attention_forward(static_cast<const smp__dnn_attention *>(call->state), cuda,
                                      &data);
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    attention_args<T> args;
    SMP_TRY(make_args(call, call->din, &args));
    const int64_t n = (int64_t)args.batch * args.queries * args.heads;
    SMP_LAUNCH(attention_delta<T>, smp_grid(cuda, n * DELTA_LANES), SMP_BLOCK, 0, cuda->stream,
               args);
    SMP_TRY(smp__cuda_launched("attention, delta"));
    return attention_backward(cuda, args);
}

SMP_CUDA_KERNELS(attention) = {prepare, release, forward, SMP_TYPED(backward_input), NULL, NULL};
