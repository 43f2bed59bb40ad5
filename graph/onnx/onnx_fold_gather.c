/* Constants that are picked out of others by constant indices. */
#include "graph/onnx/onnx_fold.h"

/* An index as it counts from the front; -1: it is outside. */
static int64_t inside(int64_t index, int64_t size)
{
    index = index < 0 && index >= -size ? index + size : index;
    return index < size ? index : -1;
}

void smp__fold_gather(smp__fold *f)
{
    int axis;
    const smp_onnx_value *from = f->in[0], *at = f->in[1];
    if (!smp__onnx_axis(smp__onnx_int(f->node, "axis", 0), from->n_dim, &axis) || !at->ints)
        return;
    const int64_t n_at = smp__onnx_elements(at), size = from->dim[axis];
    bool *seen = from->stored >= 0 ? smp__onnx_take(f->m, size, sizeof(*seen)) : NULL;
    const int64_t one = at->n_dim > 1 && at->dim[0] == f->m->batch ? n_at / at->dim[0] : n_at;
    bool repeats = !seen, by_sample = axis == 0 && one < n_at;
    for (int64_t i = 0; i < n_at; i++) {
        const int64_t row = inside(at->ints[i], size);
        if (row < 0)
            return;
        by_sample &= i < one || at->ints[i] == at->ints[i % one];
        repeats |= i < one && seen && seen[row];
        if (seen)
            seen[row] = true;
    }
    by_sample &= !repeats && one < n_at;
    repeats |= one < n_at;
    if (!smp__fold_make(f))
        return;
    int64_t own[SMP_ONNX_DIMS];
    smp__fold_strides_of(from, own);
    const int64_t inner = own[axis], outer = f->n / (inner * n_at);
    int64_t to = 0;
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < n_at; i++) {
            const int64_t row = inside(at->ints[i], size);
            for (int64_t k = 0; k < inner; k++)
                smp__fold_copy(f, to++, from, (o * size + row) * inner + k);
        }
    smp__fold_rearranged(f, repeats);
    f->out->by_sample = by_sample && !from->repeats;
}

void smp__fold_gather_elements(smp__fold *f)
{
    int axis;
    const smp_onnx_value *from = f->in[0], *at = f->in[1];
    int64_t own[SMP_ONNX_DIMS];
    if (!smp__onnx_axis(smp__onnx_int(f->node, "axis", 0), from->n_dim, &axis) || !at->ints ||
        at->n_dim != from->n_dim)
        return;
    for (int d = 0; d < at->n_dim; d++)
        if (d != axis && at->dim[d] > from->dim[d])
            return;
    for (int64_t i = 0; i < f->n; i++)
        if (inside(at->ints[i], from->dim[axis]) < 0)
            return;
    if (!smp__fold_make(f))
        return;
    smp__fold_strides_of(from, own);
    for (int64_t i = 0; i < f->n; i++) {
        int64_t rest = i, place = 0;
        for (int d = at->n_dim - 1; d >= 0; d--) {
            place += own[d] * (d == axis ? inside(at->ints[i], from->dim[d]) : rest % at->dim[d]);
            rest /= at->dim[d];
        }
        smp__fold_copy(f, i, from, place);
    }
}

/* The last dimension of the indices are places in the first dimensions of the values. */
void smp__fold_gather_nd(smp__fold *f)
{
    const smp_onnx_value *from = f->in[0], *at = f->in[1];
    const int64_t depth = at->n_dim > 0 ? at->dim[at->n_dim - 1] : 0;
    int64_t own[SMP_ONNX_DIMS];
    if (!at->ints || depth < 1 || depth > from->n_dim ||
        smp__onnx_int(f->node, "batch_dims", 0) != 0)
        return;
    smp__fold_strides_of(from, own);
    const int64_t inner = own[depth - 1], rows = smp__onnx_elements(at) / depth;
    for (int64_t i = 0; i < rows * depth; i++)
        if (inside(at->ints[i], from->dim[i % depth]) < 0)
            return;
    if (inner * rows != f->n || !smp__fold_make(f))
        return;
    for (int64_t r = 0; r < rows; r++) {
        int64_t place = 0;
        for (int64_t d = 0; d < depth; d++)
            place += own[d] * inside(at->ints[r * depth + d], from->dim[d]);
        for (int64_t k = 0; k < inner; k++)
            smp__fold_copy(f, r * inner + k, from, place + k);
    }
}
