/* Attention by cuDNN or by the tiled kernels: ways 0 and 1 of a choice of all ranks, one for all
 * operators of a shape, so that cuDNN's plan of it is made once; forward and backward apart. In
 * the first run of the kernels both compute the same numbers, and what differs more than rounding
 * explains refuses cuDNN.
 *
 * Forward takes the first way that is not refused. Backward by cuDNN needs a workspace of the T x
 * T matrix, so it is a choice only where calls have that: where the graph's `products` ask for it,
 * so that plans count it, and where ways are measured. There it is an entry of the device's list
 * of products, whose algorithms are ours, first, and cuDNN of the version here; what the choice of
 * ways refuses the list refuses, too. The entry's name has the heads of a device and the samples
 * of a micro-batch: stages and replicas take one way for one attention, and devices that share its
 * heads take ours unless that part was measured. */
#ifndef SMP_GRAPH_OPS_ATTENTION_CHOICE_CUH
#define SMP_GRAPH_OPS_ATTENTION_CHOICE_CUH

#include "graph/ops/attention/attention.cuh"

#include <initializer_list>
#include <stdlib.h>
#include <string.h>

#include "graph/cuda/cuda_attention_dnn.h"
#include "graph/cuda/cuda_dnn.h"
#include "graph/cuda/cuda_gemm.cuh"
extern "C" {
#include "graph/math/gemm_algorithms.h"
}

enum { ATTENTION_BY_DNN, ATTENTION_TILED };

