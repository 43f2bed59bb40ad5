/* expert_dispatch: x [T, d] and the router's logits [T, experts] -> [experts, places, d]: to each
 * expert the tokens that chose it, zeroes where it has room left. Which tokens these are:
 * routing.h. The logits have no gradient from here. O(T * d * top_k + experts * places *
 * d). */
#include "graph/ops/experts/routing.h"

#include <string.h>

#include "graph/math/vector.h"

static smp_status infer(smp_infer *infer)
{
    return smp__infer_dispatch(infer, false);
}

smp_status smp__infer_dispatch(smp_infer *infer, bool by_tokens)
{
    smp__routing r;
    char got[128];
    SMP_TRY(smp_infer_float(infer, SMP__ROUTED));
    SMP_TRY(smp_infer_dims(infer, SMP__ROUTED, 2, 2));
    SMP_TRY(smp__infer_routing(infer, by_tokens, &r));
    const smp_shape *x = &infer->in[SMP__ROUTED]->shape;
    if (x->dim[0] != r.tokens)
        return smp_infer_fail(infer, "'%s' is %s, expected %lld rows, as the logits have",
                              infer->in[SMP__ROUTED]->name, smp_shape_format(got, sizeof got, x),
                              (long long)r.tokens);
    infer->out_dtype = SMP_F32;
    infer->out_shape = (smp_shape){3, {r.own, r.capacity, x->dim[1]}};
    return SMP_OK;
}

static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    (void)batch;
    smp__routing r = smp__experts_routing(graph, op);
    *needs =
        (smp_op_needs){.input_grad_in = 1u << SMP__ROUTER, .workspace_bytes = smp__route_bytes(&r)};
}

static void cuda_needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *out)
{
    const smp__routing r = smp__experts_routing(graph, op);
    needs(graph, op, batch, out);
    out->workspace_bytes = smp__device_route_bytes(&r, batch, false);
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    smp__routing r = smp__experts_routing(graph, op);
    double rows = (double)(batch * r.tokens * r.top_k);
    smp__work_bytes(graph, op, batch, work);
    work->forward_flops = smp__route_flops(&r, false, batch);
    work->backward_input_flops =
        work->forward_flops + rows * (double)smp__columns(smp__in(graph, op, SMP__ROUTED));
}

static smp_status forward(const smp_op_call *call)
{
    const smp_shape *x = &smp__in(call->graph, call->op, SMP__ROUTED)->shape;
    const smp__routing r = smp__experts_routing(call->graph, call->op);
    const int64_t d = x->dim[1], choices = r.tokens * r.top_k;
    smp__route route = smp__route_at(&r, call->workspace);
    memset(call->out[0], 0, (size_t)smp__count(smp__out(call->graph, call->op), call->batch) * 4);
    for (int64_t b = 0; b < call->batch; b++) {
        const float *in = (const float *)call->in[SMP__ROUTED] + b * r.tokens * d;
        float *out = (float *)call->out[0] + b * r.own * r.capacity * d;
        smp__route_sample(&r, (const float *)call->in[SMP__ROUTER] + b * r.tokens * r.experts,
                          false, &route);
        for (int64_t i = 0; i < choices; i++) {
            const int64_t row = smp__route_row(&r, &route, i);
            if (row >= 0)
                memcpy(out + row * d, in + i / r.top_k * d, (size_t)d * sizeof *out);
        }
    }
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    const smp_tensor *x = smp__in(call->graph, call->op, SMP__ROUTED);
    const smp_tensor *logits = smp__in(call->graph, call->op, SMP__ROUTER);
    const smp__routing r = smp__routing_of(call->graph, call->op, &logits->shape);
    const int64_t d = x->shape.dim[1], choices = r.tokens * r.top_k;
    smp__route route = smp__route_at(&r, call->workspace);
    if (call->din[SMP__ROUTER])
        memset(call->din[SMP__ROUTER], 0, (size_t)smp__count(logits, call->batch) * sizeof(float));
    if (!call->din[SMP__ROUTED])
        return SMP_OK;
    memset(call->din[SMP__ROUTED], 0, (size_t)smp__count(x, call->batch) * sizeof(float));
    for (int64_t b = 0; b < call->batch; b++) {
        float *dx = call->din[SMP__ROUTED] + b * r.tokens * d;
        const float *dout = call->dout[0] + b * r.own * r.capacity * d;
        smp__route_sample(&r, (const float *)call->in[SMP__ROUTER] + b * r.tokens * r.experts,
                          false, &route);
        for (int64_t i = 0; i < choices; i++) {
            const int64_t row = smp__route_row(&r, &route, i);
            if (row >= 0)
                smp__accumulate(dx + i / r.top_k * d, dout + row * d, d);
        }
    }
    return SMP_OK;
}

static const smp_split_rule SPLITS[] = {
    {"experts", .in = {SMP_CELL_SHARED, SMP_CELL_WHOLE}, .out = SMP_CELL_DIM0},
    {"features", .in = {SMP_CELL_DIM1, SMP_CELL_WHOLE}, .out = SMP_CELL_DIM2},
    {"positions", .in = {SMP_CELL_DIM0, SMP_CELL_DIM0}, .out = SMP_CELL_DIM0,
     .kind = "expert_send"},
    {"zigzag", .in = {SMP_CELL_ZIGZAG, SMP_CELL_ZIGZAG}, .out = SMP_CELL_DIM0,
     .kind = "expert_send"},
    {0},
};

const smp_op_kind smp__op_expert_dispatch = {
    .name = "expert_dispatch",
    .summary = "the tokens of each expert of a mixture, chosen by a router's logits",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [6, 4]}\n"
              "  logits: {dtype: float32, shape: [6, 3]}\n"
              "ops:\n"
              "  - {op: expert_dispatch, name: op, in: [x, logits], out: y, capacity: 0.75}\n",
    .min_in = 2,
    .max_in = 2,
    .chooses_by = 1 << 1,
    .attrs = smp__routing_attrs,
    .infer = infer,
    .needs = {[SMP_BACKEND_CPU] = needs, [SMP_BACKEND_CUDA] = cuda_needs},
    .work = work,
    .split = SPLITS,
    .cpu = {.forward = forward, .backward_input = backward_input},
};
