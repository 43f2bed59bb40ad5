/* flatten: [a, b, ..] -> [a * b * ..]. A copy; any type. */
#include "graph/ops/ops.h"

static const smp_attr_desc ATTRS[] = {{0}};

static smp_status infer(smp_infer *infer)
{
    const smp_tensor *in = infer->in[0];
    infer->out_dtype = in->dtype;
    infer->out_shape = (smp_shape){1, {in->elements}};
    return SMP_OK;
}

static const smp_split_rule SPLITS[] = {
    {"channels", .in = {SMP_CELL_DIM0}, .out = SMP_CELL_DIM0},
    {0},
};

const smp_op_kind smp__op_flatten = {
    .name = "flatten",
    .summary = "all dimensions of a sample as one",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [3, 4, 2]}\n"
              "ops:\n"
              "  - {op: flatten, name: op, in: x, out: y}\n",
    .min_in = 1,
    .max_in = 1,
    .passes_dout = true,
    .attrs = ATTRS,
    .infer = infer,
    .work = smp__work_copy,
    .layout = smp__layout_copied,
    .split = SPLITS,
    .cpu = {.forward = smp__copy_forward},
};
