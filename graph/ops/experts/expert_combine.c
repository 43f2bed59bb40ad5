/* expert_combine: what the experts made, [experts, places, d], and the router's logits [T, experts]
 * -> [T, d]: of each token the sum of what its experts made, times their gates; nothing of one that
 * had no place. With the attributes of expert_dispatch before it (routing.h). O(T * d *
 * top_k). */
#include "graph/ops/experts/routing.h"

#include <string.h>

#include "graph/math/vector.h"

static smp_status infer(smp_infer *infer)
{
    return smp__infer_combine(infer, false);
}

smp_status smp__infer_combine(smp_infer *infer, bool by_tokens)
{
    smp__routing r;
    char got[128];
    SMP_TRY(smp_infer_float(infer, SMP__ROUTED));
    SMP_TRY(smp_infer_dims(infer, SMP__ROUTED, 3, 3));
    SMP_TRY(smp__infer_routing(infer, by_tokens, &r));
    const smp_shape *y = &infer->in[SMP__ROUTED]->shape;
    if (r.top_k > SMP__MOST_TOP_K)
        return smp_infer_fail(infer, "top_k: %lld, expected at most %d", (long long)r.top_k,
                              (int)SMP__MOST_TOP_K);
    if (y->dim[0] != r.own || y->dim[1] != r.capacity)
        return smp_infer_fail(infer,
                              "'%s' is %s, expected %lld experts of %lld places, as an "
                              "expert_dispatch with the same attributes makes",
                              infer->in[SMP__ROUTED]->name, smp_shape_format(got, sizeof got, y),
                              (long long)r.own, (long long)r.capacity);
    infer->out_dtype = SMP_F32;
    infer->out_shape = (smp_shape){2, {r.tokens, y->dim[2]}};
    return SMP_OK;
}

static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    (void)batch;
    smp__routing r = smp__experts_routing(graph, op);
    *needs = (smp_op_needs){.input_grad_in = 1u << SMP__ROUTED | 1u << SMP__ROUTER,
                            .workspace_bytes = smp__route_bytes(&r)};
}

static void cuda_needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *out)
{
    const smp__routing r = smp__experts_routing(graph, op);
    needs(graph, op, batch, out);
    out->workspace_bytes = smp__device_route_bytes(&r, batch, true);
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    smp__routing r = smp__experts_routing(graph, op);
    double rows = (double)(batch * r.tokens * r.top_k);
    double values = rows * (double)smp__columns(smp__out(graph, op));
    smp__work_bytes(graph, op, batch, work);
    work->forward_flops = 2 * values + smp__route_flops(&r, true, batch);
    work->backward_input_flops = 3 * values + 3 * rows + smp__route_flops(&r, true, batch);
}

static smp_status forward(const smp_op_call *call)
{
    const smp__routing r = smp__experts_routing(call->graph, call->op);
    const int64_t d = smp__columns(smp__out(call->graph, call->op)), choices = r.tokens * r.top_k;
    smp__route route = smp__route_at(&r, call->workspace);
    memset(call->out[0], 0, (size_t)(call->batch * r.tokens * d) * sizeof(float));
    for (int64_t b = 0; b < call->batch; b++) {
        const float *y = (const float *)call->in[SMP__ROUTED] + b * r.own * r.capacity * d;
        float *out = (float *)call->out[0] + b * r.tokens * d;
        smp__route_sample(&r, (const float *)call->in[SMP__ROUTER] + b * r.tokens * r.experts, true,
                          &route);
        for (int64_t i = 0; i < choices; i++) {
            const int64_t row = smp__route_row(&r, &route, i);
            float *to = out + i / r.top_k * d;
            for (int64_t c = 0; row >= 0 && c < d; c++)
                to[c] += route.gate[i] * y[row * d + c];
        }
    }
    return SMP_OK;
}

/* The backward of one sample; dy, dlogits: NULL where they are not wanted. */
static void backward_sample(const smp__routing *r, smp__route *route, int64_t d, const float *y,
                            const float *logits, const float *dout, float *dy, float *dlogits)
{
    float dgate[SMP__MOST_TOP_K];
    smp__route_sample(r, logits, true, route);
    for (int64_t t = 0; t < r->tokens; t++) {
        const float *from = dout + t * d;
        for (int64_t k = 0; k < r->top_k; k++) {
            const int64_t i = t * r->top_k + k, row = smp__route_row(r, route, i);
            dgate[k] = row >= 0 && dlogits ? smp__dot(from, y + row * d, d) : 0;
            for (int64_t c = 0; row >= 0 && dy && c < d; c++)
                dy[row * d + c] = route->gate[i] * from[c];
        }
        if (dlogits)
            smp__route_gradient(r, logits + t * r->experts, route, t, dgate,
                                dlogits + t * r->experts);
    }
}

static smp_status backward_input(const smp_op_call *call)
{
    const smp__routing r = smp__experts_routing(call->graph, call->op);
    const int64_t d = smp__columns(smp__out(call->graph, call->op));
    const int64_t rows = r.own * r.capacity * d, logits = r.tokens * r.experts;
    smp__route route = smp__route_at(&r, call->workspace);
    if (call->din[SMP__ROUTED])
        memset(call->din[SMP__ROUTED], 0, (size_t)(call->batch * rows) * sizeof(float));
    for (int64_t b = 0; b < call->batch; b++)
        backward_sample(&r, &route, d, (const float *)call->in[SMP__ROUTED] + b * rows,
                        (const float *)call->in[SMP__ROUTER] + b * logits,
                        call->dout[0] + b * r.tokens * d,
                        call->din[SMP__ROUTED] ? call->din[SMP__ROUTED] + b * rows : NULL,
                        call->din[SMP__ROUTER] ? call->din[SMP__ROUTER] + b * logits : NULL);
    return SMP_OK;
}

/* Gradients of gates are sums over features and, of a token, over experts: the logits' gradients
 * are linear in them. */
static const smp_split_rule SPLITS[] = {
    {"experts", .in = {SMP_CELL_DIM0, SMP_CELL_SHARED}, .out = SMP_CELL_PARTS},
    {"features", .in = {SMP_CELL_DIM2, SMP_CELL_SHARED}, .out = SMP_CELL_DIM1},
    {"positions", .in = {SMP_CELL_DIM0, SMP_CELL_DIM0}, .out = SMP_CELL_DIM0,
     .kind = "expert_return"},
    {"zigzag", .in = {SMP_CELL_DIM0, SMP_CELL_ZIGZAG}, .out = SMP_CELL_ZIGZAG,
     .kind = "expert_return"},
    {0},
};

const smp_op_kind smp__op_expert_combine = {
    .name = "expert_combine",
    .summary = "what the experts of a mixture made, back at its tokens, by a router's gates",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [3, 3, 4]}\n"
              "  logits: {dtype: float32, shape: [6, 3]}\n"
              "ops:\n"
              "  - {op: expert_combine, name: op, in: [x, logits], out: y, capacity: 0.75}\n",
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