struct attention_ways {
    smp__dnn_attention *plan; // NULL: there is none
    float *differs;           // pinned
    smp__choice *backward;    // of forward's: the other one; NULL: it is ours
    smp_gemm *product;        // of forward's: what backward is by
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

static attention_ways *attention_ways_of(const smp__choice *choice)
{
    return static_cast<attention_ways *>(choice->made);
}

/* Both ways; the plan, NULL: there is none, is the choice's. */
static smp_status attention_add_ways(const smp_cuda *cuda, smp__choice *choice,
                                     smp__dnn_attention *plan)
{
    attention_ways *ways = static_cast<attention_ways *>(calloc(1, sizeof *ways));
    choice->made = ways;
    choice->release = attention_release;
    choice->ways = 2;
    if (!ways) {
        smp__dnn_attention_destroy(plan);
        return smp_fail_memory(sizeof *ways);
    }
    ways->plan = plan;
    if (!plan)
        smp__choice_refuse(choice, ATTENTION_BY_DNN, "cuDNN %s",
                           cuda->dnn ? "has no plan for it" : "is not here");
    return SMP_CUDA(cudaHostAlloc, reinterpret_cast<void **>(&ways->differs), sizeof *ways->differs,
                    cudaHostAllocDefault);
}

/* *out: what forward is chosen from. */
static smp_status attention_choose(const smp_cuda *cuda, const smp__attention &at, int64_t batch,
                                   smp__choice **out)
{
    char about[SMP__CHOICE_ABOUT];
    bool is_new;
    smp__attention_about(about, "attention", cuda->precision, &at, batch);
    SMP_TRY(smp__choice_find(cuda->choices, about, out, &is_new));
    if (!is_new)
        return SMP_OK;
    smp__dnn_name((*out)->name[ATTENTION_BY_DNN]);
    snprintf((*out)->name[ATTENTION_TILED], SMP__CHOICE_NAME, "%s", SMP__ATTENTION_TILED);
    return attention_add_ways(cuda, *out, smp__dnn_attention_create(cuda, &at, batch));
}

/* The algorithms of backward: on every rank that has the operator, whether cuDNN is here or not. */
static smp_status attention_list(const smp_cuda *cuda, const char *about, bool only_dnn,
                                 attention_ways *ways)
{
    char dnn[SMP__DNN_NAME_BYTES];
    SMP_TRY(smp_gemms_get(cuda->products, about, &ways->product));
    if (ways->product->here)
        return SMP_OK;
    ways->product->here = true;
    if (only_dnn) {
        ways->product->asked = false;
        ways->product->n_algorithm = 0;
    } else {
        smp_gemm_add(ways->product, SMP__ATTENTION_TILED);
    }
    smp__dnn_name(dnn);
    if (only_dnn || attention_ways_of(ways->backward)->plan)
        smp_gemm_add(ways->product, dnn);
    return SMP_OK;
}

/* The same where calls have no workspace for cuDNN: ours alone, which is what runs. */
static smp_status attention_list_tiled(const smp_cuda *cuda, const smp__attention &at,
                                       int64_t batch)
{
    char about[SMP__CHOICE_ABOUT];
    smp_gemm *product;
    smp__attention_about(about, SMP__ATTENTION_BACKWARD, cuda->precision, &at, batch);
    SMP_TRY(smp_gemms_get(cuda->products, about, &product));
    smp_gemm_add(product, SMP__ATTENTION_TILED);
    product->here = true;
    product->runs++;
    return SMP_OK;
}

/* What backward is chosen from, with the workspace that cuDNN may have there. */
static smp_status attention_choose_backward(const smp_cuda *cuda, const smp__attention &at,
                                            int64_t batch, bool only_dnn, attention_ways *ways)
{
    char about[SMP__CHOICE_ABOUT];
    bool is_new;
    if (ways->backward)
        return SMP_OK;
    smp__attention_about(about, SMP__ATTENTION_BACKWARD, cuda->precision, &at, batch);
    SMP_TRY(smp__choice_find(cuda->choices, about, &ways->backward, &is_new));
    SMP_TRY(attention_add_ways(
        cuda, ways->backward,
        smp__dnn_attention_create_backward(
            cuda, &at, batch, smp__attention_dnn_bytes(&at, batch) - SMP__DNN_ALIGNMENT)));
    return attention_list(cuda, about, only_dnn, ways);
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

/* *worst = the larger of it and the distance, in units of what is allowed. */
static __device__ __forceinline__ void attention_worse(float a, float b, float allowed,
                                                       float *worst)
{
    const float off = fabsf(a - b) / allowed;
    *worst = off <= *worst ? *worst : off == off ? off : INFINITY;
}

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
        attention_worse(smp_float(out[t * a.out.stride + x]),
                        smp_float(b.out.at[t * b.out.stride + x]), attention_allowed<T>, &worst);
    }
    for (int t = threadIdx.x; t < b.queries; t += SMP_BLOCK)
        attention_worse(lse[t], b.lse[t], 1e-3f * (1 + fabsf(b.lse[t])), &worst);
    worst = smp_block_max(worst, scratch);
    if (threadIdx.x == 0)
        *differs = worst;
}

/* The same of a gradient, `columns` of each row of both: what is allowed is a share of the row's
 * largest value, since late rows of causal attention are small beside early ones, and of a small
 * share of the largest of all, as rows that are zero but for rounding have none. One block. */
