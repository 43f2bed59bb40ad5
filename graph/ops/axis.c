/* What the operators that work along one dimension of a sample share: which one it is, sums along
 * it and their gradient. Rows are added in order; where elements of the dimension lie side by side
 * the order is that of smp__sum. */
#include "graph/ops/ops.h"

#include <string.h>

#include "graph/math/vector.h"

smp__axis smp__axis_of(const smp_tensor *tensor, int64_t axis, int64_t batch)
{
    smp_shape shape = tensor->shape; /* as it lies */
    if (axis < 0)
        axis += shape.n_dim;
    if (tensor->channels_last) {
        const int64_t *dim = tensor->shape.dim;
        shape = (smp_shape){3, {dim[1], dim[2], dim[0]}};
        axis = (axis + 2) % 3;
    }
    smp__axis along = {.outer = batch, .size = shape.dim[axis], .inner = 1};
    for (int64_t i = 0; i < axis; i++)
        along.outer *= shape.dim[i];
    for (int64_t i = axis + 1; i < shape.n_dim; i++)
        along.inner *= shape.dim[i];
    return along;
}

smp_status smp__infer_axis(const smp_infer *infer, int64_t axis, int *out)
{
    SMP_TRY(smp_infer_dims(infer, 0, 1, SMP_MAX_DIMS));
    int n_dim = infer->in[0]->shape.n_dim;
    if (axis < -n_dim || axis >= n_dim)
        return smp_infer_fail(infer, "axis: got %lld, expected %d to %d", (long long)axis, -n_dim,
                              n_dim - 1);
    *out = (int)(axis < 0 ? axis + n_dim : axis);
    return SMP_OK;
}

smp_status smp__infer_without_axis(smp_infer *infer, int64_t axis)
{
    int left_out = 0;
    SMP_TRY(smp__infer_like_input(infer));
    SMP_TRY(smp__infer_axis(infer, axis, &left_out));
    smp_shape *out = &infer->out_shape;
    out->n_dim--;
    for (int i = left_out; i < out->n_dim; i++)
        out->dim[i] = out->dim[i + 1];
    return SMP_OK;
}

void smp__axis_sum(float *out, const float *x, smp__axis along, float factor)
{
    const int64_t slab = along.size * along.inner;
    if (along.inner > 1)
        memset(out, 0, (size_t)(along.outer * along.inner) * sizeof *out);
    for (int64_t o = 0; o < along.outer; o++)
        if (along.inner > 1)
            smp__column_sums(out + o * along.inner, x + o * slab, along.size, along.inner,
                             along.inner);
        else
            out[o] = smp__sum(x + o * slab, slab);
    if (factor != 1.0f)
        smp__scale(out, factor, along.outer * along.inner);
}

SMP_VECTOR static void fill(float *x, float value, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = value;
}

void smp__axis_spread(float *dx, const float *dout, smp__axis along, float factor)
{
    const int64_t slab = along.size * along.inner;
    for (int64_t o = 0; o < along.outer; o++, dx += slab, dout += along.inner) {
        if (along.inner == 1) {
            fill(dx, dout[0] * factor, slab);
            continue;
        }
        for (int64_t i = 0; i < along.size; i++)
            memcpy(dx + i * along.inner, dout, (size_t)along.inner * sizeof *dx);
        if (factor != 1.0f)
            smp__scale(dx, factor, slab);
    }
}
