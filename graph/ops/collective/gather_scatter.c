/* all_gather: the whole of a tensor of which each device has a part along one dimension. Its
 * gradient is the own part; with `summands`, where each device makes a summand of the whole
 * gradient, the sum of those parts.
 *
 * reduce_scatter: the own part of the sum over the devices. Its gradient is gathered. With `sum:
 * false` the value is whole on every device, and its part is taken: what makes a whole tensor a
 * split one.
 *
 * Each is the gradient of the other: a gather from parts to the whole, and a scatter back. */
#include "graph/ops/collective/collective.h"

#define ATTRS(sums, default_)                                                                      \
    {                                                                                              \
        [SMP__GATHER_DEVICES] = {"devices", SMP_ATTR_INT, false, 1, 1, SMP__MOST_DEVICES, NULL},   \
        [SMP__GATHER_AXIS] = {"axis", SMP_ATTR_INT, true, 0, 0, SMP_MAX_DIMS - 1, NULL},           \
        [SMP__GATHER_BLOCKS] = {"blocks", SMP_ATTR_INT, false, 1, 1, SMP_SPLIT_BLOCKS, NULL},      \
        [SMP__GATHER_SUMS] = {sums, SMP_ATTR_BOOL, false, default_, 0, 1, NULL}, {0},              \
    }
static const smp_attr_desc GATHER_ATTRS[] = ATTRS("summands", 0);
static const smp_attr_desc SCATTER_ATTRS[] = ATTRS("sum", 1);

static smp_status gather_infer(smp_infer *infer)
{
    const smp_attr_value *attr = infer->attr;
    SMP_TRY(smp__infer_parts(infer, attr[SMP__GATHER_AXIS].i, attr[SMP__GATHER_DEVICES].i,
                             attr[SMP__GATHER_BLOCKS].i, false));
    infer->out_shape.dim[attr[SMP__GATHER_AXIS].i] *= attr[SMP__GATHER_DEVICES].i;
    return SMP_OK;
}

static smp_status scatter_infer(smp_infer *infer)
{
    const smp_attr_value *attr = infer->attr;
    SMP_TRY(smp__infer_parts(infer, attr[SMP__GATHER_AXIS].i, attr[SMP__GATHER_DEVICES].i,
                             attr[SMP__GATHER_BLOCKS].i, true));
    infer->out_shape.dim[attr[SMP__GATHER_AXIS].i] /= attr[SMP__GATHER_DEVICES].i;
    return SMP_OK;
}

static bool gathers_forward(const smp_op *op)
{
    return op->kind == &smp__op_all_gather;
}

static const smp_tensor *whole_tensor(const smp_graph *graph, const smp_op *op)
{
    return gathers_forward(op) ? smp__out(graph, op) : smp__in(graph, op, 0);
}

static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    *needs = (smp_op_needs){.workspace_bytes = smp__float_bytes(whole_tensor(graph, op), batch)};
}

static void cuda_needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    const smp_tensor *whole = whole_tensor(graph, op);
    *needs = (smp_op_needs){
        .workspace_bytes = smp__parts_room_bytes(whole, op->attr[SMP__GATHER_DEVICES].i, batch)};
}

static smp__parts parts_of_batch(const smp_graph *graph, const smp_op *op, int64_t batch)
{
    const smp_attr_value *attr = op->attr;
    return smp__parts_of(whole_tensor(graph, op), attr[SMP__GATHER_AXIS].i,
                         attr[SMP__GATHER_DEVICES].i, attr[SMP__GATHER_BLOCKS].i, batch);
}

static smp__parts parts_of(const smp_op_call *call)
{
    return parts_of_batch(call->graph, call->op, call->batch);
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    const smp__parts parts = parts_of_batch(graph, op, batch);
    const int64_t own = smp__wire_floats(graph, whole_tensor(graph, op), smp__part_elements(parts));
    const smp_op_exchange exchange = smp_op_exchange_each(parts.devices, own);
    const bool gathers = gathers_forward(op), sums = op->attr[SMP__GATHER_SUMS].i;
    const double gather_passes = 1, scatter_passes = sums ? 2 : 0;
    smp__work_copy(graph, op, batch, work);
    work->forward_bytes +=
        smp__exchange_traffic(gathers ? gather_passes : scatter_passes, own * parts.devices);
    work->backward_input_bytes +=
        smp__exchange_traffic(gathers ? scatter_passes : gather_passes, own * parts.devices);
    if (gathers || sums)
        work->forward_exchange = exchange;
    if (!gathers || sums)
        work->backward_input_exchange = exchange;
}

