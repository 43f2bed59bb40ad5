/* sum and mean over one dimension of the sample (negative: counted from the end), which the output
 * lacks; mean_pool, the mean over positions, [T, d] -> [d]; global_avg_pool, the mean over the
 * pixels of each channel, [C, H, W] -> [C]. */
#include "graph/ops/reduce/sum_mean.h"

static const smp_attr_desc NONE[] = {{0}};
static const smp_attr_desc AXIS[] = {
    [SMP__SUM_AXIS] = {"axis", SMP_ATTR_INT, false, -1, -SMP_MAX_DIMS, SMP_MAX_DIMS - 1, NULL},
    {0},
};

smp__axis smp__sum_axis(const smp_graph *graph, const smp_op *op, int64_t batch)
{
    const smp_tensor *x = smp__in(graph, op, 0);
    const int64_t *dim = x->shape.dim;
    if (op->kind == &smp__op_global_avg_pool) /* two dimensions that lie side by side are one */
        return x->channels_last ? (smp__axis){batch, dim[1] * dim[2], dim[0]}
                                : (smp__axis){batch * dim[0], dim[1] * dim[2], 1};
    return smp__axis_of(x, op->kind == &smp__op_mean_pool ? 0 : op->attr[SMP__SUM_AXIS].i, batch);
}

static smp_status infer_axis(smp_infer *infer)
{
    return smp__infer_without_axis(infer, infer->attr[SMP__SUM_AXIS].i);
}

static smp_status infer_positions(smp_infer *infer)
{
    SMP_TRY(smp_infer_dims(infer, 0, 2, 2));
    return smp__infer_without_axis(infer, 0);
}

static smp_status infer_pixels(smp_infer *infer)
{
    SMP_TRY(smp_infer_dims(infer, 0, 3, 3));
    SMP_TRY(smp__infer_like_input(infer));
    infer->out_shape.n_dim = 1;
    return SMP_OK;
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    const double size = (double)smp__sum_axis(graph, op, batch).size;
    const bool sums = op->kind == &smp__op_sum;
    smp__work_elementwise(graph, op, batch, sums ? size : size + 1, sums ? 0 : size, work);
}

static smp_status forward(const smp_op_call *call)
{
    const smp__axis along = smp__sum_axis(call->graph, call->op, call->batch);
    smp__axis_sum(call->out[0], call->in[0], along, smp__sum_factor(call, along));
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    const smp__axis along = smp__sum_axis(call->graph, call->op, call->batch);
    if (call->din[0])
        smp__axis_spread(call->din[0], call->dout[0], along, smp__sum_factor(call, along));
    return SMP_OK;
}

/* Of an image: all pixels of a channel, or its channels, so that what is left is in order. */
static smp_image_layout layout(const smp_graph *graph, const smp_op *op)
{
    const int64_t axis = op->kind->attrs == AXIS ? op->attr[SMP__SUM_AXIS].i : 0;
    const int n_dim = smp__in(graph, op, 0)->shape.n_dim;
    return n_dim == 3 && (axis == 0 || axis == -3) ? SMP_LAYOUT_ALIKE : SMP_LAYOUT_PLAIN;
}

static const smp_split_rule FEATURES[] = {
    {"features", .in = {SMP_CELL_DIM1}, .out = SMP_CELL_DIM0},
    {0},
};
static const smp_split_rule CHANNELS[] = {
    {"channels", .in = {SMP_CELL_DIM0}, .out = SMP_CELL_DIM0},
    {0},
};

#define OPERATOR(name_, summary_, shape_, attribute, attrs_, infer_, layout_, split_)              \
    const smp_op_kind smp__op_##name_ = {                                                          \
        .name = #name_,                                                                            \
        .summary = summary_,                                                                       \
        .sample = "inputs:\n"                                                                      \
                  "  x: {dtype: float32, shape: " shape_ "}\n"                                     \
                  "ops:\n"                                                                         \
                  "  - {op: " #name_ ", name: op, in: x, out: y" attribute "}\n",                  \
        .min_in = 1,                                                                               \
        .max_in = 1,                                                                               \
        .attrs = attrs_,                                                                           \
        .infer = infer_,                                                                           \
        .work = work,                                                                              \
        .layout = layout_,                                                                         \
        .split = split_,                                                                           \
        .cpu = {.forward = forward, .backward_input = backward_input},                             \
    };

OPERATOR(sum, "sum along one dimension", "[4, 6]", ", axis: 0", AXIS, infer_axis, layout, NULL)
OPERATOR(mean, "mean along one dimension", "[4, 6]", ", axis: 0", AXIS, infer_axis, layout, NULL)
OPERATOR(mean_pool, "mean over the positions of a sequence", "[4, 6]", "", NONE, infer_positions,
         NULL, FEATURES)
OPERATOR(global_avg_pool, "mean over the pixels of each channel", "[3, 4, 6]", "", NONE,
         infer_pixels, layout, CHANNELS)
