/* reduce_scatter: the own part, along one dimension, of the sum over the devices. Its gradient is
 * gathered. With `sum: false` the value is whole on every device, and its part is taken: what makes
 * a whole tensor a split one. */
#include "graph/ops/collective/collective.h"

enum { DEVICES, AXIS, BLOCKS, SUM };

static const smp_attr_desc ATTRS[] = {
    [DEVICES] = {"devices", SMP_ATTR_INT, false, 1, 1, SMP__MOST_DEVICES, NULL},
    [AXIS] = {"axis", SMP_ATTR_INT, true, 0, 0, SMP_MAX_DIMS - 1, NULL},
    [BLOCKS] = {"blocks", SMP_ATTR_INT, false, 1, 1, SMP_SPLIT_BLOCKS, NULL},
    [SUM] = {"sum", SMP_ATTR_BOOL, false, 1, 0, 1, NULL},
    {0},
};

static smp_status infer(smp_infer *infer)
{
    const smp_attr_value *attr = infer->attr;
    SMP_TRY(smp__infer_parts(infer, attr[AXIS].i, attr[DEVICES].i, attr[BLOCKS].i, true));
    infer->out_shape.dim[attr[AXIS].i] /= attr[DEVICES].i;
    return SMP_OK;
}

static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    *needs = (smp_op_needs){.workspace_bytes = smp__float_bytes(smp__in(graph, op, 0), batch)};
}

static void cuda_needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    *needs = (smp_op_needs){.workspace_bytes = smp__parts_room_bytes(smp__in(graph, op, 0),
                                                                     op->attr[DEVICES].i, batch)};
}

static smp__parts parts_of_batch(const smp_graph *graph, const smp_op *op, int64_t batch)
{
    const smp_attr_value *attr = op->attr;
    return smp__parts_of(smp__in(graph, op, 0), attr[AXIS].i, attr[DEVICES].i, attr[BLOCKS].i,
                         batch);
}

static smp__parts parts_of(const smp_op_call *call)
{
    return parts_of_batch(call->graph, call->op, call->batch);
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    const smp__parts parts = parts_of_batch(graph, op, batch);
    smp__work_copy(graph, op, batch, work);
    const int64_t own = smp__wire_floats(graph, smp__in(graph, op, 0), smp__part_elements(parts));
    work->backward_input_exchange = smp_op_exchange_each(parts.devices, own);
    work->backward_input_bytes += smp__exchange_traffic(1, own * parts.devices);
    if (op->attr[SUM].i) {
        work->forward_exchange = work->backward_input_exchange;
        work->forward_bytes += smp__exchange_traffic(2, own * parts.devices);
    }
}

static smp_status forward(const smp_op_call *call)
{
    const smp_op_group *group;
    smp__parts parts = parts_of(call);
    SMP_TRY(smp__group_of(call, parts.devices, &group));
    if (!call->op->attr[SUM].i) {
        smp__take_part(call->out, call->in[0], parts, group->index);
        return SMP_OK;
    }
    smp__take_parts(call->workspace, call->in[0], parts);
    return group->reduce_scatter(group->context, call->workspace, call->out,
                                 smp__part_elements(parts));
}

static smp_status backward_input_begin(const smp_op_call *call)
{
    const smp_op_group *group;
    smp__parts parts = parts_of(call);
    SMP_TRY(smp__group_of(call, parts.devices, &group));
    if (!call->din[0])
        return SMP_OK;
    return smp__group_begin(group, SMP_GROUP_ALL_GATHER, call->dout, call->workspace,
                            smp__part_elements(parts));
}

static smp_status backward_input_end(const smp_op_call *call)
{
    const smp_op_group *group;
    smp__parts parts = parts_of(call);
    SMP_TRY(smp__group_of(call, parts.devices, &group));
    if (!call->din[0])
        return SMP_OK;
    SMP_TRY(smp__group_finish(group));
    smp__put_parts(call->din[0], call->workspace, parts);
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    SMP_TRY(backward_input_begin(call));
    return backward_input_end(call);
}

const smp_op_kind smp__op_reduce_scatter = {
    .name = "reduce_scatter",
    .summary = "a device's part of the sum over devices",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [4, 6]}\n"
              "ops:\n"
              "  - {op: reduce_scatter, name: op, in: x, out: y, axis: 1, blocks: 3}\n",
    .min_in = 1,
    .max_in = 1,
    .attrs = ATTRS,
    .infer = infer,
    .needs = needs,
    .cuda_needs = cuda_needs,
    .work = work,
    .cpu = {.forward = forward,
            .backward_input = backward_input,
            .backward_input_begin = backward_input_begin,
            .backward_input_end = backward_input_end},
};
