/* A graph run forward and backward once, op by op, by this thread or by one thread per device; the
 * plainest executor there can be, for tests of split graphs. */
#ifndef SMP_TESTS_GRAPH_SPLIT_SPLIT_RUN_H
#define SMP_TESTS_GRAPH_SPLIT_SPLIT_RUN_H

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/base/random.h"
#include "graph/base/text.h"
#include "graph/model/op.h"
#include "graph/split/graph_split.h"
#include "tests/graph/split/whole_index.h"

#ifndef SPLIT_DEVICES
#define SPLIT_DEVICES 4
#endif
enum { MOST_DEVICES = SPLIT_DEVICES };

/* Whose kernels are called, with arrays of floats in host memory, and for what target graphs are
 * made: the CPU's, unless tests/cuda/split_device.h has said otherwise. */
#ifndef SPLIT_KERNELS
#define SPLIT_KERNELS(kind) ((kind)->cpu)
#define SPLIT_ERROR 4e-6 /* of a gradient, relative to the largest of its weight */
#define SPLIT_NETWORK_ERROR 1e-5
#define SPLIT_NETWORKS true
#define SPLIT_PATTERNS true
#define SPLIT_BATCH 3
#define SPLIT_TARGET ((smp_target){SMP_BACKEND_CPU, SMP_PRECISION_FP32})
#define SPLIT_RUNS_HERE true
#define SPLIT_SETUP NULL
#define SPLIT_TEARDOWN NULL
#endif

typedef struct exchange {
    pthread_barrier_t barrier;
    int size;
    const float *posted[MOST_DEVICES];
} exchange;

typedef struct device {
    const smp_graph *graph;
    int64_t batch;
    smp_op_group group;
    exchange *exchange; /* NULL: alone */
    float *got;         /* of a shift under way */
    int64_t n_got;
    int32_t by;
    const smp_op_group *used;  /* what operators get: that of the exchange, or another one */
    float **value;             /* [tensors]; int32 too */
    float **grad;              /* [tensors] */
    float **weight;            /* [weights] */
    float **wgrad;             /* [uses] */
    void **aux;                /* [ops] */
    void **state;              /* [ops] */
    int64_t hits[SMP_OP_HITS]; /* of the last op that counts some */
    int64_t messages, bytes;   /* in all, that `group` has sent in the last call */
    smp_status status;
} device;

static inline float *floats(int64_t n)
{
    float *p = aligned_alloc(64, ((size_t)n * sizeof(float) + 127) / 64 * 64);
    assert_non_null(p);
    memset(p, 0, (size_t)n * sizeof(float));
    return p;
}

static inline int64_t tensor_values(const smp_graph *graph, int32_t tensor, int64_t batch)
{
    const smp_tensor *t = &graph->tensor[tensor];
    return t->batched ? t->elements * batch : t->elements;
}

/* Everybody's array stands until everybody has read it. */
static inline void post(device *d, const float *own)
{
    d->exchange->posted[d->group.index] = own;
    pthread_barrier_wait(&d->exchange->barrier);
}

static inline void done(device *d)
{
    pthread_barrier_wait(&d->exchange->barrier);
}

/* So many floats to each other device. */
static inline void note_sent(device *d, int64_t n)
{
    d->messages += d->exchange->size - 1;
    d->bytes += (d->exchange->size - 1) * n * 4;
}

static inline smp_status run_all_reduce(void *context, float *values, int64_t n)
{
    device *d = context;
    const int64_t share = (n + d->exchange->size - 1) / d->exchange->size;
    note_sent(d, share); /* as exec/group/op_group.c: to be added up, then the sums */
    note_sent(d, share);
    float *sum = floats(n);
    post(d, values);
    for (int i = 0; i < d->exchange->size; i++)
        for (int64_t e = 0; e < n; e++)
            sum[e] += d->exchange->posted[i][e];
    done(d);
    memcpy(values, sum, (size_t)n * sizeof(float));
    free(sum);
    return SMP_OK;
}

static inline smp_status run_all_gather(void *context, const float *own, float *all, int64_t n)
{
    device *d = context;
    note_sent(d, n);
    post(d, own);
    for (int i = 0; i < d->exchange->size; i++)
        memcpy(all + i * n, d->exchange->posted[i], (size_t)n * sizeof(float));
    done(d);
    return SMP_OK;
}

static inline smp_status run_reduce_scatter(void *context, const float *all, float *own, int64_t n)
{
    device *d = context;
    note_sent(d, n);
    post(d, all);
    memset(own, 0, (size_t)n * sizeof(float));
    for (int i = 0; i < d->exchange->size; i++)
        for (int64_t e = 0; e < n; e++)
            own[e] += d->exchange->posted[i][d->group.index * n + e];
    done(d);
    return SMP_OK;
}

static inline smp_status run_all_to_all(void *context, const float *all, float *got, int64_t n)
{
    device *d = context;
    note_sent(d, n);
    post(d, all);
    for (int i = 0; i < d->exchange->size; i++)
        memcpy(got + i * n, d->exchange->posted[i] + d->group.index * n, (size_t)n * sizeof(float));
    done(d);
    return SMP_OK;
}

