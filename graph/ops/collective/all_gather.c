/* all_gather: the whole of a tensor of which each device has a part along one dimension. Its
 * gradient is the own part; with `summands`, where each device makes a summand of the whole
 * gradient, the sum of those parts (a reduce_scatter). */
#include "graph/ops/collective/collective.h"

enum { DEVICES, AXIS, BLOCKS, SUMMANDS };

static const smp_attr_desc ATTRS[] = {
    [DEVICES] = {"devices", SMP_ATTR_INT, false, 1, 1, SMP__MOST_DEVICES, NULL},
    [AXIS] = {"axis", SMP_ATTR_INT, true, 0, 0, SMP_MAX_DIMS - 1, NULL},
    [BLOCKS] = {"blocks", SMP_ATTR_INT, false, 1, 1, SMP_SPLIT_BLOCKS, NULL},
    [SUMMANDS] = {"summands", SMP_ATTR_BOOL, false, 0, 0, 1, NULL},
    {0},
};

static smp_status infer(smp_infer *infer)
{
    const smp_attr_value *attr = infer->attr;
    SMP_TRY(smp__infer_parts(infer, attr[AXIS].i, attr[DEVICES].i, attr[BLOCKS].i, false));
    infer->out_shape.dim[attr[AXIS].i] *= attr[DEVICES].i;
    return SMP_OK;
}

static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    *needs = (smp_op_needs){.workspace_bytes = smp__float_bytes(smp__out(graph, op), batch)};
}

static void cuda_needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    *needs = (smp_op_needs){
        .workspace_bytes = smp__parts_room_bytes(smp__out(graph, op), op->attr[DEVICES].i, batch)};
}

static smp__parts parts_of_batch(const smp_graph *graph, const smp_op *op, int64_t batch)
{
    const smp_attr_value *attr = op->attr;
    return smp__parts_of(smp__out(graph, op), attr[AXIS].i, attr[DEVICES].i, attr[BLOCKS].i, batch);
}

static smp__parts parts_of(const smp_op_call *call)
{
    return parts_of_batch(call->graph, call->op, call->batch);
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    const smp__parts parts = parts_of_batch(graph, op, batch);
    smp__work_copy(graph, op, batch, work);
    const int64_t own = smp__wire_floats(graph, smp__out(graph, op), smp__part_elements(parts));
    work->forward_exchange = smp_op_exchange_each(parts.devices, own);
    work->forward_bytes += smp__exchange_traffic(1, own * parts.devices);
    if (op->attr[SUMMANDS].i) {
        work->backward_input_exchange = work->forward_exchange;
        work->backward_input_bytes += smp__exchange_traffic(2, own * parts.devices);
    }
}

static smp_status forward(const smp_op_call *call)
{
    const smp_op_group *group;
    smp__parts parts = parts_of(call);
    SMP_TRY(smp__group_of(call, parts.devices, &group));
    SMP_TRY(
        group->all_gather(group->context, call->in[0], call->workspace, smp__part_elements(parts)));
    smp__put_parts(call->out, call->workspace, parts);
    return SMP_OK;
}

static smp_status backward_input_begin(const smp_op_call *call)
{
    const smp_op_group *group;
    smp__parts parts = parts_of(call);
    SMP_TRY(smp__group_of(call, parts.devices, &group));
    if (!call->din[0])
        return SMP_OK;
    if (!call->op->attr[SUMMANDS].i) {
        smp__take_part(call->din[0], call->dout, parts, group->index);
        return SMP_OK;
    }
    smp__take_parts(call->workspace, call->dout, parts);
    return smp__group_begin(group, SMP_GROUP_REDUCE_SCATTER, call->workspace, call->din[0],
                            smp__part_elements(parts));
}

static smp_status backward_input_end(const smp_op_call *call)
{
    const smp_op_group *group;
    SMP_TRY(smp__group_of(call, parts_of(call).devices, &group));
    return call->din[0] && call->op->attr[SUMMANDS].i ? smp__group_finish(group) : SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    SMP_TRY(backward_input_begin(call));
    return backward_input_end(call);
}

const smp_op_kind smp__op_all_gather = {
    .name = "all_gather",
    .summary = "the whole of a tensor of which each device has a part",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [4, 6]}\n"
              "ops:\n"
              "  - {op: all_gather, name: op, in: x, out: y, axis: 1, blocks: 3}\n",
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
