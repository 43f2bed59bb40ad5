/* Shapes of what operators make that move values: reshape and its kin, slices, and their like. */
#include "graph/onnx/onnx_shape.h"

#include <math.h>

#define TYPE(name) ONNX__TENSOR_PROTO__DATA_TYPE__##name

void smp__shape_flatten(smp__infer *i)
{
    int axis;
    if (!i->in[0])
        return;
    const int64_t given = smp__onnx_int(i->node, "axis", 1);
    axis = (int)(given < 0 ? given + i->in[0]->n_dim : given);
    if (given < -i->in[0]->n_dim || given > i->in[0]->n_dim || smp__onnx_elements(i->in[0]) < 0)
        return;
    i->out->n_dim = 2;
    i->out->dim[0] = i->out->dim[1] = 1;
    for (int d = 0; d < i->in[0]->n_dim; d++)
        i->out->dim[d >= axis] *= i->in[0]->dim[d];
}

void smp__shape_reshape(smp__infer *i)
{
    const int64_t *to;
    size_t n;
    if (!i->in[0] || !smp__onnx_list(i->m, i->node, "shape", 1, &to, &n) || n > SMP_ONNX_DIMS)
        return;
    const bool zeroes = smp__onnx_int(i->node, "allowzero", 0) != 0;
    const int64_t all = smp__onnx_elements(i->in[0]);
    int free_one = -1;
    smp_onnx_value other = {.n_dim = (int)n};
    for (size_t d = 0; d < n; d++) {
        other.dim[d] = to[d];
        if (to[d] == 0 && !zeroes) {
            if ((int)d >= i->in[0]->n_dim)
                return;
            other.dim[d] = i->in[0]->dim[d];
        } else if (to[d] == -1 && free_one < 0) {
            free_one = (int)d;
            other.dim[d] = 1;
        } else if (to[d] < 0) {
            return;
        }
    }
    const int64_t rest = smp__onnx_elements(&other);
    if (all < 0 || rest < 0)
        return;
    if (free_one >= 0 && rest > 0 && all % rest == 0)
        other.dim[free_one] = all / rest;
    if (smp__onnx_elements(&other) == all)
        smp__shape_like(i->out, &other);
}

void smp__shape_transpose(smp__infer *i)
{
    size_t n;
    const int64_t *perm = smp__onnx_ints(i->node, "perm", &n);
    if (!i->in[0] || (perm && n != (size_t)i->in[0]->n_dim))
        return;
    const int dims = i->in[0]->n_dim;
    unsigned seen = 0;
    for (int d = 0; d < dims; d++) {
        const int64_t from = perm ? perm[d] : dims - 1 - d;
        if (from < 0 || from >= dims || seen >> from & 1)
            return;
        seen |= 1u << from;
        i->out->dim[d] = i->in[0]->dim[from];
    }
    i->out->n_dim = dims;
}

void smp__shape_concat(smp__infer *i)
{
    int axis;
    if (!i->in[0] || !smp__onnx_axis(smp__onnx_concat_axis(i->m, i->node), i->in[0]->n_dim, &axis))
        return;
    int64_t size = 0;
    for (int k = 0; k < i->node->n_in; k++) {
        const smp_onnx_value *v = smp__onnx_in(i->m, i->node, k);
        if (!v || v->n_dim != i->in[0]->n_dim || v->dim[axis] > INT64_MAX / 2 - size)
            return;
        for (int d = 0; d < v->n_dim; d++)
            if (d != axis && v->dim[d] != i->in[0]->dim[d])
                return;
        size += v->dim[axis];
    }
    smp__shape_like(i->out, i->in[0]);
    i->out->dim[axis] = size;
}

