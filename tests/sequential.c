/* Plain sequential trainer; see the header. */
#include "tests/sequential.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "exec/device/device.h"
#include "exec/optimizer/lr_schedule.h"
#include "exec/optimizer/optimizer.h"
#include "graph/model/op.h"

typedef struct op_state {
    void *kernel;
    void *aux;
    void *workspace;
    float *temporary[SMP_OP_MAX_IN]; /* gradient contributions after a tensor's first */
} op_state;

struct sequential {
    const smp_graph *graph;
    const smp_device *device;
    void *device_context;
    const smp_optimizer *optimizer;
    smp_options options;
    int64_t batch;
    int microbatches, blocks;
    int64_t step, following;
    void **value;     /* [n_tensor]; model inputs point into the caller's arrays */
    float **gradient; /* [n_tensor] or NULL */
    bool *touched;    /* [n_tensor] has the gradient its first contribution? */
    op_state *op;
    float **weight, **sum, **state[2]; /* [n_param] */
    double *kept;                      /* [n_param] of an optimizer that keeps a number for each */
    float **accumulator;               /* [n_use] of the micro-batches of a block */
    float **block;                     /* [blocks * n_use] */
    float seed;
};

static void *zeroed(int64_t bytes)
{
    size_t size = ((size_t)bytes + 63) / 64 * 64 + 64;
    void *memory = aligned_alloc(64, size);
    if (memory)
        memset(memory, 0, size);
    return memory;
}

static smp_status create_op(sequential *s, int32_t index)
{
    const smp_op *op = &s->graph->op[index];
    smp_op_needs needs;
    smp_op_needs_get(s->graph, op, s->batch, &needs);
    s->op[index].aux = needs.aux_bytes > 0 ? zeroed(needs.aux_bytes * s->batch) : NULL;
    s->op[index].workspace = needs.workspace_bytes > 0 ? zeroed(needs.workspace_bytes) : NULL;
    for (int32_t k = 0; k < op->n_in; k++)
        if (s->graph->tensor[op->in[k]].needs_grad)
            s->op[index].temporary[k] = zeroed(smp_tensor_bytes(s->graph, op->in[k], s->batch));
    if (!op->kind->cpu.prepare)
        return SMP_OK;
    return op->kind->cpu.prepare(s->graph, op, s->batch, NULL, &s->op[index].kernel);
}

smp_status sequential_create(const smp_graph *graph, int64_t batch, int microbatches,
                             const smp_options *options, sequential **out)
{
    sequential *s = calloc(1, sizeof(*s));
    if (!s)
        return smp_fail_memory(sizeof(*s));
    *out = s;
    s->graph = graph;
    s->device = smp_device_find("cpu");
    s->optimizer = smp_optimizer_find(options->optimizer.name);
    s->options = *options;
    s->batch = batch;
    s->microbatches = microbatches;
    s->blocks = options->planning.gradient_blocks > 0 ? options->planning.gradient_blocks
                                                      : options->planning.ddp;
    if (s->blocks < 1 || microbatches % s->blocks != 0)
        s->blocks = 1;
    SMP_TRY(s->device->open(&(smp_device_options){0}, &s->device_context));
    s->value = calloc((size_t)graph->n_tensor, sizeof(void *));
    s->gradient = calloc((size_t)graph->n_tensor, sizeof(float *));
    s->touched = calloc((size_t)graph->n_tensor, sizeof(bool));
    s->op = calloc((size_t)graph->n_op, sizeof(op_state));
    s->weight = calloc((size_t)graph->n_param + 1, sizeof(float *));
    s->sum = calloc((size_t)graph->n_param + 1, sizeof(float *));
    s->state[0] = calloc((size_t)graph->n_param + 1, sizeof(float *));
    s->state[1] = calloc((size_t)graph->n_param + 1, sizeof(float *));
    s->kept = calloc((size_t)graph->n_param + 1, sizeof(double));
    s->accumulator = calloc((size_t)graph->n_use + 1, sizeof(float *));
    for (int32_t t = graph->n_input; t < graph->n_tensor; t++) {
        s->value[t] = zeroed(smp_tensor_bytes(graph, t, batch));
        if (graph->tensor[t].dtype == SMP_F32) /* one that adds nothing to the loss stays 0 */
            s->gradient[t] = zeroed(smp_tensor_bytes(graph, t, batch));
    }
    for (int32_t i = 0; i < graph->n_param; i++) {
        s->weight[i] = zeroed(graph->param[i].elements * 4);
        s->sum[i] = zeroed(graph->param[i].elements * 4);
        for (int k = 0; k < 2; k++)
            s->state[k][i] = zeroed(graph->param[i].elements * 4);
    }
    for (int32_t i = 0; i < graph->n_use; i++)
        s->accumulator[i] = zeroed(graph->param[graph->use[i].param].elements * 4);
    s->block = calloc((size_t)s->blocks * (size_t)graph->n_use + 1, sizeof(float *));
    for (int32_t i = 0; i < s->blocks * graph->n_use; i++)
        s->block[i] = zeroed(graph->param[graph->use[i % graph->n_use].param].elements * 4);
    for (int32_t i = 0; i < graph->n_op; i++)
        SMP_TRY(create_op(s, i));
    return SMP_OK;
}

