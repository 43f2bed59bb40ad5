/* Attention by cuDNN or by the tiled kernels (graph/ops/dnn_choice.cuh), forward and backward
 * apart. Forward takes the first way that is not refused. Backward by cuDNN needs a workspace of
 * the T x T matrix, so it is a choice only where calls have that: where the graph's `products` ask
 * for it, so that plans count it, and where ways are measured. Its name in the list of products has
 * the heads of a device and the samples of a micro-batch: stages and replicas take one way for one
 * attention, and devices that share its heads take ours unless that part was measured. */
#ifndef SMP_GRAPH_OPS_ATTENTION_CHOICE_CUH
#define SMP_GRAPH_OPS_ATTENTION_CHOICE_CUH

#include "graph/ops/attention/attention.cuh"

#include <initializer_list>

#include "graph/cuda/cuda_attention_dnn.h"
#include "graph/ops/dnn_choice.cuh"

struct attention_state {
    smp__choice *forward; // NULL: the tiled kernels
    smp_dnn_product backward;
};

static smp_dnn_ways<smp__dnn_attention> *attention_ways_of(const smp__choice *choice)
{
    return smp_dnn_ways_of<smp__dnn_attention>(choice);
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
    smp__dnn_name((*out)->name[SMP_BY_DNN]);
    snprintf((*out)->name[SMP_BY_OURS], SMP__CHOICE_NAME, "%s", SMP__ATTENTION_TILED);
    return smp_dnn_add_ways(cuda, *out, smp__dnn_attention_create(cuda, &at, batch),
                            smp__dnn_attention_destroy);
}

/* Backward where calls have no workspace for cuDNN: ours alone is listed, which is what runs. */
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
                                            int64_t batch, bool only_dnn, smp_dnn_product *of)
{
    char about[SMP__CHOICE_ABOUT];
    bool is_new;
    smp__attention_about(about, SMP__ATTENTION_BACKWARD, cuda->precision, &at, batch);
    SMP_TRY(smp__choice_find(cuda->choices, about, &of->choice, &is_new));
    of->ours = SMP__ATTENTION_TILED;
    if (is_new)
        SMP_TRY(smp_dnn_add_ways(
            cuda, of->choice,
            smp__dnn_attention_create_backward(
                cuda, &at, batch, smp__attention_dnn_bytes(&at, batch) - SMP__DNN_ALIGNMENT),
            smp__dnn_attention_destroy));
    return smp_dnn_list<smp__dnn_attention>(cuda, about, only_dnn, of);
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
        smp_trial_worse(smp_float(out[t * a.out.stride + x]),
                        smp_float(b.out.at[t * b.out.stride + x]), smp_trial_allowed<T>, &worst);
    }
    for (int t = threadIdx.x; t < b.queries; t += SMP_BLOCK)
        smp_trial_worse(lse[t], b.lse[t], 1e-3f * (1 + fabsf(b.lse[t])), &worst);
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

template <typename T> static smp_status attention_fill_inputs(const smp_op_call *call)
{
    for (int i = 0; i < call->op->n_in; i++)
        SMP_TRY(smp_fill_trial(smp_cuda_of(call), static_cast<T *>(const_cast<void *>(call->in[i])),
                               call->batch * smp__in(call->graph, call->op, i)->elements,
                               (uint32_t)i));
    return SMP_OK;
}

/* Refuses what cannot be run; the choice's `differs` is told of the rest. */
template <typename T>
static smp_status attention_try(const smp_op_call *call, smp__choice *choice,
                                const attention_args<T> &args)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    SMP_TRY(attention_fill_inputs<T>(call));
    if (!smp_dnn_has_run<smp__dnn_attention>(choice, attention_by_dnn(cuda, choice, args)))
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
        SMP_LAUNCH(smp_trial_rows<T>, 1, SMP_BLOCK, 0, cuda->stream, of.at, of.stride, own[i].at,
                   own[i].stride, rows, columns, differs);
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
    SMP_TRY(smp_fill_trial(cuda, args.dout.at, args.batch * args.dout.sample,
                           (uint32_t)call->op->n_in));
    SMP_TRY(attention_forward(cuda, args));
    if (!smp_dnn_has_run<smp__dnn_attention>(
            backward, attention_backward_by_dnn(cuda, backward, args, call->workspace)))
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
static smp_status attention_backward_as_listed(const smp_op_call *call, const smp_dnn_product &of,
                                               const attention_args<T> &args, bool *done)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    if (smp_dnn_begins_trial(cuda, of.choice))
        SMP_TRY(attention_try_backward(call, of.choice, args));
    const auto run = [&] {
        return attention_backward_by_dnn(cuda, of.choice, args, call->workspace);
    };
    return smp_dnn_as_listed(cuda, of, run, done);
}

#endif
