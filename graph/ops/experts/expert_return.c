/* expert_return: an expert_combine whose experts and tokens are both split over devices: what this
 * device's experts made, [experts / devices, places, d], and the logits of its part of the tokens,
 * [T, experts] -> [T, d], of what the experts of all devices made (expert_exchange.h). With the
 * attributes of expert_combine, which becomes this one; of one device it is the same.
 *
 * The rows that have come are saved, choice by choice: no more values than the places, and the
 * backward pass sends but once. */
#include "graph/ops/experts/expert_exchange.h"

#include <string.h>

#include "graph/math/vector.h"

static smp_status infer(smp_infer *infer)
{
    return smp__infer_combine(infer, true);
}

static int64_t columns_of(const smp_graph *graph, const smp_op *op)
{
    return smp__columns(smp__out(graph, op));
}

static smp__routing routing_of(const smp_graph *graph, const smp_op *op)
{
    return smp__routing_by_tokens(graph, op, &smp__in(graph, op, SMP__ROUTER)->shape);
}

static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    const smp__routing r = routing_of(graph, op);
    const int64_t d = columns_of(graph, op);
    *needs = (smp_op_needs){.input_grad_in = 1u << SMP__ROUTER,
                            .input_grad_aux = true,
                            .aux_bytes = smp__experts_saved(graph, op) +
                                         r.tokens * r.top_k * d * (int64_t)sizeof(float),
                            .workspace_bytes = smp__experts_bytes(graph, op, batch, d)};
}

static void cuda_needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *out)
{
    needs(graph, op, batch, out);
    out->aux_bytes = smp__device_exchange_saved(graph, op, true);
    out->workspace_bytes =
        smp__device_exchange_at(graph, op, batch, true, true, true, NULL, NULL).bytes;
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    const smp__routing r = routing_of(graph, op);
    double rows = (double)(batch * r.tokens * r.top_k);
    double values = rows * (double)columns_of(graph, op);
    smp__work_bytes(graph, op, batch, work);
    work->forward_flops = 2 * values + smp__route_flops(&r, true, batch);
    work->backward_input_flops = 3 * values + 3 * rows + smp__route_flops(&r, true, batch);
    work->forward_exchange = smp__experts_work(graph, op, batch, columns_of(graph, op), true);
    work->backward_input_exchange =
        smp__experts_work(graph, op, batch, columns_of(graph, op), false);
}

/* [batch * tokens * top_k][d], after the counts. */
static float *saved_rows(const smp_op_call *call)
{
    return (float *)((char *)call->aux + call->batch * smp__experts_saved(call->graph, call->op));
}

static smp_status forward(const smp_op_call *call)
{
    smp__expert_exchange x;
    float *rows = saved_rows(call), *out = call->out[0];
    const int64_t d = columns_of(call->graph, call->op);
    SMP_TRY(smp__experts_begin(call, d, true, true, &x));
    SMP_TRY(smp__experts_return(&x, call->in[SMP__ROUTED], false, rows));
    memset(out, 0, (size_t)(call->batch * x.r.tokens * d) * sizeof *out);
    for (int64_t i = 0; i < call->batch * x.r.tokens * x.r.top_k; i++) {
        float *to = out + i / x.r.top_k * d;
        for (int64_t c = 0; x.place[i] >= 0 && c < d; c++)
            to[c] += x.route.gate[i] * rows[i * d + c];
    }
    return SMP_OK;
}

/* The gradient of the logits of sample b. */
static void logits_gradient(const smp_op_call *call, const smp__expert_exchange *x, int64_t b)
{
    const smp__routing *r = &x->r;
    const smp__route route = smp__experts_route(x, b);
    const float *rows = saved_rows(call);
    for (int64_t t = 0; t < r->tokens; t++) {
        const int64_t token = b * r->tokens + t;
        float dgate[SMP__MOST_TOP_K];
        for (int64_t k = 0; k < r->top_k; k++) {
            const int64_t i = token * r->top_k + k;
            dgate[k] = x->place[i] >= 0
                           ? smp__dot(call->dout[0] + token * x->d, rows + i * x->d, x->d)
                           : 0;
        }
        smp__route_gradient(r, (const float *)call->in[SMP__ROUTER] + token * r->experts, &route, t,
                            dgate, call->din[SMP__ROUTER] + token * r->experts);
    }
}

static smp_status backward_input(const smp_op_call *call)
{
    smp__expert_exchange x;
    SMP_TRY(smp__experts_begin(call, columns_of(call->graph, call->op), true, false, &x));
    for (int64_t b = 0; call->din[SMP__ROUTER] && b < call->batch; b++)
        logits_gradient(call, &x, b);
    return call->din[SMP__ROUTED]
               ? smp__experts_send(&x, call->dout[0], true, call->din[SMP__ROUTED])
               : SMP_OK;
}

const smp_op_kind smp__op_expert_return = {
    .name = "expert_return",
    .summary = "what the experts of a mixture made, back at its tokens on all devices",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [3, 3, 4]}\n"
              "  logits: {dtype: float32, shape: [6, 3]}\n"
              "ops:\n"
              "  - {op: expert_return, name: op, in: [x, logits], out: y, capacity: 0.75}\n",
    .min_in = 2,
    .max_in = 2,
    .chooses_by = 1 << 1,
    .attrs = smp__routing_attrs,
    .infer = infer,
    .needs = {[SMP_BACKEND_CPU] = needs, [SMP_BACKEND_CUDA] = cuda_needs},
    .work = work,
    .cpu = {.forward = forward, .backward_input = backward_input},
};
