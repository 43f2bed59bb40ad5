/* global_avg_pool: the mean over the pixels of each channel, [C, H, W] -> [C]. */
#include "graph/ops/ops.h"

static const smp_attr_desc ATTRS[] = {{0}};

static smp_status infer(smp_infer *infer)
{
    SMP_TRY(smp_infer_dims(infer, 0, 3, 3));
    SMP_TRY(smp__infer_like_input(infer));
    infer->out_shape.n_dim = 1;
    return SMP_OK;
}

/* The pixels of a channel lie side by side: one dimension. */
static smp__axis pixels_of(const smp_graph *graph, const smp_op *op, int64_t batch)
{
    const smp_shape *shape = &smp__in(graph, op, 0)->shape;
    return (smp__axis){batch * shape->dim[0], shape->dim[1] * shape->dim[2], 1};
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    double pixels = (double)pixels_of(graph, op, batch).size;
    smp__work_elementwise(graph, op, batch, pixels + 1, pixels, work);
}

static smp_status forward(const smp_op_call *call)
{
    const smp__axis pixels = pixels_of(call->graph, call->op, call->batch);
    smp__axis_sum(call->out[0], call->in[0], pixels, 1.0f / (float)pixels.size);
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    const smp__axis pixels = pixels_of(call->graph, call->op, call->batch);
    if (call->din[0])
        smp__axis_spread(call->din[0], call->dout[0], pixels, 1.0f / (float)pixels.size);
    return SMP_OK;
}

static const smp_split_rule SPLITS[] = {
    {"channels", .in = {SMP_CELL_DIM0}, .out = SMP_CELL_DIM0},
    {0},
};

const smp_op_kind smp__op_global_avg_pool = {
    .name = "global_avg_pool",
    .summary = "mean over the pixels of each channel",
    .sample = "inputs:\n"
              "  image: {dtype: float32, shape: [3, 4, 6]}\n"
              "ops:\n"
              "  - {op: global_avg_pool, name: op, in: image, out: y}\n",
    .min_in = 1,
    .max_in = 1,
    .attrs = ATTRS,
    .infer = infer,
    .work = work,
    .split = SPLITS,
    .cpu = {.forward = forward, .backward_input = backward_input},
};