void smp__shape_split(smp__infer *i)
{
    int axis;
    const int64_t *sizes;
    size_t n;
    if (!i->in[0] || !smp__onnx_axis(smp__onnx_int(i->node, "axis", 0), i->in[0]->n_dim, &axis))
        return;
    const bool given = smp__onnx_list(i->m, i->node, "split", 1, &sizes, &n);
    if ((given && n != (size_t)i->node->n_out) || (!given && smp__onnx_in(i->m, i->node, 1)))
        return;
    const int64_t size = i->in[0]->dim[axis];
    int64_t left = size;
    for (int k = 0; given && k < i->node->n_out; k++) {
        if (sizes[k] < 0 || sizes[k] > left)
            return;
        left -= sizes[k];
    }
    if (given && left != 0)
        return;
    const int64_t part = (size + i->node->n_out - 1) / i->node->n_out;
    for (int k = 0; k < i->node->n_out; k++) {
        smp_onnx_value *out = smp__onnx_out(i->m, i->node, k);
        if (!out)
            continue;
        const int64_t rest = size - part * k;
        const int64_t own = given ? sizes[k] : rest < part ? rest : part;
        if (own < 0)
            continue;
        out->type = i->in[0]->type;
        smp__shape_like(out, i->in[0]);
        out->dim[axis] = own;
    }
}

/* Elements of begin:end:step of a dimension, its ends cut to what is there. */
static int64_t sliced(int64_t size, int64_t *begin, int64_t *end, int64_t step)
{
    if (step == 0 || step == INT64_MIN)
        return -1;
    const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
    int64_t *const ends[] = {begin, end};
    for (int k = 0; k < 2; k++) {
        int64_t at = *ends[k];
        if (at < 0)
            at = at < -size ? (k == 1 && step < 0 ? -1 : low) : at + size;
        *ends[k] = at < low ? low : at > high ? high : at;
    }
    const int64_t span = step > 0 ? *end - *begin : *begin - *end;
    const int64_t stride = step > 0 ? step : -step;
    return span <= 0 ? 0 : (span - 1) / stride + 1;
}

bool smp__onnx_slices(const smp_onnx_model *m, const smp_onnx_node *node, int64_t begin[],
                      int64_t step[], int64_t count[])
{
    const smp_onnx_value *in = smp__onnx_in(m, node, 0);
    const int64_t *from, *to, *axes = NULL, *steps = NULL;
    size_t n, n_to, n_axes = 0, n_steps = 0;
    if (!in || in->n_dim < 0 || !smp__onnx_list(m, node, "starts", 1, &from, &n) ||
        !smp__onnx_list(m, node, "ends", 2, &to, &n_to) || n_to != n)
        return false;
    const bool has_axes = smp__onnx_list(m, node, "axes", 3, &axes, &n_axes);
    const bool has_steps = smp__onnx_list(m, node, "steps", 4, &steps, &n_steps);
    if ((!has_axes && smp__onnx_in(m, node, 3)) || (!has_steps && smp__onnx_in(m, node, 4)) ||
        (has_axes && n_axes != n) || (has_steps && n_steps != n))
        return false;
    for (int d = 0; d < in->n_dim; d++) {
        begin[d] = 0;
        step[d] = 1;
        count[d] = in->dim[d];
    }
    for (size_t k = 0; k < n; k++) {
        int axis;
        if (!smp__onnx_axis(has_axes ? axes[k] : (int64_t)k, in->n_dim, &axis))
            return false;
        int64_t end = to[k];
        begin[axis] = from[k];
        step[axis] = has_steps ? steps[k] : 1;
        if ((count[axis] = sliced(in->dim[axis], &begin[axis], &end, step[axis])) < 0)
            return false;
    }
    return true;
}

void smp__shape_slice(smp__infer *i)
{
    int64_t begin[SMP_ONNX_DIMS], step[SMP_ONNX_DIMS], count[SMP_ONNX_DIMS];
    if (!smp__onnx_slices(i->m, i->node, begin, step, count))
        return;
    i->out->n_dim = i->in[0]->n_dim;
    memcpy(i->out->dim, count, sizeof(*count) * (size_t)i->in[0]->n_dim);
}

void smp__shape_squeeze(smp__infer *i)
{
    const int64_t *axes;
    size_t n = 0;
    if (!i->in[0])
        return;
    const bool given = smp__onnx_list(i->m, i->node, "axes", 1, &axes, &n);
    if (!given && smp__onnx_in(i->m, i->node, 1))
        return;
    unsigned gone = 0;
    for (size_t k = 0; k < n; k++) {
        int axis;
        if (!smp__onnx_axis(axes[k], i->in[0]->n_dim, &axis) || i->in[0]->dim[axis] != 1)
            return;
        gone |= 1u << axis;
    }
    int at = 0;
    for (int d = 0; d < i->in[0]->n_dim; d++)
        if (!(gone >> d & 1) && (given || i->in[0]->dim[d] != 1))
            i->out->dim[at++] = i->in[0]->dim[d];
    i->out->n_dim = at;
}

