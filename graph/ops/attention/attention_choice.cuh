/* Attention forward by cuDNN or by the tiled kernels: ways 0 and 1 of a choice of all ranks, one
 * for all operators of a shape, so that cuDNN's plan of it is made once. In the first run of the
 * kernels both compute the same numbers, and what differs more than rounding explains refuses
 * cuDNN. */
#ifndef SMP_GRAPH_OPS_ATTENTION_CHOICE_CUH
#define SMP_GRAPH_OPS_ATTENTION_CHOICE_CUH

#include "graph/ops/attention/attention.cuh"

#include "graph/cuda/cuda_attention_dnn.h"

enum { ATTENTION_BY_DNN, ATTENTION_TILED };

struct attention_ways {
    smp__dnn_attention *plan; // NULL: there is none
    float *differs;           // pinned
};

static void attention_release(void *made)
{
    attention_ways *ways = static_cast<attention_ways *>(made);
    if (ways) {
        smp__dnn_attention_destroy(ways->plan);
        cudaFreeHost(ways->differs);
    }
    free(ways);
}

/* *out: what is chosen from. */
static smp_status attention_choose(const smp_cuda *cuda, const smp__attention &at, int64_t batch,
                                   smp__choice **out)
{
    char about[SMP__CHOICE_ABOUT];
    bool is_new;
    smp__dnn_attention_about(about, cuda, &at, batch);
    SMP_TRY(smp__choice_find(cuda->choices, about, out, &is_new));
    if (!is_new)
        return SMP_OK;
    smp__choice *choice = *out;
    attention_ways *ways = static_cast<attention_ways *>(calloc(1, sizeof *ways));
    choice->made = ways;
    choice->release = attention_release;
    choice->ways = 2;
    if (!ways)
        return smp_fail_memory(sizeof *ways);
    SMP_TRY(SMP_CUDA(cudaHostAlloc, reinterpret_cast<void **>(&ways->differs),
                     sizeof *ways->differs, cudaHostAllocDefault));
    ways->plan = smp__dnn_attention_create(cuda, &at, batch);
    if (!ways->plan)
        smp__choice_refuse(choice, ATTENTION_BY_DNN, "cuDNN %s",
                           cuda->dnn ? "has no plan for it" : "is not here");
    return SMP_OK;
}

/* Numbers like those of a model, of every size up to 2. */
template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK) attention_fill(T *to, int64_t n, uint32_t seed)
{
    for (int64_t i = smp_thread(); i < n; i += smp_threads()) {
        uint32_t x = (uint32_t)i * 2654435761u + seed; /* Wellons' lowbias32 */
        x = (x ^ x >> 16) * 0x21f0aaadu;
        x = (x ^ x >> 15) * 0xd35a2d97u;
        to[i] = smp_from<T>(ldexpf((float)(int32_t)(x ^ x >> 15), -30));
    }
}

/* Twice the distance that rounding may put between two results: each rounds P and the sum, of
 * values up to 2. */
template <typename T> static constexpr float attention_allowed = 0x1p-8f; // fp16
template <> constexpr float attention_allowed<bf16> = 0x1p-5f;

/* *differs = the larger of it and the largest distance of a's rows from those of b, which is one
 * head alone and perhaps fewer queries, in units of what is allowed. One block. */
template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    attention_compare(attention_args<T> a, int64_t sample, int head, attention_args<T> b,
                      float *differs)
{
    __shared__ float scratch[SMP_WARP];
    const T *out = a.out.head(sample, head, a.width);
    const float *lse = a.lse + (sample * a.heads + head) * a.queries;
    float worst = *differs;
    for (int64_t i = threadIdx.x; i < (int64_t)b.queries * a.width; i += SMP_BLOCK) {
        const int64_t t = i / a.width, x = i % a.width;
        const float one = smp_float(out[t * a.out.stride + x]);
        const float far =
            fabsf(one - smp_float(b.out.at[t * b.out.stride + x])) / attention_allowed<T>;
        worst = far <= worst ? worst : far == far ? far : INFINITY;
    }
    for (int t = threadIdx.x; t < b.queries; t += SMP_BLOCK) {
        const float far = fabsf(lse[t] - b.lse[t]) / (1e-3f * (1 + fabsf(b.lse[t])));
        worst = far <= worst ? worst : far == far ? far : INFINITY;
    }
    worst = smp_block_max(worst, scratch);
    if (threadIdx.x == 0)
        *differs = worst;
}

/* Head `head` of sample `sample` alone, as many queries as the libraries' workspace has room for,
 * which nobody uses now; its results go there. */
template <typename T>
static attention_args<T> attention_one_head(const smp_cuda *cuda, const attention_args<T> &args,
                                            int64_t sample, int head)
{
    attention_args<T> one = args;
    const int64_t row_bytes = args.width * (int64_t)sizeof(T) + (int64_t)sizeof(float);
    const int64_t fit = cuda->workspace_bytes / row_bytes / 64 * 64;
    one.queries = (int)(args.queries < fit ? args.queries : fit);
    one.batch = one.heads = one.group = 1;
    one.q.at += sample * args.q.sample + (int64_t)head * args.width;
    one.k.at += sample * args.k.sample + (int64_t)(head / args.group) * args.width;
    one.v.at += sample * args.v.sample + (int64_t)(head / args.group) * args.width;
    one.lse = static_cast<float *>(cuda->workspace);
    one.out = {reinterpret_cast<T *>(one.lse + (one.queries + 63) / 64 * 64), 0, args.width};
    return one;
}

template <typename T>
static smp_status attention_by_dnn(const smp_cuda *cuda, const smp__choice *choice,
                                   const attention_args<T> &args)
{
    const smp__dnn_attention_data data = {args.q.at, args.k.at, args.v.at, args.out.at, args.lse};
    return smp__dnn_attention_forward(static_cast<attention_ways *>(choice->made)->plan, cuda,
                                      &data);
}

/* In the first run, whose numbers nobody needs: other inputs than zeroes, which would show
 * nothing. Refuses what cannot be run; the choice's `differs` is told of the rest. */
template <typename T>
static smp_status attention_try(const smp_op_call *call, smp__choice *choice,
                                const attention_args<T> &args)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    float *differs = static_cast<attention_ways *>(choice->made)->differs;
    for (int i = 0; i < call->op->n_in; i++) {
        const int64_t n = call->batch * smp__in(call->graph, call->op, i)->elements;
        T *in = static_cast<T *>(const_cast<void *>(call->in[i]));
        SMP_LAUNCH(attention_fill<T>, smp_grid(cuda, n), SMP_BLOCK, 0, cuda->stream, in, n,
                   (uint32_t)i);
        SMP_TRY(smp__cuda_launched("attention, numbers to compare"));
    }
    if (attention_by_dnn(cuda, choice, args) != SMP_OK) {
        smp__choice_refuse(choice, ATTENTION_BY_DNN, "%s", smp_last_error());
        return SMP_OK;
    }
    *differs = 0;
    choice->differs = differs;
    for (int64_t sample = 0; sample < args.batch; sample++)
        for (int head = 0; head < args.heads; head++) {
            const attention_args<T> one = attention_one_head(cuda, args, sample, head);
            SMP_TRY(attention_forward(cuda, one));
            SMP_LAUNCH(attention_compare<T>, 1, SMP_BLOCK, 0, cuda->stream, args, sample, head, one,
                       differs);
            SMP_TRY(smp__cuda_launched("attention, cuDNN beside the tiled kernels"));
        }
    return SMP_OK;
}

#endif
