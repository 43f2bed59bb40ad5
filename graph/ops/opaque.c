/* opaque: an operator that SMP does not implement. It can be planned from its `cost:`, not run, so
 * it has no kernels. Its output has a shape only if `shape` gives one; several outputs, its weights
 * and whether gradients pass it are read by graph/model/model_declared.c. */
#include "graph/ops/ops.h"

enum { SHAPE, DTYPE };

static const smp_attr_desc ATTRS[] = {
    [SHAPE] = {"shape", SMP_ATTR_INT_LIST, false, 0, 1, 0x1p40, NULL},
    [DTYPE] = {"dtype", SMP_ATTR_CHOICE, false, SMP_F32, 0, 0, smp_dtype_names},
    {0},
};

static smp_status infer(smp_infer *infer)
{
    int64_t count = infer->attr[SHAPE].list.count;
    if (count > SMP_MAX_DIMS)
        return smp_infer_fail(infer, "shape: got %lld dimensions, expected at most %d",
                              (long long)count, SMP_MAX_DIMS);
    infer->out_dtype = (smp_dtype)infer->attr[DTYPE].i;
    infer->out_known = count > 0;
    infer->out_shape = (smp_shape){.n_dim = (int)count};
    for (int64_t i = 0; i < count; i++)
        infer->out_shape.dim[i] = infer->attr[SHAPE].list.items[i];
    return SMP_OK;
}

const smp_op_kind smp__op_opaque = {
    .name = "opaque",
    .summary = "an operator known by its cost alone; planned, not run",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [4, 6]}\n"
              "ops:\n"
              "  - {op: opaque, name: op, in: x, out: y, shape: [4, 3], cost: {forward_us: 20, "
              "backward_us: 40}}\n",
    .min_in = 0,
    .max_in = -1,
    .accepts_unknown = true,
    .attrs = ATTRS,
    .infer = infer,
};
