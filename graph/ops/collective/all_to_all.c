/* all_to_all: from parts along one dimension to parts along another: every device sends each other
 * one what both have to do with. Its gradient goes the way back. */
#include "graph/ops/collective/collective.h"

static const smp_attr_desc ATTRS[] = {
    [SMP__ALL_TO_ALL_DEVICES] = {"devices", SMP_ATTR_INT, false, 1, 1, SMP__MOST_DEVICES, NULL},
    [SMP__ALL_TO_ALL_FROM] = {"from", SMP_ATTR_INT, true, 0, 0, SMP_MAX_DIMS - 1, NULL},
    [SMP__ALL_TO_ALL_TO] = {"to", SMP_ATTR_INT, true, 0, 0, SMP_MAX_DIMS - 1, NULL},
    {0},
};

static smp_status infer(smp_infer *infer)
{
    const smp_attr_value *attr = infer->attr;
    SMP_TRY(smp__infer_parts(infer, attr[SMP__ALL_TO_ALL_FROM].i, attr[SMP__ALL_TO_ALL_DEVICES].i,
                             1, false));
    SMP_TRY(smp__infer_parts(infer, attr[SMP__ALL_TO_ALL_TO].i, attr[SMP__ALL_TO_ALL_DEVICES].i, 1,
                             true));
    if (attr[SMP__ALL_TO_ALL_FROM].i == attr[SMP__ALL_TO_ALL_TO].i)
        return smp_infer_fail(infer, "from and to are both %lld, expected two dimensions",
                              (long long)attr[SMP__ALL_TO_ALL_FROM].i);
    infer->out_shape.dim[attr[SMP__ALL_TO_ALL_FROM].i] *= attr[SMP__ALL_TO_ALL_DEVICES].i;
    infer->out_shape.dim[attr[SMP__ALL_TO_ALL_TO].i] /= attr[SMP__ALL_TO_ALL_DEVICES].i;
    return SMP_OK;
}

/* What is sent, then what has come. */
static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    *needs = (smp_op_needs){.workspace_bytes = 2 * smp__float_bytes(smp__out(graph, op), batch)};
}

static void cuda_needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    *needs = (smp_op_needs){.workspace_bytes = smp__parts_room_bytes(
                                smp__out(graph, op), op->attr[SMP__ALL_TO_ALL_DEVICES].i, batch)};
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    const int64_t devices = op->attr[SMP__ALL_TO_ALL_DEVICES].i;
    const smp__parts parts =
        smp__parts_of(smp__in(graph, op, 0), op->attr[SMP__ALL_TO_ALL_TO].i, devices, 1, batch);
    smp__work_copy(graph, op, batch, work);
    const int64_t each = smp__wire_floats(graph, smp__out(graph, op), smp__part_elements(parts));
    work->forward_exchange = work->backward_input_exchange = smp_op_exchange_each(devices, each);
    work->forward_bytes += smp__exchange_traffic(2, each * devices);
    work->backward_input_bytes += smp__exchange_traffic(2, each * devices);
}

static smp_status move_parts(const smp_op_call *call, float *to, const smp_tensor *made,
                             int64_t joined, const float *from, const smp_tensor *given,
                             int64_t cut)
{
    const smp_op_group *group;
    const int64_t devices = call->op->attr[SMP__ALL_TO_ALL_DEVICES].i;
    smp__parts out = smp__parts_of(made, joined, devices, 1, call->batch);
    smp__parts in = smp__parts_of(given, cut, devices, 1, call->batch);
    int64_t n = smp__part_elements(in);
    float *sent = call->workspace, *got = sent + devices * n;
    SMP_TRY(smp__group_of(call, devices, &group));
    smp__take_parts(sent, from, in);
    SMP_TRY(group->all_to_all(group->context, sent, got, n));
    smp__put_parts(to, got, out);
    return SMP_OK;
}

static smp_status forward(const smp_op_call *call)
{
    const smp_op *op = call->op;
    return move_parts(call, call->out[0], smp__out(call->graph, op),
                      op->attr[SMP__ALL_TO_ALL_FROM].i, call->in[0], smp__in(call->graph, op, 0),
                      op->attr[SMP__ALL_TO_ALL_TO].i);
}

static smp_status backward_input(const smp_op_call *call)
{
    const smp_op *op = call->op;
    if (!call->din[0])
        return SMP_OK;
    return move_parts(call, call->din[0], smp__in(call->graph, op, 0),
                      op->attr[SMP__ALL_TO_ALL_TO].i, call->dout[0], smp__out(call->graph, op),
                      op->attr[SMP__ALL_TO_ALL_FROM].i);
}

const smp_op_kind smp__op_all_to_all = {
    .name = "all_to_all",
    .summary = "from parts along one dimension to parts along another",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [4, 6]}\n"
              "ops:\n"
              "  - {op: all_to_all, name: op, in: x, out: y, from: 0, to: 1}\n",
    .min_in = 1,
    .max_in = 1,
    .attrs = ATTRS,
    .infer = infer,
    .needs = {[SMP_BACKEND_CPU] = needs, [SMP_BACKEND_CUDA] = cuda_needs},
    .work = work,
    .cpu = {.forward = forward, .backward_input = backward_input},
};
