/* all_reduce: the sum over the devices of a group. Forward, of values of which each device has a
 * summand; with `gradient`, of the gradient, where the value is whole and each device makes a
 * summand of its gradient (Megatron-LM's g, and f with `value: false`). */
#include "graph/ops/collective/collective.h"

#include <string.h>

static const smp_attr_desc ATTRS[] = {
    [SMP__ALL_REDUCE_DEVICES] = {"devices", SMP_ATTR_INT, false, 1, 1, SMP__MOST_DEVICES, NULL},
    [SMP__ALL_REDUCE_VALUE] = {"value", SMP_ATTR_BOOL, false, 1, 0, 1, NULL},
    [SMP__ALL_REDUCE_GRADIENT] = {"gradient", SMP_ATTR_BOOL, false, 0, 0, 1, NULL},
    {0},
};

/* A GPU adds up a share of each device: shares sent, shares that came, the own one. */
static void cuda_needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    const smp_tensor *out = smp__out(graph, op);
    const int64_t devices = op->attr[SMP__ALL_REDUCE_DEVICES].i;
    const int64_t share = (smp__count(out, batch) + devices - 1) / devices;
    *needs = (smp_op_needs){.workspace_bytes = smp__parts_room_bytes(out, devices, batch)};
    if (devices > 1)
        needs->workspace_bytes += smp__rows_bytes(out->dtype, 1, share);
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    const smp_tensor *out = smp__out(graph, op);
    const int64_t devices = op->attr[SMP__ALL_REDUCE_DEVICES].i;
    const int64_t share = (smp__count(out, batch) + devices - 1) / devices;
    const int64_t n = devices * smp__wire_floats(graph, out, share);
    const smp_op_exchange sum = smp_op_exchange_sum(devices, n);
    const double passes = devices > 1 ? 5 + 1 / (double)devices : 0; /* there, its share, back */
    smp__work_copy(graph, op, batch, work);
    if (op->attr[SMP__ALL_REDUCE_VALUE].i) {
        work->forward_exchange = sum;
        work->forward_bytes += smp__exchange_traffic(passes, n);
    }
    if (op->attr[SMP__ALL_REDUCE_GRADIENT].i) {
        work->backward_input_exchange = sum;
        work->backward_input_bytes += smp__exchange_traffic(passes, n);
    }
}

static smp_status begin(const smp_op_call *call, float *to, const float *from, bool sum)
{
    const smp_op_group *group;
    int64_t n = smp__count(smp__out(call->graph, call->op), call->batch);
    SMP_TRY(smp__group_of(call, call->op->attr[SMP__ALL_REDUCE_DEVICES].i, &group));
    memcpy(to, from, (size_t)n * sizeof(float));
    return sum ? smp__group_begin(group, SMP_GROUP_ALL_REDUCE, NULL, to, n) : SMP_OK;
}

static smp_status end(const smp_op_call *call, bool sum)
{
    const smp_op_group *group;
    SMP_TRY(smp__group_of(call, call->op->attr[SMP__ALL_REDUCE_DEVICES].i, &group));
    return sum ? smp__group_finish(group) : SMP_OK;
}

static smp_status forward(const smp_op_call *call)
{
    SMP_TRY(begin(call, call->out[0], call->in[0], call->op->attr[SMP__ALL_REDUCE_VALUE].i));
    return end(call, call->op->attr[SMP__ALL_REDUCE_VALUE].i);
}

static smp_status backward_input_begin(const smp_op_call *call)
{
    return call->din[0] ? begin(call, call->din[0], call->dout[0],
                                call->op->attr[SMP__ALL_REDUCE_GRADIENT].i)
                        : SMP_OK;
}

static smp_status backward_input_end(const smp_op_call *call)
{
    return call->din[0] ? end(call, call->op->attr[SMP__ALL_REDUCE_GRADIENT].i) : SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    SMP_TRY(backward_input_begin(call));
    return backward_input_end(call);
}

const smp_op_kind smp__op_all_reduce = {
    .name = "all_reduce",
    .summary = "sum over the devices that compute a layer together",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [4, 6]}\n"
              "ops:\n"
              "  - {op: all_reduce, name: op, in: x, out: y}\n",
    .min_in = 1,
    .max_in = 1,
    .attrs = ATTRS,
    .infer = smp__infer_like_input,
    .needs = {[SMP_BACKEND_CUDA] = cuda_needs},
    .work = work,
    .cpu = {.forward = forward,
            .backward_input = backward_input,
            .backward_input_begin = backward_input_begin,
            .backward_input_end = backward_input_end},
};