void smp__shape_unsqueeze(smp__infer *i)
{
    const int64_t *axes;
    size_t n;
    if (!i->in[0] || !smp__onnx_list(i->m, i->node, "axes", 1, &axes, &n) ||
        n + (size_t)i->in[0]->n_dim > SMP_ONNX_DIMS)
        return;
    const int dims = i->in[0]->n_dim + (int)n;
    unsigned added = 0;
    for (size_t k = 0; k < n; k++) {
        int axis;
        if (!smp__onnx_axis(axes[k], dims, &axis) || added >> axis & 1)
            return;
        added |= 1u << axis;
    }
    for (int d = 0, from = 0; d < dims; d++)
        i->out->dim[d] = added >> d & 1 ? 1 : i->in[0]->dim[from++];
    i->out->n_dim = dims;
}

void smp__shape_gather(smp__infer *i)
{
    int axis;
    const smp_onnx_value *from = i->in[0], *at = i->in[1];
    if (!from || !at || !smp__onnx_axis(smp__onnx_int(i->node, "axis", 0), from->n_dim, &axis) ||
        from->n_dim - 1 + at->n_dim > SMP_ONNX_DIMS)
        return;
    int n = 0;
    for (int d = 0; d < axis; d++)
        i->out->dim[n++] = from->dim[d];
    for (int d = 0; d < at->n_dim; d++)
        i->out->dim[n++] = at->dim[d];
    for (int d = axis + 1; d < from->n_dim; d++)
        i->out->dim[n++] = from->dim[d];
    i->out->n_dim = n;
}

/* Expand, and ConstantOfShape of its one input: a shape given by values. */
void smp__shape_gather_nd(smp__infer *i)
{
    const smp_onnx_value *from = i->in[0], *at = i->in[1];
    const int64_t skip = smp__onnx_int(i->node, "batch_dims", 0);
    if (!from || !at || at->n_dim < 1 || skip < 0 || skip >= at->n_dim)
        return;
    const int64_t used = skip + at->dim[at->n_dim - 1];
    if (used > from->n_dim || at->n_dim - 1 + from->n_dim - used > SMP_ONNX_DIMS)
        return;
    for (int d = 0; d < at->n_dim - 1; d++)
        i->out->dim[d] = at->dim[d];
    for (int64_t d = used; d < from->n_dim; d++)
        i->out->dim[at->n_dim - 1 + d - used] = from->dim[d];
    i->out->n_dim = at->n_dim - 1 + from->n_dim - (int)used;
}

void smp__shape_expand(smp__infer *i)
{
    const bool of_shape = strcmp(i->node->op, "ConstantOfShape") == 0;
    const smp_onnx_value *to = i->in[of_shape ? 0 : 1];
    if (!i->in[0] || !to || !to->ints || to->n_dim != 1 || to->dim[0] > SMP_ONNX_DIMS)
        return;
    smp_onnx_value shape = {.n_dim = (int)to->dim[0]};
    memcpy(shape.dim, to->ints, sizeof(int64_t) * (size_t)shape.n_dim);
    const int given = of_shape ? 0 : i->in[0]->n_dim;
    const int n = shape.n_dim > given ? shape.n_dim : given;
    for (int d = 0; d < n; d++) {
        const int64_t a = d - (n - shape.n_dim) < 0 ? 1 : shape.dim[d - (n - shape.n_dim)];
        const int64_t b = d - (n - given) < 0 ? 1 : i->in[0]->dim[d - (n - given)];
        if (a < 0 || (a != b && a != 1 && b != 1))
            return;
        i->out->dim[d] = a == 1 ? b : a;
    }
    i->out->n_dim = n;
    if (of_shape) {
        const Onnx__AttributeProto *value = smp__onnx_attr(i->node, "value");
        i->out->type = value && value->t ? value->t->data_type : TYPE(FLOAT);
    }
}

