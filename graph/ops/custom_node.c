/* What the kinds of registered operators do: each call of graph/model/op.h is one of a function of
 * the user's (smp.h), with a node: the operator at one place of a model, described by the user's
 * `describe`. The executor's calls find theirs in the state; who asks for needs or work has it
 * described again. */
#include "graph/ops/custom_op.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/ops/ops.h"

#define MAX_BYTES ((int64_t)1 << 40)

_Static_assert(SMP_CUSTOM_MAX_DIMS == (int)SMP_MAX_DIMS &&
                   SMP_CUSTOM_MAX_INPUTS == (int)SMP_OP_MAX_IN &&
                   SMP_CUSTOM_MAX_OUTPUTS == (int)SMP_OP_MAX_OUT &&
                   SMP_CUSTOM_MAX_WEIGHTS == (int)SMP_OP_MAX_PARAM,
               "smp.h states the limits of graph/model/op.h");

typedef smp_status custom_function(const smp_custom_call *call);

typedef struct custom_node {
    smp_custom_node node; /* first: what the user's functions see */
    const smp__custom_op *custom;
    smp_where where;
    bool failed; /* smp_op_fail has recorded why */
    smp_custom_value attr[SMP_CUSTOM_MAX_ATTRS];
    smp_custom_tensor in[SMP_CUSTOM_MAX_INPUTS], out[SMP_CUSTOM_MAX_OUTPUTS];
    smp_custom_weight weight[SMP_CUSTOM_MAX_WEIGHTS];
} custom_node;

