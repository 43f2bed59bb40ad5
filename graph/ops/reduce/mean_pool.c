/* mean_pool: the mean over positions, [T, d] -> [d]. */
#include "graph/ops/ops.h"

static const smp_attr_desc ATTRS[] = {{0}};

static smp_status infer(smp_infer *infer)
{
    SMP_TRY(smp_infer_dims(infer, 0, 2, 2));
    SMP_TRY(smp__infer_like_input(infer));
    infer->out_shape = (smp_shape){1, {infer->in[0]->shape.dim[1]}};
    return SMP_OK;
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    double positions = (double)smp__in(graph, op, 0)->shape.dim[0];
    smp__work_elementwise(graph, op, batch, positions + 1, positions, work);
}

static smp_status forward(const smp_op_call *call)
{
    const smp__axis along = smp__axis_of(smp__in(call->graph, call->op, 0), 0, call->batch);
    smp__axis_sum(call->out[0], call->in[0], along, 1.0f / (float)along.size);
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    const smp__axis along = smp__axis_of(smp__in(call->graph, call->op, 0), 0, call->batch);
    if (call->din[0])
        smp__axis_spread(call->din[0], call->dout[0], along, 1.0f / (float)along.size);
    return SMP_OK;
}

static const smp_split_rule SPLITS[] = {
    {"features", .in = {SMP_CELL_DIM1}, .out = SMP_CELL_DIM0},
    {0},
};

const smp_op_kind smp__op_mean_pool = {
    .name = "mean_pool",
    .summary = "mean over the positions of a sequence",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [4, 6]}\n"
              "ops:\n"
              "  - {op: mean_pool, name: op, in: x, out: y}\n",
    .min_in = 1,
    .max_in = 1,
    .attrs = ATTRS,
    .infer = infer,
    .work = work,
    .split = SPLITS,
    .cpu = {.forward = forward, .backward_input = backward_input},
};