static inline smp_status run_shift(void *context, const float *own, float *got, int64_t n,
                                   int32_t by)
{
    device *d = context;
    d->messages++;
    d->bytes += n * 4;
    d->exchange->posted[d->group.index] = own;
    d->got = got;
    d->n_got = n;
    d->by = by;
    return SMP_OK;
}

static inline smp_status run_shifted(void *context)
{
    device *d = context;
    const int size = d->exchange->size;
    pthread_barrier_wait(&d->exchange->barrier);
    memcpy(d->got, d->exchange->posted[(d->group.index + size - d->by) % size],
           (size_t)d->n_got * sizeof(float));
    done(d);
    return SMP_OK;
}

/* Weights and inputs are zero. */
static inline void device_open(device *d, const smp_graph *graph, int64_t batch, exchange *between,
                               int index)
{
    const smp_graph *g = graph;
    *d = (device){.graph = g, .batch = batch, .exchange = between};
    d->group = (smp_op_group){.size = between ? between->size : 1,
                              .index = index,
                              .context = d,
                              .all_reduce = run_all_reduce,
                              .all_gather = run_all_gather,
                              .reduce_scatter = run_reduce_scatter,
                              .all_to_all = run_all_to_all,
                              .shift = run_shift,
                              .shifted = run_shifted};
    d->used = between ? &d->group : NULL;
    d->value = calloc((size_t)g->n_tensor, sizeof *d->value);
    d->grad = calloc((size_t)g->n_tensor, sizeof *d->grad);
    d->weight = calloc((size_t)g->n_param + 1, sizeof *d->weight);
    d->wgrad = calloc((size_t)g->n_use + 1, sizeof *d->wgrad);
    d->aux = calloc((size_t)g->n_op, sizeof *d->aux);
    d->state = calloc((size_t)g->n_op, sizeof *d->state);
    for (int32_t t = 0; t < g->n_tensor; t++) {
        int64_t n = tensor_values(g, t, batch);
        d->value[t] = floats(n);
        d->grad[t] = floats(n);
    }
    for (int32_t p = 0; p < g->n_param; p++)
        d->weight[p] = floats(g->param[p].elements);
    for (int32_t u = 0; u < g->n_use; u++)
        d->wgrad[u] = floats(g->param[g->use[u].param].elements);
    for (int32_t o = 0; o < g->n_op; o++) {
        smp_op_needs needs;
        smp_op_needs_get(g, &g->op[o], batch, &needs);
        d->aux[o] = floats(needs.aux_bytes * batch / 4 + 1);
        const smp_op_kernels kernels = SPLIT_KERNELS(g->op[o].kind);
        if (kernels.prepare)
            assert_int_equal(kernels.prepare(g, &g->op[o], batch, NULL, &d->state[o]), SMP_OK);
    }
}

static inline void device_close(device *d)
{
    const smp_graph *g = d->graph;
    for (int32_t o = 0; o < g->n_op; o++) {
        const smp_op_kernels kernels = SPLIT_KERNELS(g->op[o].kind);
        if (kernels.release)
            kernels.release(d->state[o]);
        free(d->aux[o]);
    }
    for (int32_t t = 0; t < g->n_tensor; t++) {
        free(d->value[t]);
        free(d->grad[t]);
    }
    for (int32_t p = 0; p < g->n_param; p++)
        free(d->weight[p]);
    for (int32_t u = 0; u < g->n_use; u++)
        free(d->wgrad[u]);
    free(d->value);
    free(d->grad);
    free(d->weight);
    free(d->wgrad);
    free(d->aux);
    free(d->state);
}

/* Rows that go to experts and back take as many rounds as a router makes uneven. */
static inline bool sends_by_values(const smp_op *op)
{
    return strcmp(op->kind->name, "expert_send") == 0 ||
           strcmp(op->kind->name, "expert_return") == 0;
}

/* What a call has sent is what `work` says of it, its messages of their mean length. */
static inline smp_status check_sent(const device *d, const smp_op *op, bool forward)
{
    smp_op_work work;
    smp_op_work_get(d->graph, op, d->batch, &work);
    const smp_op_exchange said = forward ? work.forward_exchange : work.backward_input_exchange;
    if (d->used != &d->group || sends_by_values(op) ||
        (d->messages == said.messages && d->bytes / (said.messages + !said.messages) == said.bytes))
        return SMP_OK;
    return smp_fail(SMP_ERR_FAILED,
                    "op '%s' (%s) has sent %lld messages of %lld bytes in all, not %lld of %lld",
                    op->name, op->kind->name, (long long)d->messages, (long long)d->bytes,
                    (long long)said.messages, (long long)said.bytes);
}