void sequential_destroy(sequential *s)
{
    if (!s)
        return;
    for (int32_t t = s->graph->n_input; t < s->graph->n_tensor; t++) {
        free(s->value[t]);
        free(s->gradient[t]);
    }
    for (int32_t i = 0; i < s->graph->n_op; i++) {
        if (s->op[i].kernel)
            s->graph->op[i].kind->cpu.release(s->op[i].kernel);
        free(s->op[i].aux);
        free(s->op[i].workspace);
        for (int k = 0; k < SMP_OP_MAX_IN; k++)
            free(s->op[i].temporary[k]);
    }
    for (int32_t i = 0; i < s->graph->n_param; i++) {
        free(s->weight[i]);
        free(s->sum[i]);
        free(s->state[0][i]);
        free(s->state[1][i]);
    }
    for (int32_t i = 0; i < s->graph->n_use; i++)
        free(s->accumulator[i]);
    for (int32_t i = 0; i < s->blocks * s->graph->n_use; i++)
        free(s->block[i]);
    free(s->block);
    free(s->value);
    free(s->gradient);
    free(s->touched);
    free(s->op);
    free(s->weight);
    free(s->sum);
    free(s->kept);
    free(s->state[0]);
    free(s->state[1]);
    free(s->accumulator);
    s->device->close(s->device_context);
    free(s);
}

float *sequential_weight(sequential *s, int32_t param)
{
    return s->weight[param];
}

static void fill(const sequential *s, int32_t index, int microbatch, smp_op_call *call)
{
    const smp_op *op = &s->graph->op[index];
    call->graph = s->graph;
    call->op = op;
    call->batch = s->batch;
    call->state = s->op[index].kernel;
    call->aux = s->op[index].aux;
    call->workspace = s->op[index].workspace;
    call->out = &s->value[op->out];
    call->step = (smp_op_step){.training = true,
                               .seed = s->options.runtime.seed,
                               .turn = smp_op_turn(s->step + 1, microbatch),
                               .following = s->following};
}

static smp_status forward(sequential *s, int32_t index, int microbatch)
{
    const smp_op *op = &s->graph->op[index];
    const void *in[SMP_OP_MAX_IN];
    const float *param[SMP_OP_MAX_PARAM];
    smp_op_call call = {.in = in, .param = param};
    fill(s, index, microbatch, &call);
    for (int32_t k = 0; k < op->n_in; k++)
        in[k] = s->value[op->in[k]];
    for (int32_t k = 0; k < op->n_param; k++)
        param[k] = s->weight[op->param[k]];
    return op->kind->cpu.forward(&call);
}

static smp_status backward(sequential *s, int32_t index, int microbatch)
{
    const smp_op *op = &s->graph->op[index];
    const void *in[SMP_OP_MAX_IN];
    float *din[SMP_OP_MAX_IN];
    const float *param[SMP_OP_MAX_PARAM], *dout[SMP_OP_MAX_OUT];
    float *dparam[SMP_OP_MAX_PARAM];
    smp_op_call call = {.in = in, .dout = dout, .din = din, .param = param, .dparam = dparam};
    fill(s, index, microbatch, &call);
    for (int32_t k = 0; k < op->n_out; k++)
        dout[k] = op->out + k == s->graph->loss ? &s->seed : s->gradient[op->out + k];
    bool wanted = false, direct[SMP_OP_MAX_IN] = {false};
    for (int32_t k = 0; k < op->n_in; k++) {
        int32_t tensor = op->in[k];
        in[k] = s->value[tensor];
        din[k] = NULL;
        if (!s->graph->tensor[tensor].needs_grad)
            continue;
        wanted = true;
        direct[k] = !s->touched[tensor];
        s->touched[tensor] = true;
        din[k] = direct[k] ? s->gradient[tensor] : s->op[index].temporary[k];
    }
    for (int32_t k = 0; k < op->n_param; k++) {
        param[k] = s->weight[op->param[k]];
        dparam[k] = s->accumulator[op->use[k]];
    }
    if (op->n_param > 0)
        SMP_TRY(op->kind->cpu.backward_weight(&call));
    if (wanted && !op->kind->passes_dout)
        SMP_TRY(op->kind->cpu.backward_input(&call));
    for (int32_t k = 0; k < op->n_in && op->kind->passes_dout; k++)
        if (din[k])
            memcpy(din[k], dout[0], (size_t)smp_tensor_bytes(s->graph, op->in[k], s->batch));
    for (int32_t k = 0; k < op->n_in; k++)
        if (din[k] && !direct[k])
            SMP_TRY(s->device->add(s->device_context, SMP_F32, s->gradient[op->in[k]], din[k],
                                   smp_tensor_bytes(s->graph, op->in[k], s->batch) / 4));
    return SMP_OK;
}