static smp_status fail_node(const custom_node *n, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static smp_status fail_node_v(const custom_node *n, const char *format, va_list args)
{
    char text[1024];
    if (vsnprintf(text, sizeof text, format, args) < 0)
        text[0] = '\0';
    return smp_fail_at(n->where, "op '%s' (%s): %s", n->node.name, n->custom->op.name, text);
}

static smp_status fail_node(const custom_node *n, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    smp_status status = fail_node_v(n, format, args);
    va_end(args);
    return status;
}

smp_status smp_op_fail(const smp_custom_node *node, const char *format, ...)
{
    custom_node *n = (custom_node *)node; /* the library's own memory */
    va_list args;
    va_start(args, format);
    smp_status status = fail_node_v(n, format, args);
    va_end(args);
    n->failed = true;
    return status;
}

/* What a function of the user's returned. One that fails by itself leaves no message. */
static smp_status ended(const custom_node *n, smp_status status, const char *function)
{
    if (status == SMP_OK || n->failed)
        return status;
    return fail_node(n, "%s returned %d, and not by smp_op_fail: no reason is known", function,
                     (int)status);
}

static smp_shape shape_of(int n_dim, const int64_t *dim)
{
    smp_shape shape = {.n_dim = n_dim};
    for (int d = 0; d < n_dim; d++)
        shape.dim[d] = dim[d];
    return shape;
}

/* Inputs and outputs are set one by one afterwards: there is room for many. */
static void begin_node(custom_node *n, const smp_op *op, const smp_attr_value *attr,
                       smp_where where, int n_in, int n_out)
{
    n->custom = (const smp__custom_op *)op->kind;
    n->where = where;
    n->failed = false;
    memset(n->weight, 0, sizeof n->weight);
    n->node = (smp_custom_node){.name = op->name,
                                .attr = n->attr,
                                .n_in = n_in,
                                .in = n->in,
                                .n_out = n_out,
                                .out = n->out,
                                .weight = n->weight};
    for (int a = 0; n->custom->attrs[a].name; a++) {
        if (n->custom->attrs[a].type == SMP_ATTR_FLOAT)
            n->attr[a].f = attr[a].f;
        else
            n->attr[a].i = attr[a].i;
    }
}

static void set_input(custom_node *n, int i, const smp_tensor *t)
{
    n->in[i] = (smp_custom_tensor){
        .is_int = t->dtype == SMP_I32, .n_dim = t->shape.n_dim, .elements = t->elements};
    for (int d = 0; d < t->shape.n_dim; d++)
        n->in[i].dim[d] = t->shape.dim[d];
}

static smp_status check_dims(const custom_node *n, const char *what, int n_dim, const int64_t *dim,
                             int64_t *elements)
{
    if (n_dim < 0 || n_dim > SMP_CUSTOM_MAX_DIMS)
        return fail_node(n, "describe: %s has %d dimensions, expected at most %d", what, n_dim,
                         SMP_CUSTOM_MAX_DIMS);
    const smp_shape shape = shape_of(n_dim, dim);
    *elements = smp_shape_elements(&shape);
    if (*elements > 0)
        return SMP_OK;
    char text[160];
    return fail_node(n, "describe: %s has shape %s, expected 1 to 2^40 elements", what,
                     smp_shape_format(text, sizeof text, &shape));
}

static smp_status check_outputs(custom_node *n)
{
    for (int k = 0; k < n->node.n_out; k++) {
        char what[32];
        snprintf(what, sizeof what, "output %d", k);
        if (n->out[k].is_int || (n->custom->op.loss && n->out[k].n_dim != 0))
            return fail_node(n, "describe: output %d: expected float%s", k,
                             n->custom->op.loss ? " without a dimension: it is a loss" : "");
        SMP_TRY(check_dims(n, what, n->out[k].n_dim, n->out[k].dim, &n->out[k].elements));
    }
    return SMP_OK;
}

static smp_status check_weight(const custom_node *n, int i)
{
    const smp_custom_weight *w = &n->weight[i];
    char what[SMP__CUSTOM_NAME + 16];
    int64_t elements;
    bool known = smp__custom_name(w->name);
    for (int k = 0; known && k < i; k++)
        known = strcmp(n->weight[k].name, w->name) != 0;
    if (!known)
        return fail_node(
            n,
            "describe: weight %d is named '%.60s', expected a name of its own of small "
            "letters, digits and _, at most %d",
            i, w->name ? w->name : "", SMP__CUSTOM_NAME);
    snprintf(what, sizeof what, "weight '%s'", w->name);
    if ((unsigned)w->init > SMP_CUSTOM_UNIFORM || !(w->init_scale >= 0 && w->init_scale <= 1e30f))
        return fail_node(n,
                         "describe: %s: init %d with scale %g, expected one of "
                         "smp_custom_init and 0 to 1e30",
                         what, (int)w->init, (double)w->init_scale);
    return check_dims(n, what, w->n_dim, w->dim, &elements);
}

static smp_status check_weights(const custom_node *n)
{
    const int count = n->node.n_weight;
    if (count < 0 || count > SMP_CUSTOM_MAX_WEIGHTS)
        return fail_node(n, "describe: %d weights, expected at most %d", count,
                         SMP_CUSTOM_MAX_WEIGHTS);
    for (int i = 0; i < count; i++)
        SMP_TRY(check_weight(n, i));
    if (count > 0 && !n->custom->op.backward_weight)
        return fail_node(n, "it has weights, and the operator no backward_weight");
    return SMP_OK;
}

static bool fits(int64_t bytes)
{
    return bytes >= 0 && bytes <= MAX_BYTES;
}

static bool is_flops(double flops)
{
    return flops >= 0 && flops <= 1e30; /* false for NaN */
}

static smp_status check_costs(const custom_node *n)
{
    const smp_custom_node *d = &n->node;
    const uint64_t in = ((uint64_t)1 << d->n_in) - 1, out = ((uint64_t)1 << d->n_out) - 1;
    if (d->input_grad_in & ~in || d->weight_grad_in & ~in || d->input_grad_out & ~out)
        return fail_node(n,
                         "describe: backward reads inputs %#x and %#x and outputs %#x, but there "
                         "are %d and %d",
                         (unsigned)d->input_grad_in, (unsigned)d->weight_grad_in,
                         (unsigned)d->input_grad_out, d->n_in, d->n_out);
    if (!fits(d->aux_bytes) || !fits(d->workspace_bytes) || !fits(d->workspace_sample_bytes))
        return fail_node(n,
                         "describe: aux %lld, workspace %lld and %lld a sample: expected 0 to "
                         "2^40 bytes",
                         (long long)d->aux_bytes, (long long)d->workspace_bytes,
                         (long long)d->workspace_sample_bytes);
    if (!is_flops(d->forward_flops) || !is_flops(d->backward_input_flops) ||
        !is_flops(d->backward_weight_flops))
        return fail_node(n, "describe: %g, %g and %g flops: expected 0 to 1e30", d->forward_flops,
                         d->backward_input_flops, d->backward_weight_flops);
    return SMP_OK;
}

/* Describes a node whose inputs are set. */
static smp_status describe(custom_node *n)
{
    const smp_custom_op *op = &n->custom->op;
    smp_custom_node *d = &n->node;
    for (int i = 0; i < d->n_in; i++)
        if (!n->in[i].is_int && !op->backward_input)
            return fail_node(n, "input %d is float, and the operator has no backward_input", i);
    for (int k = 0; k < d->n_out; k++) {
        n->out[k] = d->n_in > 0 && !op->loss ? n->in[0] : (smp_custom_tensor){0};
        n->out[k].is_int = 0;
    }
    d->input_grad_in = d->weight_grad_in = (uint32_t)(((uint64_t)1 << d->n_in) - 1);
    if (op->describe)
        SMP_TRY(ended(n, op->describe(d), "describe"));
    SMP_TRY(check_outputs(n));
    SMP_TRY(check_weights(n));
    return check_costs(n);
}

static smp_status open_node(const smp_graph *graph, const smp_op *op, custom_node *n)
{
    begin_node(n, op, op->attr, smp_op_where(graph, op), op->n_in, op->n_out);
    for (int i = 0; i < op->n_in; i++)
        set_input(n, i, smp__in(graph, op, i));
    return describe(n);
}

static smp_init_kind init_of(smp_custom_init init)
{
    return init == SMP_CUSTOM_ZERO     ? SMP_INIT_ZERO
           : init == SMP_CUSTOM_ONE    ? SMP_INIT_ONE
           : init == SMP_CUSTOM_NORMAL ? SMP_INIT_NORMAL
                                       : SMP_INIT_UNIFORM;
}

static smp_status infer(smp_infer *infer)
{
    const smp_custom_op *op = &((const smp__custom_op *)infer->op->kind)->op;
    const int outputs = op->outputs > 0 ? op->outputs : 1;
    custom_node n;
    if (infer->n_out != outputs)
        return smp_infer_fail(infer, "got %d outputs, expected %d", infer->n_out, outputs);
    begin_node(&n, infer->op, infer->attr, infer->where, infer->n_in, infer->n_out);
    for (int i = 0; i < infer->n_in; i++)
        set_input(&n, i, infer->in[i]);
    SMP_TRY(describe(&n));
    for (int k = 0; k < outputs && outputs > 1; k++)
        infer->out[k].shape = shape_of(n.out[k].n_dim, n.out[k].dim);
    infer->out_shape = shape_of(n.out[0].n_dim, n.out[0].dim);
    infer->out_batched = !op->loss;
    infer->n_param = n.node.n_weight;
    for (int i = 0; i < infer->n_param; i++)
        infer->param[i] = (smp_param_decl){.role = n.weight[i].name,
                                           .shape = shape_of(n.weight[i].n_dim, n.weight[i].dim),
                                           .init = init_of(n.weight[i].init),
                                           .init_scale = n.weight[i].init_scale};
    return SMP_OK;
}

static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    custom_node n;
    if (open_node(graph, op, &n) != SMP_OK)
        return; /* it said something else when the model was read */
    const bool input = n.custom->op.backward_input, weights = n.node.n_weight > 0;
    *needs = (smp_op_needs){
        .input_grad_in = input ? n.node.input_grad_in : 0,
        .input_grad_out = input ? n.node.input_grad_out : 0,
        .weight_grad_in = weights ? n.node.weight_grad_in : 0,
        .input_grad_aux = input && n.node.aux_bytes > 0,
        .weight_grad_aux = weights && n.node.aux_bytes > 0,
        .aux_bytes = n.node.aux_bytes,
        .workspace_bytes = n.node.workspace_bytes + batch * n.node.workspace_sample_bytes,
    };
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    custom_node n;
    if (open_node(graph, op, &n) != SMP_OK)
        return;
    smp__work_bytes(graph, op, batch, work);
    work->forward_flops = (double)batch * n.node.forward_flops;
    work->backward_input_flops = (double)batch * n.node.backward_input_flops;
    work->backward_weight_flops = (double)batch * n.node.backward_weight_flops;
}