void smp__shape_tile(smp__infer *i)
{
    const smp_onnx_value *times = i->in[1];
    if (!i->in[0] || !times || !times->ints || smp__onnx_elements(times) != i->in[0]->n_dim)
        return;
    for (int d = 0; d < i->in[0]->n_dim; d++) {
        if (times->ints[d] < 0 || times->ints[d] > INT32_MAX || i->in[0]->dim[d] > INT32_MAX)
            return;
        i->out->dim[d] = i->in[0]->dim[d] * times->ints[d];
    }
    i->out->n_dim = i->in[0]->n_dim;
}

void smp__shape_pad(smp__infer *i)
{
    const int64_t *pads;
    size_t n;
    if (!i->in[0] || smp__onnx_in(i->m, i->node, 3) ||
        !smp__onnx_list(i->m, i->node, "pads", 1, &pads, &n) || n != 2 * (size_t)i->in[0]->n_dim)
        return;
    for (int d = 0; d < i->in[0]->n_dim; d++) {
        const int64_t before = pads[d], after = pads[d + i->in[0]->n_dim];
        if (before < -INT32_MAX || before > INT32_MAX || after < -INT32_MAX || after > INT32_MAX ||
            (i->out->dim[d] = i->in[0]->dim[d] + before + after) < 0)
            return;
    }
    i->out->n_dim = i->in[0]->n_dim;
}

void smp__shape_resize(smp__infer *i)
{
    if (!i->in[0])
        return;
    const bool upsample = strcmp(i->node->op, "Upsample") == 0;
    const smp_onnx_value *scales =
        smp__onnx_in(i->m, i->node, upsample || i->m->opset < 11 ? 1 : 2);
    const smp_onnx_value *sizes = upsample ? NULL : smp__onnx_in(i->m, i->node, 3);
    const int n = i->in[0]->n_dim;
    if (smp__onnx_attr(i->node, "axes"))
        return;
    if (sizes && sizes->ints && smp__onnx_elements(sizes) == n) {
        const char *policy = smp__onnx_text(i->node, "keep_aspect_ratio_policy", "stretch");
        if (strcmp(policy, "stretch") != 0)
            return; /* sizes are limits then */
        for (int d = 0; d < n; d++)
            if ((i->out->dim[d] = sizes->ints[d]) < 1)
                return;
    } else if (scales && scales->floats && smp__onnx_elements(scales) == n) {
        for (int d = 0; d < n; d++) {
            const double size = floor((double)i->in[0]->dim[d] * (double)scales->floats[d]);
            if (!(size >= 1 && size < 1e12))
                return;
            i->out->dim[d] = (int64_t)size;
        }
    } else {
        return;
    }
    i->out->n_dim = n;
}

void smp__shape_depth_and_space(smp__infer *i)
{
    const int64_t b = smp__onnx_int(i->node, "blocksize", 0);
    if (!i->in[0] || i->in[0]->n_dim != 4 || b < 1 || b > 1 << 15 || i->in[0]->dim[1] > INT32_MAX)
        return;
    const int64_t *d = i->in[0]->dim;
    const bool to_space = strcmp(i->node->op, "DepthToSpace") == 0;
    const int64_t dim[] = {d[0], to_space ? d[1] / (b * b) : d[1] * b * b,
                           to_space ? d[2] * b : d[2] / b, to_space ? d[3] * b : d[3] / b};
    memcpy(i->out->dim, dim, sizeof(dim));
    i->out->n_dim = 4;
}

void smp__shape_shape_of(smp__infer *i)
{
    i->out->type = TYPE(INT64);
    i->out->n_dim = 0;
    if (strcmp(i->node->op, "Size") == 0)
        return;
    i->out->n_dim = -1;
    if (!i->in[0])
        return;
    const int n = i->in[0]->n_dim;
    int64_t begin = smp__onnx_int(i->node, "start", 0), end = smp__onnx_int(i->node, "end", n);
    const int64_t count = sliced(n, &begin, &end, 1);
    i->out->n_dim = 1;
    i->out->dim[0] = count;
}