/* Of a loss with int32 targets, which come straight from the inputs: those of micro-batch mb that
 * are not ignored, that is, not negative. Of another loss: samples. */
static int64_t targets(const sequential *s, const void *const *inputs, int mb)
{
    const smp_op *op = &s->graph->op[s->graph->tensor[s->graph->loss].producer];
    int64_t count = 0;
    for (int32_t k = 0; k < op->n_in; k++) {
        const smp_tensor *tensor = &s->graph->tensor[op->in[k]];
        int64_t n = tensor->elements * s->batch;
        const int32_t *value = tensor->dtype == SMP_I32 ? inputs[op->in[k]] : NULL;
        if (!value)
            continue;
        for (int64_t i = mb * n; i < (mb + 1) * n; i++)
            count += value[i] >= 0;
        return count;
    }
    return s->batch;
}

/* A block ends: what its micro-batches added up to is kept. */
static void keep_block(sequential *s, int block)
{
    const int32_t n_use = s->graph->n_use;
    for (int32_t i = 0; i < n_use; i++) {
        const size_t bytes = (size_t)s->graph->param[s->graph->use[i].param].elements * 4;
        memcpy(s->block[block * n_use + i], s->accumulator[i], bytes);
        memset(s->accumulator[i], 0, bytes);
    }
}

/* Level by level: neighbours in pairs, what is left over goes up as it is. */
static smp_status add_blocks(sequential *s)
{
    const int32_t n_use = s->graph->n_use;
    int n = s->blocks;
    for (; n > 1; n = (n + 1) / 2)
        for (int b = 0; b < n; b += 2)
            for (int32_t i = 0; i < n_use; i++) {
                const int64_t elements = s->graph->param[s->graph->use[i].param].elements;
                float *sum = s->block[b * n_use + i];
                if (b + 1 < n)
                    SMP_TRY(s->device->add(s->device_context, SMP_F32, sum,
                                           s->block[(b + 1) * n_use + i], elements));
                memcpy(s->block[b / 2 * n_use + i], sum, (size_t)elements * 4);
            }
    for (int32_t i = 0; i < n_use; i++)
        memcpy(s->accumulator[i], s->block[i],
               (size_t)s->graph->param[s->graph->use[i].param].elements * 4);
    return SMP_OK;
}

/* The gradient of a weight: its accumulators added in op order. */
static smp_status sum_gradients(sequential *s)
{
    for (int32_t i = 0; i < s->graph->n_param; i++) {
        const smp_param *p = &s->graph->param[i];
        memcpy(s->sum[i], s->accumulator[p->use_begin], (size_t)p->elements * 4);
        for (int32_t use = p->use_begin + 1; use < p->use_end; use++)
            SMP_TRY(s->device->add(s->device_context, SMP_F32, s->sum[i], s->accumulator[use],
                                   p->elements));
    }
    return SMP_OK;
}

/* Of values in pieces, in their order. */
static smp_status add_squares(sequential *s, const float *values, int64_t n, double *sum)
{
    *sum = 0.0;
    for (int64_t at = 0; at < n; at += SMP_SQUARE_PIECE) {
        double piece;
        const smp_squares of = {values + at, n - at < SMP_SQUARE_PIECE ? n - at : SMP_SQUARE_PIECE,
                                &piece};
        SMP_TRY(s->device->square_sums(s->device_context, SMP_F32, &of, 1));
        *sum += piece;
    }
    return SMP_OK;
}

