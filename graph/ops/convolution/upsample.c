/* upsample: every pixel of [C, H, W] as a square of factor x factor, [C, H * factor, W * factor]
 * (nearest neighbour). The gradient of a pixel is the sum over its square, line by line. */
#include "graph/ops/convolution/upsample.h"

#include <string.h>

static const smp_attr_desc ATTRS[] = {
    [SMP__UPSAMPLE_FACTOR] = {"factor", SMP_ATTR_INT, true, 0, 1, 0x1p20, NULL},
    {0},
};

static smp_status infer(smp_infer *infer)
{
    SMP_TRY(smp_infer_dims(infer, 0, 3, 3));
    SMP_TRY(smp__infer_like_input(infer));
    infer->out_shape.dim[1] *= infer->attr[SMP__UPSAMPLE_FACTOR].i;
    infer->out_shape.dim[2] *= infer->attr[SMP__UPSAMPLE_FACTOR].i;
    return SMP_OK;
}

/* A sum for each pixel of the output. */
static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    smp__work_elementwise(graph, op, batch, 0, 1, work);
}

static smp_status forward(const smp_op_call *call)
{
    const smp_tensor *in = smp__in(call->graph, call->op, 0);
    const int64_t factor = call->op->attr[SMP__UPSAMPLE_FACTOR].i, width = smp__columns(in);
    const float *line = call->in[0];
    float *out = call->out[0];
    for (int64_t left = smp__count(in, call->batch) / width; left > 0; left--, line += width) {
        const float *first = out;
        for (int64_t x = 0; x < width; x++)
            for (int64_t i = 0; i < factor; i++)
                *out++ = line[x];
        for (int64_t i = 1; i < factor; i++, out += width * factor)
            memcpy(out, first, (size_t)(width * factor) * sizeof *out);
    }
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    const smp_tensor *in = smp__in(call->graph, call->op, 0);
    const int64_t factor = call->op->attr[SMP__UPSAMPLE_FACTOR].i, width = smp__columns(in);
    const float *dout = call->dout[0];
    float *dx = call->din[0];
    if (!dx)
        return SMP_OK;
    memset(dx, 0, (size_t)smp__count(in, call->batch) * sizeof *dx);
    for (int64_t left = smp__count(in, call->batch) / width; left > 0; left--, dx += width)
        for (int64_t line = 0; line < factor; line++)
            for (int64_t x = 0; x < width; x++)
                for (int64_t i = 0; i < factor; i++)
                    dx[x] += *dout++;
    return SMP_OK;
}

static const smp_split_rule SPLITS[] = {
    {"channels", .in = {SMP_CELL_DIM0}, .out = SMP_CELL_DIM0},
    {0},
};

const smp_op_kind smp__op_upsample = {
    .name = "upsample",
    .summary = "an image enlarged, each pixel to a square",
    .sample = "inputs:\n"
              "  image: {dtype: float32, shape: [3, 4, 6]}\n"
              "ops:\n"
              "  - {op: upsample, name: op, in: image, out: y, factor: 2}\n",
    .min_in = 1,
    .max_in = 1,
    .attrs = ATTRS,
    .infer = infer,
    .work = work,
    .layout = smp__layout_alike,
    .split = SPLITS,
    .cpu = {.forward = forward, .backward_input = backward_input},
};