static inline smp_status device_op(device *d, int32_t o, bool forward)
{
    const smp_graph *g = d->graph;
    const smp_op *op = &g->op[o];
    const smp_op_kernels kernels = SPLIT_KERNELS(op->kind);
    const void *in[SMP_OP_MAX_IN];
    const float *param[SMP_OP_MAX_PARAM], *dout[SMP_OP_MAX_OUT];
    float *din[SMP_OP_MAX_IN], *dparam[SMP_OP_MAX_PARAM];
    void *out[SMP_OP_MAX_OUT];
    smp_op_needs needs;
    smp_status status = SMP_OK;
    smp_op_needs_get(g, op, d->batch, &needs);
    void *workspace = floats(needs.workspace_bytes / 4 + 1);
    for (int i = 0; i < op->n_in; i++) {
        const smp_tensor *t = &g->tensor[op->in[i]];
        in[i] = d->value[op->in[i]];
        din[i] = !forward && t->needs_grad ? floats(tensor_values(g, op->in[i], d->batch)) : NULL;
    }
    for (int i = 0; i < op->n_param; i++) {
        param[i] = d->weight[op->param[i]];
        dparam[i] = d->wgrad[op->use[i]];
    }
    for (int k = 0; k < op->n_out; k++) {
        out[k] = d->value[op->out + k];
        dout[k] = d->grad[op->out + k];
    }
    smp_op_call call = {
        .graph = g,
        .op = op,
        .batch = d->batch,
        .state = d->state[o],
        .in = in,
        .out = out,
        .param = param,
        .aux = d->aux[o],
        .workspace = workspace,
        .dout = dout,
        .din = din,
        .dparam = dparam,
        .step = {.training = true, .seed = 5, .turn = smp_op_turn(1, 0), .samples = d->batch},
        .group = d->used};
    d->messages = d->bytes = 0;
    if (forward)
        status = kernels.forward(&call);
    if (!forward && kernels.backward_input)
        status = kernels.backward_input(&call);
    for (int i = 0; i < op->n_in && !forward && op->kind->passes_dout; i++)
        if (din[i])
            memcpy(din[i], dout[0], (size_t)tensor_values(g, op->in[i], d->batch) * sizeof(float));
    if (status == SMP_OK)
        status = check_sent(d, op, forward);
    call.hits = d->hits;
    if (status == SMP_OK && forward && op->kind->counts_hits) /* on request: again, with them */
        status = kernels.forward(&call);
    if (!forward && status == SMP_OK && kernels.backward_weight && op->n_param > 0)
        status = kernels.backward_weight(&call);
    for (int i = 0; i < op->n_in; i++) {
        int64_t n = tensor_values(g, op->in[i], d->batch);
        for (int64_t e = 0; din[i] && e < n; e++)
            d->grad[op->in[i]][e] += din[i][e];
        free(din[i]);
    }
    free(workspace);
    return status;
}

/* A pthread's function: forward, then backward from the loss. */
static inline void *device_run(void *context)
{
    device *d = context;
    const smp_graph *g = d->graph;
    for (int32_t o = 0; o < g->n_op && d->status == SMP_OK; o++)
        d->status = device_op(d, o, true);
    d->grad[g->loss][0] = 1;
    for (int32_t o = g->n_op - 1; o >= 0 && d->status == SMP_OK; o--)
        if (smp_op_has_gradient(g, &g->op[o]))
            d->status = device_op(d, o, false);
    if (d->status != SMP_OK)
        fprintf(stderr, "%s\n", smp_last_error());
    return NULL;
}

/* A number in [-1, 1) that a name and a place decide. */
static inline float value_at(const char *name, int64_t index)
{
    uint64_t h = smp_random_mix(smp_hash(3, name, strlen(name)) + (uint64_t)index);
    return (float)((double)(h >> 11) * 0x1p-52 - 1);
}

/* A value that the reader of an int32 input takes. */
static inline int32_t index_at(const smp_graph *g, int32_t tensor, float unit)
{
    const smp_consumer *reader = &g->consumer[g->consumer_begin[tensor]];
    const smp_op *op = &g->op[reader->op];
    int64_t min = 0, max = 0;
    assert_true(op->kind->index_range(g, op, reader->slot, &min, &max));
    return (int32_t)(min + (int64_t)((unit + 1) / 2.0001f * (float)(max - min + 1)));
}

static inline void device_fill(device *d)
{
    const smp_graph *g = d->graph;
    for (int32_t t = 0; t < g->n_input; t++) {
        int64_t n = tensor_values(g, t, d->batch);
        for (int64_t e = 0; e < n; e++) {
            float value = value_at(g->tensor[t].name, e);
            if (g->tensor[t].dtype == SMP_I32)
                ((int32_t *)d->value[t])[e] = index_at(g, t, value);
            else
                d->value[t][e] = value;
        }
    }
    for (int32_t p = 0; p < g->n_param; p++) {
        const smp_param *param = &g->param[p];
        const float scale = param->shape.n_dim > 1 ? 0.2f : 1; /* no softmax of one answer */
        for (int64_t e = 0; e < param->elements; e++)
            d->weight[p][e] =
                scale * value_at(param->name, whole_index(&param->shape, param->part, e));
    }
}

#endif
