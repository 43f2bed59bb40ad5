/* sum: the sum over one dimension of the sample (negative: counted from the end), which the output
 * lacks. */
#include "graph/ops/ops.h"

enum { AXIS };

static const smp_attr_desc ATTRS[] = {
    [AXIS] = {"axis", SMP_ATTR_INT, false, -1, -SMP_MAX_DIMS, SMP_MAX_DIMS - 1, NULL},
    {0},
};

static smp_status infer(smp_infer *infer)
{
    return smp__infer_without_axis(infer, infer->attr[AXIS].i);
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    double size = (double)smp__axis_of(smp__in(graph, op, 0), op->attr[AXIS].i, batch).size;
    smp__work_elementwise(graph, op, batch, size, 0, work);
}

static smp_status forward(const smp_op_call *call)
{
    const smp_tensor *in = smp__in(call->graph, call->op, 0);
    const smp__axis along = smp__axis_of(in, call->op->attr[AXIS].i, call->batch);
    smp__axis_sum(call->out, call->in[0], along, 1.0f);
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    const smp_tensor *in = smp__in(call->graph, call->op, 0);
    const smp__axis along = smp__axis_of(in, call->op->attr[AXIS].i, call->batch);
    if (call->din[0])
        smp__axis_spread(call->din[0], call->dout, along, 1.0f);
    return SMP_OK;
}

const smp_op_kind smp__op_sum = {
    .name = "sum",
    .summary = "sum along one dimension",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [4, 6]}\n"
              "ops:\n"
              "  - {op: sum, name: op, in: x, out: y, axis: 0}\n",
    .min_in = 1,
    .max_in = 1,
    .attrs = ATTRS,
    .infer = infer,
    .work = work,
    .cpu = {.forward = forward, .backward_input = backward_input},
};