static smp_status prepare(const smp_graph *graph, const smp_op *op, int64_t batch, void *device,
                          void **state)
{
    (void)batch, (void)device;
    custom_node *n = malloc(sizeof *n);
    if (!n)
        return smp_fail_memory(sizeof *n);
    smp_status status = open_node(graph, op, n);
    if (status == SMP_OK)
        *state = n;
    else
        free(n);
    return status;
}

static void release(void *state)
{
    free(state);
}

static uint64_t random_of(const smp_op_call *call)
{
    return smp_random_mix(smp__random_key(call) + smp_random_mix(call->step.turn));
}

static smp_status run_function(const smp_op_call *call, custom_function *function, const char *name)
{
    custom_node *n = call->state;
    float *out[SMP_CUSTOM_MAX_OUTPUTS];
    for (int k = 0; k < n->node.n_out; k++)
        out[k] = call->out[k];
    const smp_custom_call c = {
        .node = &n->node,
        .batch = call->batch,
        .padding = call->padding,
        .training = call->step.training,
        .random = random_of(call),
        .in = call->in,
        .out = out,
        .weight = call->param,
        .aux = call->aux,
        .workspace = call->workspace,
        .out_grad = call->dout,
        .in_grad = call->din,
        .weight_grad = call->dparam,
    };
    n->failed = false;
    return ended(n, function(&c), name);
}

static smp_status forward(const smp_op_call *call)
{
    return run_function(call, ((const smp__custom_op *)call->op->kind)->op.forward, "forward");
}

static smp_status backward_input(const smp_op_call *call)
{
    return run_function(call, ((const smp__custom_op *)call->op->kind)->op.backward_input,
                        "backward_input");
}

static smp_status backward_weight(const smp_op_call *call)
{
    return run_function(call, ((const smp__custom_op *)call->op->kind)->op.backward_weight,
                        "backward_weight");
}

const smp_op_kind smp__custom_kind = {
    .registered = true,
    .random = true,
    .infer = infer,
    .needs = {needs},
    .work = work,
    .cpu = {.prepare = prepare,
            .release = release,
            .forward = forward,
            .backward_input = backward_input,
            .backward_weight = backward_weight},
};