template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    attention_compare_gradient(attention_part<T> a, attention_part<T> b, int64_t rows,
                               int64_t columns, float *differs)
{
    __shared__ float scratch[SMP_WARP];
    float largest = 0x1p-20f, worst = *differs;
    for (int64_t i = threadIdx.x; i < rows * columns; i += SMP_BLOCK)
        largest = fmaxf(largest, fabsf(smp_float(b.at[i / columns * b.stride + i % columns])));
    largest = smp_block_max(largest, scratch);
    for (int64_t r = threadIdx.x; r < rows; r += SMP_BLOCK) {
        const T *got = a.at + r * a.stride, *wanted = b.at + r * b.stride;
        float of_row = 0x1p-6f * largest;
        for (int64_t c = 0; c < columns; c++)
            of_row = fmaxf(of_row, fabsf(smp_float(wanted[c])));
        for (int64_t c = 0; c < columns; c++)
            attention_worse(smp_float(got[c]), smp_float(wanted[c]), attention_allowed<T> * of_row,
                            &worst);
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
    return smp__dnn_attention_forward(attention_ways_of(choice)->plan, cuda, &data);
}

template <typename T> static T *attention_at(void *base, int64_t bytes)
{
    return reinterpret_cast<T *>(static_cast<char *>(base) + bytes);
}

/* workspace: of the call, all of it. */
template <typename T>
static smp_status attention_backward_by_dnn(const smp_cuda *cuda, const smp__choice *backward,
                                            const attention_args<T> &args, void *workspace)
{
    const smp__dnn_attention_data data = {args.q.at, args.k.at, args.v.at, args.out.at, args.lse};
    const uintptr_t begin = reinterpret_cast<uintptr_t>(workspace);
    const int64_t skipped = (int64_t)(-begin % SMP__DNN_ALIGNMENT);
    const smp__dnn_attention_gradients to = {args.dout.at, args.dq.at, args.dk.at, args.dv.at,
                                             attention_at<void>(workspace, skipped)};
    return smp__dnn_attention_backward(attention_ways_of(backward)->plan, cuda, &data, &to);
}

template <typename T>
static smp_status attention_fill_numbers(const smp_cuda *cuda, T *to, int64_t n, uint32_t seed)
{
    SMP_LAUNCH(attention_fill<T>, smp_grid(cuda, n), SMP_BLOCK, 0, cuda->stream, to, n, seed);
    return smp__cuda_launched("attention, numbers to compare");
}

/* Other inputs than zeroes, which would show nothing. */
template <typename T> static smp_status attention_fill_inputs(const smp_op_call *call)
{
    for (int i = 0; i < call->op->n_in; i++)
        SMP_TRY(attention_fill_numbers(
            smp_cuda_of(call), static_cast<T *>(const_cast<void *>(call->in[i])),
            call->batch * smp__in(call->graph, call->op, i)->elements, (uint32_t)i));
    return SMP_OK;
}

/* Begins a trial in the first run, whose numbers nobody needs. Is there one? Not of what is
 * refused, nor twice in a run. */
static bool attention_begin_trial(const smp_cuda *cuda, const smp__choice *choice)
{
    return cuda->choices->trying && !choice->differs && smp__choice_way(choice) == ATTENTION_BY_DNN;
}

/* cuDNN has done it, or refuses: what is left to do is to compare. */
static bool attention_has_run(smp__choice *choice, smp_status status)
{
    if (status != SMP_OK) {
        smp__choice_refuse(choice, ATTENTION_BY_DNN, "%s", smp_last_error());
        return false;
    }
    choice->differs = attention_ways_of(choice)->differs;
    *attention_ways_of(choice)->differs = 0;
    return true;
}

/* Refuses what cannot be run; the choice's `differs` is told of the rest. */
template <typename T>
static smp_status attention_try(const smp_op_call *call, smp__choice *choice,
                                const attention_args<T> &args)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    SMP_TRY(attention_fill_inputs<T>(call));
    if (!attention_has_run(choice, attention_by_dnn(cuda, choice, args)))
        return SMP_OK;
    for (int64_t sample = 0; sample < args.batch; sample++)
        for (int head = 0; head < args.heads; head++) {
            const attention_args<T> one = attention_one_head(cuda, args, sample, head);
            SMP_TRY(attention_forward(cuda, one));
            SMP_LAUNCH(attention_compare<T>, 1, SMP_BLOCK, 0, cuda->stream, args, sample, head, one,
                       attention_ways_of(choice)->differs);
            SMP_TRY(smp__cuda_launched("attention, cuDNN beside the tiled kernels"));
        }
    return SMP_OK;
}

/* Key head `head` of sample `sample` alone, and those of queries that read it, in the call's
 * workspace. */
