/* The kernels of a GPU behind arrays of floats in host memory: what tests/graph/split/split_run.h
 * calls where it is included after this. Every call has device memory of its own, full of NaN
 * before, which holds what `needs` names and no more; the threads that are devices take turns on
 * the one GPU, and exchange through host memory. */
#ifndef SMP_TESTS_CUDA_SPLIT_DEVICE_H
#define SMP_TESTS_CUDA_SPLIT_DEVICE_H

#include <pthread.h>
#include <stdio.h>

#include "tests/cuda/device_array.h"

#ifndef SPLIT_PRECISION
#define SPLIT_PRECISION SMP_PRECISION_FP32
#define SPLIT_ERROR 4e-6
#define SPLIT_NETWORK_ERROR 1e-5
#define SPLIT_NETWORKS (!is_brief_emulation()) /* no kernel that a rule does not run, too */
#define SPLIT_PATTERNS true
#endif
#define SPLIT_BATCH 2
#define SPLIT_KERNELS(kind) split_kernels(kind)
#define SPLIT_TARGET ((smp_target){SMP_BACKEND_CUDA, SPLIT_PRECISION})
#define SPLIT_RUNS_HERE there_is_a_device()
#define SPLIT_SETUP split_setup
#define SPLIT_TEARDOWN close_device

typedef enum split_pass { FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT } split_pass;

static pthread_mutex_t split_turn = PTHREAD_MUTEX_INITIALIZER;

static void split_ok(cudaError_t code)
{
    if (code == cudaSuccess)
        return;
    fprintf(stderr, "%s\n", cudaGetErrorString(code));
    abort(); /* a thread may not fail a test */
}

static int split_setup(void **state)
{
    if (open_device(state) != 0)
        return -1;
    cuda.precision = SPLIT_PRECISION;
    return 0;
}

/* What a call has on the device. */
typedef struct split_array {
    void *data;
    int64_t n; /* values */
    smp_dtype dtype;
} split_array;

static split_array split_make(int64_t n, smp_dtype dtype)
{
    split_array a = {.n = n, .dtype = dtype};
    const size_t bytes = (size_t)(n * smp_dtype_bytes(dtype));
    if (n == 0)
        return a;
    split_ok(cudaMalloc(&a.data, bytes));
    split_ok(cudaMemset(a.data, 0xFF, bytes));
    return a;
}

static split_array split_put(const void *host, int64_t n, smp_dtype dtype)
{
    split_array a = split_make(n, dtype);
    uint16_t *halves = smp_dtype_is_half(dtype) ? malloc((size_t)n * 2 + 1) : NULL;
    for (int64_t i = 0; halves && i < n; i++)
        halves[i] = half_bits(dtype, ((const float *)host)[i]);
    if (n > 0)
        split_ok(cudaMemcpy(a.data, halves ? halves : host, (size_t)(n * smp_dtype_bytes(dtype)),
                            cudaMemcpyHostToDevice));
    free(halves);
    return a;
}

static void split_get(const split_array *a, void *host)
{
    const size_t bytes = (size_t)(a->n * smp_dtype_bytes(a->dtype));
    uint16_t *halves = smp_dtype_is_half(a->dtype) ? malloc(bytes + 1) : NULL;
    if (a->n > 0)
        split_ok(cudaMemcpy(halves ? halves : host, a->data, bytes, cudaMemcpyDeviceToHost));
    for (int64_t i = 0; halves && i < a->n; i++)
        ((float *)host)[i] = half_value(a->dtype, halves[i]);
    free(halves);
}

static void split_free(split_array *a)
{
    if (a->data)
        split_ok(cudaFree(a->data));
    *a = (split_array){0};
}

/* Exchanges of device memory: others have their turn while this one waits for them. */
typedef smp_status (*split_move)(void *context, const float *from, float *to, int64_t n);

