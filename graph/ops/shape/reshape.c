/* reshape: the same elements of a sample under another shape; one dimension may be -1, meaning
 * whatever is left. A copy; any type. */
#include "graph/ops/ops.h"

enum { SHAPE };

static const smp_attr_desc ATTRS[] = {
    [SHAPE] = {"shape", SMP_ATTR_INT_LIST, true, 0, -1, 0x1p40, NULL},
    {0},
};

/* Fills the dimension that is -1, if any. False if the elements do not come out even. */
static bool resolve(smp_shape *shape, int left_out, int64_t elements)
{
    if (left_out < 0)
        return smp_shape_elements(shape) == elements;
    shape->dim[left_out] = 1;
    int64_t others = smp_shape_elements(shape);
    if (others <= 0 || elements % others != 0)
        return false;
    shape->dim[left_out] = elements / others;
    return true;
}

static smp_status infer(smp_infer *infer)
{
    const smp_tensor *in = infer->in[0];
    int64_t count = infer->attr[SHAPE].list.count;
    if (count > SMP_MAX_DIMS)
        return smp_infer_fail(infer, "shape: got %lld dimensions, expected at most %d",
                              (long long)count, SMP_MAX_DIMS);
    smp_shape shape = {.n_dim = (int)count};
    int left_out = -1;
    for (int i = 0; i < shape.n_dim; i++) {
        shape.dim[i] = infer->attr[SHAPE].list.items[i];
        if (shape.dim[i] == 0 || (shape.dim[i] < 0 && left_out >= 0))
            return smp_infer_fail(infer,
                                  "shape: got %lld as dimension %d, expected 1 or more, or -1 once",
                                  (long long)shape.dim[i], i);
        if (shape.dim[i] < 0)
            left_out = i;
    }
    char from[128], to[128];
    smp_shape_format(to, sizeof to, &shape);
    if (!resolve(&shape, left_out, in->elements))
        return smp_infer_fail(infer, "input '%s' %s has %lld elements, which %s cannot hold",
                              in->name, smp_shape_format(from, sizeof from, &in->shape),
                              (long long)in->elements, to);
    infer->out_dtype = in->dtype;
    infer->out_shape = shape;
    return SMP_OK;
}

const smp_op_kind smp__op_reshape = {
    .name = "reshape",
    .summary = "another shape for the elements of a sample",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [3, 4, 2]}\n"
              "ops:\n"
              "  - {op: reshape, name: op, in: x, out: y, shape: [6, -1]}\n",
    .min_in = 1,
    .max_in = 1,
    .passes_dout = true,
    .attrs = ATTRS,
    .infer = infer,
    .work = smp__work_copy,
    .layout = smp__layout_copied,
    .cpu = {.forward = smp__copy_forward},
};
