/* load_balance: a router's logits [T, experts] as they are, whose gradient gets that of a loss
 * which is least where all experts are chosen alike (Shazeer et al. 2017, in the form of Fedus et
 * al., "Switch", 2021):
 *   coefficient * experts * sum over experts of f P,
 * f the share of a sample's choices that are the expert's (a constant), P its mean share of the
 * softmax; the mean over the samples of a step. The loss itself is not added to what is reported.
 * With the top_k of the expert_dispatch after it. Devices that each have a part of the tokens add
 * up their choices. O(T * experts * top_k). */
#include "graph/ops/experts/routing.h"

#include <string.h>

#include "graph/math/vector.h"

static const smp_attr_desc ATTRS[] = {
    [SMP__BALANCE_TOP_K] = {"top_k", SMP_ATTR_INT, false, 2, 1, INT32_MAX, NULL},
    [SMP__BALANCE_COEFFICIENT] = {"coefficient", SMP_ATTR_FLOAT, false, 0.01, 0, 1e6, NULL},
    [SMP__BALANCE_DEVICES] = {"devices", SMP_ATTR_INT, false, 1, 1, SMP__MOST_DEVICES, NULL},
    [SMP__BALANCE_AXIS] = {"axis", SMP_ATTR_INT, false, 0, 0, 1, NULL},
    {0},
};

static smp_status infer(smp_infer *infer)
{
    SMP_TRY(smp_infer_dims(infer, 0, 2, 2));
    SMP_TRY(smp__infer_like_input(infer));
    if (infer->attr[SMP__BALANCE_TOP_K].i > infer->in[0]->shape.dim[1])
        return smp_infer_fail(infer, "top_k: %lld of the %lld experts of '%s'",
                              (long long)infer->attr[SMP__BALANCE_TOP_K].i,
                              (long long)infer->in[0]->shape.dim[1], infer->in[0]->name);
    return SMP_OK;
}

static smp__routing routing_of(const smp_graph *graph, const smp_op *op)
{
    const int64_t *logits = smp__in(graph, op, 0)->shape.dim;
    return (smp__routing){.tokens = logits[0],
                          .experts = logits[1],
                          .top_k = op->attr[SMP__BALANCE_TOP_K].i,
                          .capacity = logits[0],
                          .own = logits[1]};
}

/* Choices by expert, [batch][experts], of this device, and after them those of all. */
static int64_t gathered_bytes(const smp_op *op, const smp__routing *r, int64_t batch)
{
    return (1 + op->attr[SMP__BALANCE_DEVICES].i) * batch * r->experts * (int64_t)sizeof(float);
}

static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    const smp__routing r = routing_of(graph, op);
    if (op->attr[SMP__BALANCE_COEFFICIENT].f > 0)
        *needs =
            (smp_op_needs){.input_grad_in = 1,
                           .workspace_bytes = gathered_bytes(op, &r, batch) + smp__route_bytes(&r)};
}

static void cuda_needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *out)
{
    const smp__routing r = routing_of(graph, op);
    needs(graph, op, batch, out);
    if (out->workspace_bytes > 0)
        out->workspace_bytes =
            gathered_bytes(op, &r, batch) + smp__device_route_bytes(&r, batch, false);
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    const smp__routing r = routing_of(graph, op);
    smp__work_elementwise(graph, op, batch, 0, 26, work);
    work->backward_input_flops += smp__route_flops(&r, false, batch);
    if (op->attr[SMP__BALANCE_COEFFICIENT].f > 0)
        work->backward_input_exchange =
            smp_op_exchange_each(op->attr[SMP__BALANCE_DEVICES].i, batch * r.experts);
}

/* How many choices are each expert's, [batch][experts], of all devices' tokens; integers. */
static smp_status count_choices(const smp_op_call *call, const smp__routing *r, smp__route *route,
                                float *own, float *all)
{
    const int64_t n = call->batch * r->experts, devices = call->op->attr[SMP__BALANCE_DEVICES].i;
    const float *logits = call->in[0];
    const smp_op_group *group;
    SMP_TRY(smp__group_of(call, devices, &group));
    for (int64_t b = 0; b < call->batch; b++) {
        /* with room for all: used counts the choices */
        smp__route_sample(r, logits + b * r->tokens * r->experts, false, route);
        for (int64_t e = 0; e < r->experts; e++)
            own[b * r->experts + e] = (float)route->used[e];
    }
    SMP_TRY(group->all_gather(group->context, own, all, n));
    for (int64_t device = 1; device < devices; device++)
        smp__accumulate(all, all + device * n, n);
    return SMP_OK;
}

/* Adds the gradient of one sample. scale: experts / tokens in the loss of a sample; each: the part
 * of a choice. share: [experts]. */
static void add_gradient(const smp__routing *r, const float *logits, const float *chosen,
                         float each, float scale, float *share, float *dlogits)
{
    for (int64_t t = 0; t < r->tokens; t++, logits += r->experts, dlogits += r->experts) {
        float sum = smp__exp_row(share, logits, smp__max(logits, r->experts), r->experts), mean = 0;
        smp__scale(share, 1 / sum, r->experts);
        for (int64_t e = 0; e < r->experts; e++)
            mean += chosen[e] * each * share[e];
        for (int64_t e = 0; e < r->experts; e++)
            dlogits[e] += scale * share[e] * (chosen[e] * each - mean);
    }
}

static smp_status backward_input(const smp_op_call *call)
{
    const smp__routing r = routing_of(call->graph, call->op);
    const double coefficient = call->op->attr[SMP__BALANCE_COEFFICIENT].f;
    const int64_t sample = r.tokens * r.experts, devices = call->op->attr[SMP__BALANCE_DEVICES].i;
    const int64_t tokens = devices * r.tokens, n = call->batch * r.experts;
    if (!call->din[0])
        return SMP_OK;
    memcpy(call->din[0], call->dout[0], (size_t)(call->batch * sample) * sizeof(float));
    if (!(coefficient > 0))
        return SMP_OK;
    float *own = call->workspace, *chosen = own + n;
    smp__route route = smp__route_at(&r, chosen + devices * n);
    SMP_TRY(count_choices(call, &r, &route, own, chosen));
    const int64_t samples =
        call->step.samples > 0 ? call->step.samples : call->batch; /* measured */
    const double scale = coefficient * (double)r.experts / ((double)tokens * (double)samples);
    for (int64_t b = 0; b < call->batch - call->padding; b++)
        add_gradient(&r, (const float *)call->in[0] + b * sample, chosen + b * r.experts,
                     1.0f / (float)(tokens * r.top_k), (float)scale, route.share,
                     call->din[0] + b * sample);
    return SMP_OK;
}

static const smp_split_rule SPLITS[] = {
    {"positions", .in = {SMP_CELL_DIM0}, .out = SMP_CELL_DIM0},
    {"zigzag", .in = {SMP_CELL_ZIGZAG}, .out = SMP_CELL_ZIGZAG},
    {0},
};

const smp_op_kind smp__op_load_balance = {
    .name = "load_balance",
    .summary = "a router's logits, whose gradient makes its experts be chosen alike",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [6, 3]}\n"
              "ops:\n"
              "  - {op: load_balance, name: op, in: x, out: y, coefficient: 0}\n",
    .min_in = 1,
    .max_in = 1,
    .attrs = ATTRS,
    .infer = infer,
    .needs = {[SMP_BACKEND_CPU] = needs, [SMP_BACKEND_CUDA] = cuda_needs},
    .work = work,
    .split = SPLITS,
    .cpu = {.forward = smp__copy_forward, .backward_input = backward_input},
};