static smp_status split_exchange(const smp_op_group *inner, split_move move, const float *from,
                                 int64_t n_from, float *to, int64_t n_to, int64_t n)
{
    float *sent = malloc((size_t)n_from * 4 + 1), *got = malloc((size_t)n_to * 4 + 1);
    split_ok(cudaStreamSynchronize(cuda.stream));
    split_ok(cudaMemcpy(sent, from, (size_t)n_from * 4, cudaMemcpyDeviceToHost));
    pthread_mutex_unlock(&split_turn);
    smp_status status = move(inner->context, sent, got, n);
    pthread_mutex_lock(&split_turn);
    split_ok(cudaMemcpy(to, got, (size_t)n_to * 4, cudaMemcpyHostToDevice));
    free(sent);
    free(got);
    return status;
}

static smp_status split_all_reduce(void *context, float *values, int64_t n)
{
    const smp_op_group *inner = context;
    float *host = malloc((size_t)n * 4 + 1);
    split_ok(cudaStreamSynchronize(cuda.stream));
    split_ok(cudaMemcpy(host, values, (size_t)n * 4, cudaMemcpyDeviceToHost));
    pthread_mutex_unlock(&split_turn);
    smp_status status = inner->all_reduce(inner->context, host, n);
    pthread_mutex_lock(&split_turn);
    split_ok(cudaMemcpy(values, host, (size_t)n * 4, cudaMemcpyHostToDevice));
    free(host);
    return status;
}

static smp_status split_all_gather(void *context, const float *own, float *all, int64_t n)
{
    const smp_op_group *inner = context;
    return split_exchange(inner, inner->all_gather, own, n, all, n * inner->size, n);
}

static smp_status split_reduce_scatter(void *context, const float *all, float *own, int64_t n)
{
    const smp_op_group *inner = context;
    return split_exchange(inner, inner->reduce_scatter, all, n * inner->size, own, n, n);
}

static smp_status split_all_to_all(void *context, const float *all, float *got, int64_t n)
{
    const smp_op_group *inner = context;
    return split_exchange(inner, inner->all_to_all, all, n * inner->size, got, n * inner->size, n);
}

/* A shift under way, of this thread's device. */
static _Thread_local struct {
    float *sent, *got, *to;
    int64_t n;
} split_shift;

static smp_status split_shift_begin(void *context, const float *own, float *got, int64_t n,
                                    int32_t by)
{
    const smp_op_group *inner = context;
    split_shift.sent = malloc((size_t)n * 4 + 1);
    split_shift.got = malloc((size_t)n * 4 + 1);
    split_shift.to = got;
    split_shift.n = n;
    split_ok(cudaStreamSynchronize(cuda.stream));
    split_ok(cudaMemcpy(split_shift.sent, own, (size_t)n * 4, cudaMemcpyDeviceToHost));
    return inner->shift(inner->context, split_shift.sent, split_shift.got, n, by);
}

static smp_status split_shift_end(void *context)
{
    const smp_op_group *inner = context;
    pthread_mutex_unlock(&split_turn);
    smp_status status = inner->shifted(inner->context);
    pthread_mutex_lock(&split_turn);
    split_ok(cudaMemcpy(split_shift.to, split_shift.got, (size_t)split_shift.n * 4,
                        cudaMemcpyHostToDevice));
    free(split_shift.sent);
    free(split_shift.got);
    return status;
}

static _Thread_local char split_number[SMP_GROUP_READ];

static smp_status split_read(void *context, const void *from, int64_t bytes)
{
    (void)context;
    split_ok(cudaStreamSynchronize(cuda.stream));
    split_ok(cudaMemcpy(split_number, from, (size_t)bytes, cudaMemcpyDeviceToHost));
    return SMP_OK;
}

static smp_status split_have_read(void *context, void *host, int64_t bytes)
{
    (void)context;
    memcpy(host, split_number, (size_t)bytes);
    return SMP_OK;
}

/* A call's arrays on the device, and their pointers. */
typedef struct split_call {
    split_array in[SMP_OP_MAX_IN], din[SMP_OP_MAX_IN], param[SMP_OP_MAX_PARAM];
    split_array param16[SMP_OP_MAX_PARAM], dparam[SMP_OP_MAX_PARAM];
    split_array out[SMP_OP_MAX_OUT], dout[SMP_OP_MAX_OUT], aux, workspace, hits;
    const void *in_at[SMP_OP_MAX_IN], *param16_at[SMP_OP_MAX_PARAM];
    const float *param_at[SMP_OP_MAX_PARAM], *dout_at[SMP_OP_MAX_OUT];
    float *din_at[SMP_OP_MAX_IN], *dparam_at[SMP_OP_MAX_PARAM];
    void *out_at[SMP_OP_MAX_OUT];
} split_call;

