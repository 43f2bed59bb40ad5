/* expert_send: an expert_dispatch whose tokens and experts are both split over devices: of a part
 * of the tokens, x [T, d] and the router's logits [T, experts], the places of this device's
 * experts, [experts / devices, places, d], whose tokens come from all devices (expert_exchange.h).
 * With the attributes of expert_dispatch, which becomes this one; of one device it is the same. */
#include "graph/ops/experts/expert_exchange.h"

#include <string.h>

static smp_status infer(smp_infer *infer)
{
    return smp__infer_dispatch(infer, true);
}

static int64_t columns_of(const smp_graph *graph, const smp_op *op)
{
    return smp__columns(smp__in(graph, op, SMP__ROUTED));
}

static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    *needs = (smp_op_needs){.input_grad_in = 1u << SMP__ROUTER,
                            .input_grad_aux = true,
                            .aux_bytes = smp__experts_saved(graph, op),
                            .workspace_bytes =
                                smp__experts_bytes(graph, op, batch, columns_of(graph, op))};
}

static void cuda_needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *out)
{
    needs(graph, op, batch, out);
    out->aux_bytes = smp__device_exchange_saved(graph, op, false);
    out->workspace_bytes =
        smp__device_exchange_at(graph, op, batch, false, graph->training, false, NULL, NULL).bytes;
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    smp__routing r = smp__routing_by_tokens(graph, op, &smp__in(graph, op, SMP__ROUTER)->shape);
    double rows = (double)(batch * r.tokens * r.top_k);
    smp__work_bytes(graph, op, batch, work);
    work->forward_flops = smp__route_flops(&r, false, batch);
    work->backward_input_flops = work->forward_flops + rows * (double)columns_of(graph, op);
    work->forward_exchange = smp__experts_work(graph, op, batch, columns_of(graph, op), true);
    work->backward_input_exchange =
        smp__experts_work(graph, op, batch, columns_of(graph, op), false);
}

static smp_status forward(const smp_op_call *call)
{
    smp__expert_exchange x;
    SMP_TRY(smp__experts_begin(call, columns_of(call->graph, call->op), false, true, &x));
    return smp__experts_send(&x, call->in[SMP__ROUTED], false, call->out[0]);
}

static smp_status backward_input(const smp_op_call *call)
{
    const smp_tensor *logits = smp__in(call->graph, call->op, SMP__ROUTER);
    const smp_tensor *in = smp__in(call->graph, call->op, SMP__ROUTED);
    smp__expert_exchange x;
    if (call->din[SMP__ROUTER])
        memset(call->din[SMP__ROUTER], 0, (size_t)smp__count(logits, call->batch) * sizeof(float));
    if (!call->din[SMP__ROUTED])
        return SMP_OK;
    memset(call->din[SMP__ROUTED], 0, (size_t)smp__count(in, call->batch) * sizeof(float));
    SMP_TRY(smp__experts_begin(call, columns_of(call->graph, call->op), false, false, &x));
    return smp__experts_return(&x, call->dout[0], true, call->din[SMP__ROUTED]);
}

const smp_op_kind smp__op_expert_send = {
    .name = "expert_send",
    .summary = "the tokens of each expert of a mixture, from all devices that have some",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [6, 4]}\n"
              "  logits: {dtype: float32, shape: [6, 3]}\n"
              "ops:\n"
              "  - {op: expert_send, name: op, in: [x, logits], out: y, capacity: 0.75}\n",
    .min_in = 2,
    .max_in = 2,
    .chooses_by = 1 << 1,
    .attrs = smp__routing_attrs,
    .infer = infer,
    .needs = {[SMP_BACKEND_CPU] = needs, [SMP_BACKEND_CUDA] = cuda_needs},
    .work = work,
    .cpu = {.forward = forward, .backward_input = backward_input},
};