/* Of an optimizer that looks at whole weights: the direction, in the gradient's place, and what the
 * norms of both are worth. */
static smp_status find_trust(sequential *s, int32_t param, smp_update *args)
{
    smp_update measured = *args;
    double weight, direction;
    args->trust = 1.0f;
    if (!s->optimizer->trust)
        return SMP_OK;
    measured.direction = s->sum[param];
    if (s->optimizer->measure)
        SMP_TRY(s->device->update(s->device_context, s->optimizer, &measured));
    SMP_TRY(add_squares(s, args->weight, args->elements, &weight));
    SMP_TRY(add_squares(s, args->grad, args->elements, &direction));
    if (s->optimizer->keep || s->graph->param[param].shape.n_dim >= 2)
        args->trust = smp_trust_of(s->optimizer, args, weight, direction);
    s->kept[param] = args->kept;
    return SMP_OK;
}

static smp_status update(sequential *s)
{
    SMP_TRY(sum_gradients(s));
    double squares = 0.0;
    for (int32_t i = 0; s->options.optimizer.clip_norm > 0.0f && i < s->graph->n_param; i++) {
        double square;
        SMP_TRY(add_squares(s, s->sum[i], s->graph->param[i].elements, &square));
        squares += s->graph->param[i].running ? 0.0 : square;
    }
    double norm = sqrt(squares), limit = (double)s->options.optimizer.clip_norm;
    for (int32_t i = 0; i < s->graph->n_param; i++) {
        const smp_param *p = &s->graph->param[i];
        if (p->running) {
            SMP_TRY(
                s->device->add(s->device_context, SMP_F32, s->weight[i], s->sum[i], p->elements));
            continue;
        }
        smp_update_settings settings = smp_update_settings_of(&s->options.optimizer);
        settings.weight_decay = p->decay ? settings.weight_decay : 0.0f;
        smp_update args = {.weight = s->weight[i],
                           .grad = s->sum[i],
                           .state = {s->state[0][i], s->state[1][i]},
                           .elements = p->elements,
                           .grad_scale = norm > limit ? (float)(limit / norm) : 1.0f,
                           .lr = smp_learning_rate(&s->options.optimizer, s->step + 1),
                           .kept = s->kept[i],
                           .step = s->step + 1,
                           .settings = &settings};
        SMP_TRY(find_trust(s, i, &args));
        SMP_TRY(s->device->update(s->device_context, s->optimizer, &args));
    }
    for (int32_t i = 0; i < s->graph->n_use; i++)
        memset(s->accumulator[i], 0, (size_t)s->graph->param[s->graph->use[i].param].elements * 4);
    return SMP_OK;
}

smp_status sequential_step_of(sequential *s, int microbatches, const void *const *inputs,
                              double *loss)
{
    const smp_graph *graph = s->graph;
    const int part = s->microbatches / s->blocks;
    double sum = 0.0;
    int64_t all = 0;
    for (int mb = 0; mb < microbatches; mb++)
        all += targets(s, inputs, mb);
    for (int mb = 0; mb < microbatches; mb++) {
        int64_t own = targets(s, inputs, mb);
        s->seed = (float)own / (float)all;
        s->following = microbatches - mb - 1;
        for (int32_t i = 0; i < graph->n_input; i++)
            s->value[i] = (char *)inputs[i] + mb * smp_tensor_bytes(graph, i, s->batch);
        memset(s->touched, 0, (size_t)graph->n_tensor * sizeof(bool));
        for (int32_t i = 0; i < graph->n_op; i++)
            SMP_TRY(forward(s, i, mb));
        sum += *(const float *)s->value[graph->loss] * ((double)own * microbatches / (double)all);
        for (int32_t i = graph->n_op - 1; i >= 0; i--)
            if (smp_op_has_gradient(graph, &graph->op[i]))
                SMP_TRY(backward(s, i, mb));
        if ((mb + 1) % part == 0 || mb + 1 == microbatches)
            keep_block(s, mb / part);
    }
    for (int mb = microbatches + part - 1; mb / part < s->blocks; mb += part)
        keep_block(s, mb / part); /* nothing was added */
    SMP_TRY(add_blocks(s));
    SMP_TRY(update(s));
    s->step++;
    *loss = sum / microbatches;
    return SMP_OK;
}

smp_status sequential_step(sequential *s, const void *const *inputs, double *loss)
{
    return sequential_step_of(s, s->microbatches, inputs, loss);
}