static int64_t split_values(const smp_op_call *call, int32_t tensor)
{
    const smp_tensor *t = &call->graph->tensor[tensor];
    return t->batched ? t->elements * call->batch : t->elements;
}

static void split_put_inputs(const smp_op_call *call, uint32_t wanted, split_call *c)
{
    const smp_op *op = call->op;
    for (int i = 0; i < op->n_in; i++)
        if (wanted >> i & 1) {
            c->in[i] = split_put(call->in[i], split_values(call, op->in[i]),
                                 call->graph->tensor[op->in[i]].dtype);
            c->in_at[i] = c->in[i].data;
        }
    for (int i = 0; i < op->n_param; i++) {
        const int64_t n = call->graph->param[op->param[i]].elements;
        c->param[i] = split_put(call->param[i], n, SMP_F32);
        c->param_at[i] = c->param[i].data;
        if (smp_precision_is_half(cuda.precision))
            c->param16[i] = split_put(call->param[i], n, smp_precision_dtype(cuda.precision));
        c->param16_at[i] = c->param16[i].data;
    }
}

/* Values of the outputs that are wanted (forward: room for them), and gradients. */
static void split_put_outputs(const smp_op_call *call, uint32_t wanted, split_pass pass,
                              split_call *c)
{
    const smp_op *op = call->op;
    for (int k = 0; k < op->n_out; k++) {
        const int64_t n = split_values(call, op->out + k);
        const smp_dtype dtype = call->graph->tensor[op->out + k].dtype;
        if (pass == FORWARD)
            c->out[k] = split_make(n, dtype);
        else if (wanted >> k & 1)
            c->out[k] = split_put(call->out[k], n, dtype);
        if (pass != FORWARD && dtype != SMP_I32)
            c->dout[k] = split_put(call->dout[k], n, dtype);
        c->out_at[k] = c->out[k].data;
        c->dout_at[k] = c->dout[k].data;
    }
}

static void split_put_gradients(const smp_op_call *call, split_pass pass, split_call *c)
{
    const smp_op *op = call->op;
    for (int i = 0; pass == BACKWARD_INPUT && i < op->n_in; i++)
        if (call->din[i]) {
            c->din[i] =
                split_make(split_values(call, op->in[i]), call->graph->tensor[op->in[i]].dtype);
            c->din_at[i] = c->din[i].data;
        }
    for (int i = 0; pass == BACKWARD_WEIGHT && i < op->n_param; i++) {
        c->dparam[i] =
            split_put(call->dparam[i], call->graph->param[op->param[i]].elements, SMP_F32);
        c->dparam_at[i] = c->dparam[i].data;
    }
}

/* Results back to the host, memory freed. */
static void split_take(const smp_op_call *call, split_pass pass, bool kept, split_call *c)
{
    const smp_op *op = call->op;
    for (int k = 0; k < op->n_out; k++) {
        if (pass == FORWARD)
            split_get(&c->out[k], call->out[k]);
        split_free(&c->out[k]);
        split_free(&c->dout[k]);
    }
    for (int i = 0; i < op->n_in; i++) {
        if (c->din[i].data)
            split_get(&c->din[i], call->din[i]);
        split_free(&c->in[i]);
        split_free(&c->din[i]);
    }
    for (int i = 0; i < op->n_param; i++) {
        if (c->dparam[i].data)
            split_get(&c->dparam[i], call->dparam[i]);
        split_free(&c->param[i]);
        split_free(&c->param16[i]);
        split_free(&c->dparam[i]);
    }
    if (pass == (kept ? BACKWARD_INPUT : FORWARD))
        split_get(&c->aux, call->aux);
    if (c->hits.data)
        split_get(&c->hits, call->hits);
    split_free(&c->aux);
    split_free(&c->workspace);
    split_free(&c->hits);
}