template <typename T>
static attention_args<T> attention_one_key_head(const smp_op_call *call,
                                                const attention_args<T> &args, int64_t sample,
                                                int head)
{
    const smp__attention at = smp__attention_of(call->graph, call->op);
    const smp__attention_trial in = smp__attention_trial_of(&at);
    const int64_t query = (int64_t)head * args.group * args.width;
    void *to = call->workspace;
    attention_args<T> one = args;
    one.batch = 1;
    one.heads = args.group;
    for (attention_part<T> *part : {&one.q, &one.out, &one.dout})
        part->at += sample * part->sample + query;
    for (attention_part<T> *part : {&one.k, &one.v})
        part->at += sample * part->sample + (int64_t)head * args.width;
    one.lse += (sample * args.heads + head * args.group) * args.queries;
    one.delta = attention_at<float>(to, in.delta);
    one.sums = attention_at<float>(to, in.sums);
    one.turns = attention_at<int>(to, in.turns);
    one.dq = {attention_at<T>(to, in.dq), 0, args.group * args.width};
    one.dk = {attention_at<T>(to, in.dk), 0, args.width};
    one.dv = {attention_at<T>(to, in.dv), 0, args.width};
    return one;
}

template <typename T>
static smp_status attention_compare_gradients(const smp_cuda *cuda, const attention_args<T> &args,
                                              int64_t sample, int head,
                                              const attention_args<T> &one, float *differs)
{
    const attention_part<T> all[3] = {args.dq, args.dk, args.dv};
    const attention_part<T> own[3] = {one.dq, one.dk, one.dv};
    for (int i = SMP__Q; i <= SMP__V; i++) {
        const int64_t columns = own[i].stride, rows = i == SMP__Q ? args.queries : args.keys;
        attention_part<T> of = all[i];
        of.at += sample * of.sample + head * columns;
        SMP_LAUNCH(attention_compare_gradient<T>, 1, SMP_BLOCK, 0, cuda->stream, of, own[i], rows,
                   columns, differs);
        SMP_TRY(smp__cuda_launched("attention backward, cuDNN beside the tiled kernels"));
    }
    return SMP_OK;
}

/* As attention_try, of backward: after a forward of ours. */
template <typename T>
static smp_status attention_try_backward(const smp_op_call *call, smp__choice *backward,
                                         const attention_args<T> &args)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    SMP_TRY(attention_fill_inputs<T>(call));
    SMP_TRY(attention_fill_numbers(cuda, args.dout.at, args.batch * args.dout.sample,
                                   (uint32_t)call->op->n_in));
    SMP_TRY(attention_forward(cuda, args));
    if (!attention_has_run(backward,
                           attention_backward_by_dnn(cuda, backward, args, call->workspace)))
        return SMP_OK;
    for (int64_t sample = 0; sample < args.batch; sample++)
        for (int head = 0; head < args.heads / args.group; head++) {
            const attention_args<T> one = attention_one_key_head(call, args, sample, head);
            SMP_TRY(attention_fill_delta(cuda, one));
            SMP_TRY(attention_backward(cuda, one));
            SMP_TRY(attention_compare_gradients(cuda, args, sample, head, one,
                                                attention_ways_of(backward)->differs));
        }
    return SMP_OK;
}

/* Backward as the list of products says, if that is by cuDNN; *done: it was. */
template <typename T>
static smp_status attention_backward_as_listed(const smp_op_call *call, const attention_ways *ways,
                                               const attention_args<T> &args, bool *done)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    smp__choice *backward = ways->backward;
    smp_gemm *product = ways->product;
    char here[SMP__DNN_NAME_BYTES];
    smp__dnn_name(here);
    *done = false;
    if (attention_begin_trial(cuda, backward))
        SMP_TRY(attention_try_backward(call, backward, args));
    while (!*done && strcmp(product->algorithm[product->chosen], SMP__ATTENTION_TILED) != 0) {
        const char *why = NULL;
        if (smp__choice_way(backward) != ATTENTION_BY_DNN)
            why = backward->why;
        else if (strcmp(product->algorithm[product->chosen], here) != 0)
            why = "another version of it is here";
        else if (attention_backward_by_dnn(cuda, backward, args, call->workspace) != SMP_OK)
            why = smp_last_error();
        *done = !why;
        if (why)
            SMP_TRY(smp__gemm_refuse(cuda, product, "cuDNN", why));
    }
    product->runs++;
    return SMP_OK;
}

#endif