static smp_status gather_forward(const smp_op_call *call)
{
    const smp_op_group *group;
    smp__parts parts = parts_of(call);
    SMP_TRY(smp__group_of(call, parts.devices, &group));
    SMP_TRY(
        group->all_gather(group->context, call->in[0], call->workspace, smp__part_elements(parts)));
    smp__put_parts(call->out[0], call->workspace, parts);
    return SMP_OK;
}

static smp_status scatter_forward(const smp_op_call *call)
{
    const smp_op_group *group;
    smp__parts parts = parts_of(call);
    SMP_TRY(smp__group_of(call, parts.devices, &group));
    if (!call->op->attr[SMP__GATHER_SUMS].i) {
        smp__take_part(call->out[0], call->in[0], parts, group->index);
        return SMP_OK;
    }
    smp__take_parts(call->workspace, call->in[0], parts);
    return group->reduce_scatter(group->context, call->workspace, call->out[0],
                                 smp__part_elements(parts));
}

static smp_status backward_input_begin(const smp_op_call *call)
{
    const smp_op_group *group;
    smp__parts parts = parts_of(call);
    int64_t n = smp__part_elements(parts);
    SMP_TRY(smp__group_of(call, parts.devices, &group));
    if (!call->din[0])
        return SMP_OK;
    if (!gathers_forward(call->op))
        return smp__group_begin(group, SMP_GROUP_ALL_GATHER, call->dout[0], call->workspace, n);
    if (!call->op->attr[SMP__GATHER_SUMS].i) {
        smp__take_part(call->din[0], call->dout[0], parts, group->index);
        return SMP_OK;
    }
    smp__take_parts(call->workspace, call->dout[0], parts);
    return smp__group_begin(group, SMP_GROUP_REDUCE_SCATTER, call->workspace, call->din[0], n);
}

static smp_status backward_input_end(const smp_op_call *call)
{
    const smp_op_group *group;
    smp__parts parts = parts_of(call);
    SMP_TRY(smp__group_of(call, parts.devices, &group));
    if (!call->din[0])
        return SMP_OK;
    if (gathers_forward(call->op))
        return call->op->attr[SMP__GATHER_SUMS].i ? smp__group_finish(group) : SMP_OK;
    SMP_TRY(smp__group_finish(group));
    smp__put_parts(call->din[0], call->workspace, parts);
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    SMP_TRY(backward_input_begin(call));
    return backward_input_end(call);
}

#define OPERATOR(name_, summary_, attrs_, infer_, forward_)                                        \
    const smp_op_kind smp__op_##name_ = {                                                          \
        .name = #name_,                                                                            \
        .summary = summary_,                                                                       \
        .sample = "inputs:\n"                                                                      \
                  "  x: {dtype: float32, shape: [4, 6]}\n"                                         \
                  "ops:\n"                                                                         \
                  "  - {op: " #name_ ", name: op, in: x, out: y, axis: 1, blocks: 3}\n",           \
        .min_in = 1,                                                                               \
        .max_in = 1,                                                                               \
        .attrs = attrs_,                                                                           \
        .infer = infer_,                                                                           \
        .needs = {[SMP_BACKEND_CPU] = needs, [SMP_BACKEND_CUDA] = cuda_needs},                     \
        .work = work,                                                                              \
        .cpu = {.forward = forward_,                                                               \
                .backward_input = backward_input,                                                  \
                .backward_input_begin = backward_input_begin,                                      \
                .backward_input_end = backward_input_end},                                         \
    };

OPERATOR(all_gather, "the whole of a tensor of which each device has a part", GATHER_ATTRS,
         gather_infer, gather_forward)
OPERATOR(reduce_scatter, "a device's part of the sum over devices", SCATTER_ATTRS, scatter_infer,
         scatter_forward)