static smp_status split_on_device(const smp_op_call *call, split_pass pass)
{
    static const uint32_t all = ~0u;
    const smp_op_kernels *kernels = smp_op_cuda_kernels(call->op->kind);
    const smp_op_group *inner = call->group;
    const smp_op_group group = {.size = inner ? inner->size : 1,
                                .index = inner ? inner->index : 0,
                                .context = (void *)inner,
                                .all_reduce = split_all_reduce,
                                .all_gather = split_all_gather,
                                .reduce_scatter = split_reduce_scatter,
                                .all_to_all = split_all_to_all,
                                .shift = split_shift_begin,
                                .shifted = split_shift_end,
                                .read = split_read,
                                .have_read = split_have_read};
    split_call c = {0};
    smp_op_needs needs;
    pthread_mutex_lock(&split_turn);
    smp_op_needs_get(call->graph, call->op, call->batch, &needs);
    split_put_inputs(call,
                     pass == FORWARD          ? all
                     : pass == BACKWARD_INPUT ? needs.input_grad_in
                                              : needs.weight_grad_in,
                     &c);
    split_put_outputs(call, pass == BACKWARD_INPUT ? needs.input_grad_out : 0, pass, &c);
    split_put_gradients(call, pass, &c);
    const int64_t aux = needs.aux_bytes * call->batch / 4;
    const bool kept = needs.aux_of_backward; /* made by backward_input */
    if (pass == (kept ? BACKWARD_INPUT : FORWARD))
        c.aux = split_make(aux, SMP_F32);
    else if (pass == BACKWARD_INPUT ? needs.input_grad_aux : needs.weight_grad_aux)
        c.aux = split_put(call->aux, aux, SMP_F32);
    c.workspace = split_make((needs.workspace_bytes + 3) / 4, SMP_F32);
    c.hits = split_make(
        pass == FORWARD && call->op->kind->counts_hits && call->hits ? 2 * SMP_OP_HITS : 0,
        SMP_I32);
    smp_op_call made = *call;
    made.device = &cuda;
    made.in = c.in_at;
    made.out = c.out_at;
    made.param = c.param_at;
    made.param16 = smp_precision_is_half(cuda.precision) ? c.param16_at : NULL;
    made.aux = c.aux.data;
    made.workspace = c.workspace.data;
    made.dout = c.dout_at;
    made.din = c.din_at;
    made.dparam = c.dparam_at;
    made.hits = c.hits.data;
    made.group = inner ? &group : NULL;
    smp_status status = pass == FORWARD          ? kernels->forward(&made)
                        : pass == BACKWARD_INPUT ? kernels->backward_input(&made)
                                                 : kernels->backward_weight(&made);
    split_ok(cudaStreamSynchronize(cuda.stream));
    split_take(call, pass, kept, &c);
    pthread_mutex_unlock(&split_turn);
    return status;
}

static smp_status split_forward(const smp_op_call *call)
{
    return split_on_device(call, FORWARD);
}
static smp_status split_backward_input(const smp_op_call *call)
{
    return split_on_device(call, BACKWARD_INPUT);
}
static smp_status split_backward_weight(const smp_op_call *call)
{
    return split_on_device(call, BACKWARD_WEIGHT);
}

static smp_status split_prepare(const smp_graph *graph, const smp_op *op, int64_t batch,
                                void *device, void **state)
{
    (void)device;
    const smp_op_kernels *kernels = smp_op_cuda_kernels(op->kind);
    return kernels->prepare ? kernels->prepare(graph, op, batch, &cuda, state) : SMP_OK;
}

static smp_op_kernels split_kernels(const smp_op_kind *kind)
{
    const smp_op_kernels *kernels = smp_op_cuda_kernels(kind);
    if (!kernels)
        fail_msg("%s has no kernels for a GPU", kind->name);
    return (smp_op_kernels){.prepare = split_prepare,
                            .release = kernels->release,
                            .forward = split_forward,
                            .backward_input = kernels->backward_input ? split_backward_input : NULL,
                            .backward_weight =
                                kernels->backward_weight ? split_backward_weight : NULL};
}

#endif
