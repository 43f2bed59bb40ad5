/* slice: elements `begin` to `end` (exclusive) of one dimension of the sample. Negative numbers
 * count from the end of the dimension, and so does an end of 0. What is left out has gradient 0.
 * Any type. */
#include "graph/ops/shape/shape.h"

#include <string.h>

enum { AXIS, BEGIN, END };

static const smp_attr_desc ATTRS[] = {
    [AXIS] = {"axis", SMP_ATTR_INT, false, -1, -SMP_MAX_DIMS, SMP_MAX_DIMS - 1, NULL},
    [BEGIN] = {"begin", SMP_ATTR_INT, false, 0, -0x1p40, 0x1p40, NULL},
    [END] = {"end", SMP_ATTR_INT, false, 0, -0x1p40, 0x1p40, NULL},
    {0},
};

static smp_status infer(smp_infer *infer)
{
    const smp_tensor *in = infer->in[0];
    int axis = 0;
    SMP_TRY(smp__infer_axis(infer, infer->attr[AXIS].i, &axis));
    int64_t size = in->shape.dim[axis], begin = infer->attr[BEGIN].i, end = infer->attr[END].i;
    begin += begin < 0 ? size : 0;
    end += end <= 0 ? size : 0;
    if (begin < 0 || begin >= end || end > size)
        return smp_infer_fail(infer,
                              "begin %lld and end %lld of dimension %d, which has %lld elements: "
                              "expected one element or more of it",
                              (long long)infer->attr[BEGIN].i, (long long)infer->attr[END].i, axis,
                              (long long)size);
    infer->out_dtype = in->dtype;
    infer->out_shape = in->shape;
    infer->out_shape.dim[axis] = end - begin;
    return SMP_OK;
}

smp__slice smp__slice_of(const smp_graph *graph, const smp_op *op, int64_t batch)
{
    const smp__axis in = smp__axis_of(smp__in(graph, op, 0), op->attr[AXIS].i, batch);
    const smp__axis out = smp__axis_of(smp__out(graph, op), op->attr[AXIS].i, batch);
    const int64_t begin = op->attr[BEGIN].i;
    return (smp__slice){.rows = in.outer,
                        .stride = in.size * in.inner,
                        .offset = (begin < 0 ? begin + in.size : begin) * in.inner,
                        .width = out.size * out.inner};
}

static smp_status forward(const smp_op_call *call)
{
    const smp__slice s = smp__slice_of(call->graph, call->op, call->batch);
    const float *in = call->in[0];
    float *out = call->out[0];
    for (int64_t r = 0; r < s.rows; r++)
        memcpy(out + r * s.width, in + r * s.stride + s.offset, (size_t)s.width * sizeof *out);
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    const smp__slice s = smp__slice_of(call->graph, call->op, call->batch);
    float *dx = call->din[0];
    if (!dx)
        return SMP_OK;
    memset(dx, 0, (size_t)(s.rows * s.stride) * sizeof *dx);
    for (int64_t r = 0; r < s.rows; r++)
        memcpy(dx + r * s.stride + s.offset, call->dout[0] + r * s.width,
               (size_t)s.width * sizeof *dx);
    return SMP_OK;
}

const smp_op_kind smp__op_slice = {
    .name = "slice",
    .summary = "part of one dimension",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [4, 6]}\n"
              "ops:\n"
              "  - {op: slice, name: op, in: x, out: y, axis: 0, begin: 1, end: 3}\n",
    .min_in = 1,
    .max_in = 1,
    .attrs = ATTRS,
    .infer = infer,
    .work = smp__work_copy,
    .layout = smp__layout_alike,
    .cpu = {.forward = forward, .backward_input = backward_input},
};
