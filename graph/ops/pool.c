/* Square windows over the planes of [C, H, W]: attributes and shapes (graph/ops/pool.h). */
#include "graph/ops/pool.h"

/* A row and a column of a window fit 8 bits each. */
const smp_attr_desc smp__pool_attrs[] = {
    [SMP__POOL_KERNEL] = {"kernel", SMP_ATTR_INT, true, 0, 1, 255, NULL},
    [SMP__POOL_STRIDE] = {"stride", SMP_ATTR_INT, false, 0, 0, INT32_MAX, NULL},
    [SMP__POOL_PADDING] = {"padding", SMP_ATTR_INT, false, 0, 0, 127, NULL},
    {0},
};

static int64_t stride_of(const smp_attr_value *attr)
{
    return attr[SMP__POOL_STRIDE].i > 0 ? attr[SMP__POOL_STRIDE].i : attr[SMP__POOL_KERNEL].i;
}

smp_status smp__pool_infer(smp_infer *infer)
{
    const smp_attr_value *attr = infer->attr;
    const int64_t kernel = attr[SMP__POOL_KERNEL].i, padding = attr[SMP__POOL_PADDING].i;
    SMP_TRY(smp_infer_dims(infer, 0, 3, 3));
    SMP_TRY(smp__infer_like_input(infer));
    if (2 * padding > kernel)
        return smp_infer_fail(infer, "padding: got %lld, expected at most half the kernel of %lld",
                              (long long)padding, (long long)kernel);
    for (int i = 1; i < 3; i++) {
        int64_t *size = &infer->out_shape.dim[i];
        if (*size + 2 * padding < kernel)
            return smp_infer_fail(infer,
                                  "kernel: %lld does not fit dimension %d: %lld elements, "
                                  "padded by %lld on both sides",
                                  (long long)kernel, i, (long long)*size, (long long)padding);
        *size = (*size + 2 * padding - kernel) / stride_of(attr) + 1;
    }
    return SMP_OK;
}

smp__pool smp__pool_of(const smp_graph *graph, const smp_op *op, int64_t batch)
{
    const smp_shape *in = &smp__in(graph, op, 0)->shape, *out = &smp__out(graph, op)->shape;
    return (smp__pool){.planes = batch * in->dim[0],
                       .height = in->dim[1],
                       .width = in->dim[2],
                       .out_height = out->dim[1],
                       .out_width = out->dim[2],
                       .kernel = op->attr[SMP__POOL_KERNEL].i,
                       .stride = stride_of(op->attr),
                       .padding = op->attr[SMP__POOL_PADDING].i};
}

int64_t smp__pool_workspace(const smp_graph *graph, const smp_op *op)
{
    const smp__pool p = smp__pool_of(graph, op, 1);
    return (smp__pool_line(&p) + p.out_width) * 4;
}
