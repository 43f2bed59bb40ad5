/* Types and shapes of what nodes make, operator by operator (ONNX's Operators.md). What is not here
 * keeps what the file says of its values. An inconsistent file makes shapes unknown. */
#include "graph/onnx/onnx_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TYPE(name) ONNX__TENSOR_PROTO__DATA_TYPE__##name

typedef struct infer {
    smp_onnx_model *m;
    const smp_onnx_node *node;
    const smp_onnx_value *in[4]; /* the first ones; NULL: left out, or its shape is not known */
    smp_onnx_value *out;         /* of output 0, whose n_dim is -1 on entry */
} infer;

static void shape_like(smp_onnx_value *out, const smp_onnx_value *in)
{
    out->n_dim = in->n_dim;
    memcpy(out->dim, in->dim, sizeof(out->dim));
}

static void like_first(infer *i)
{
    if (i->in[0])
        shape_like(i->out, i->in[0]);
}

static void broadcast(infer *i)
{
    int most = 0;
    for (int k = 0; k < i->node->n_in; k++) {
        const smp_onnx_value *v = smp__onnx_in(i->m, i->node, k);
        if (!v || v->n_dim < 0)
            return;
        most = v->n_dim > most ? v->n_dim : most;
    }
    for (int d = 0; d < most; d++) {
        int64_t size = 1;
        for (int k = 0; k < i->node->n_in; k++) {
            const smp_onnx_value *v = smp__onnx_in(i->m, i->node, k);
            const int at = d - (most - v->n_dim);
            const int64_t own = at < 0 ? 1 : v->dim[at];
            if (own != 1 && size != 1 && own != size)
                return;
            size = own == 1 ? size : own;
        }
        i->out->dim[d] = size;
    }
    i->out->n_dim = most;
}

static void compared(infer *i)
{
    broadcast(i);
    i->out->type = TYPE(BOOL);
}

static void cast(infer *i)
{
    like_first(i);
    i->out->type = (int)smp__onnx_int(i->node, "to", 0);
}

static void matmul(infer *i)
{
    const smp_onnx_value *a = i->in[0], *b = i->in[1];
    if (!a || !b || a->n_dim < 1 || b->n_dim < 1)
        return;
    const int na = a->n_dim < 2 ? 2 : a->n_dim, nb = b->n_dim < 2 ? 2 : b->n_dim;
    const int n = na > nb ? na : nb;
    int64_t dim[SMP_ONNX_DIMS];
    for (int d = 0; d < n - 2; d++) {
        const int64_t x = d - (n - na) < 0 ? 1 : a->dim[d - (n - na)];
        const int64_t y = d - (n - nb) < 0 ? 1 : b->dim[d - (n - nb)];
        if (x != y && x != 1 && y != 1)
            return;
        dim[d] = x == 1 ? y : x;
    }
    if (a->dim[a->n_dim - 1] != b->dim[b->n_dim < 2 ? 0 : b->n_dim - 2])
        return;
    int at = n - 2;
    if (a->n_dim >= 2)
        dim[at++] = a->dim[a->n_dim - 2];
    if (b->n_dim >= 2)
        dim[at++] = b->dim[b->n_dim - 1];
    memcpy(i->out->dim, dim, sizeof(*dim) * (size_t)at);
    i->out->n_dim = at;
}

static void gemm(infer *i)
{
    if (!i->in[0] || !i->in[1] || i->in[0]->n_dim != 2 || i->in[1]->n_dim != 2)
        return;
    const int ta = smp__onnx_int(i->node, "transA", 0) != 0;
    const int tb = smp__onnx_int(i->node, "transB", 0) != 0;
    if (i->in[0]->dim[!ta] != i->in[1]->dim[tb])
        return;
    i->out->n_dim = 2;
    i->out->dim[0] = i->in[0]->dim[ta];
    i->out->dim[1] = i->in[1]->dim[!tb];
}

/* One spatial dimension behind a window; -1: none. */
static int64_t windowed(const infer *i, int d, int n, int64_t size, int64_t kernel)
{
    size_t n_stride, n_pad, n_dilation;
    const int64_t *strides = smp__onnx_ints(i->node, "strides", &n_stride);
    const int64_t *pads = smp__onnx_ints(i->node, "pads", &n_pad);
    const int64_t *dilations = smp__onnx_ints(i->node, "dilations", &n_dilation);
    const int64_t stride = n_stride == (size_t)n ? strides[d] : 1;
    const int64_t dilation = n_dilation == (size_t)n ? dilations[d] : 1;
    const bool padded = n_pad == 2 * (size_t)n;
    if (padded &&
        (pads[d] < 0 || pads[d] > INT32_MAX || pads[d + n] < 0 || pads[d + n] > INT32_MAX))
        return -1;
    const int64_t pad = padded ? pads[d] + pads[d + n] : 0;
    const char *automatic = smp__onnx_text(i->node, "auto_pad", "NOTSET");
    if (stride < 1 || dilation < 1 || kernel < 1 || stride > INT32_MAX || dilation > INT32_MAX ||
        kernel > INT32_MAX)
        return -1;
    if (strncmp(automatic, "SAME", 4) == 0)
        return (size + stride - 1) / stride;
    const int64_t room =
        size + (strcmp(automatic, "VALID") == 0 ? 0 : pad) - dilation * (kernel - 1) - 1;
    if (room < 0)
        return -1;
    const bool ceil_mode = smp__onnx_int(i->node, "ceil_mode", 0) != 0;
    return (room + (ceil_mode ? stride - 1 : 0)) / stride + 1;
}

static void windows(infer *i, int64_t channels, const int64_t *kernel, int n_kernel)
{
    const int n = i->in[0]->n_dim - 2;
    if (n < 1 || n_kernel != n)
        return;
    for (int d = 0; d < n; d++)
        if ((i->out->dim[d + 2] = windowed(i, d, n, i->in[0]->dim[d + 2], kernel[d])) < 1)
            return;
    i->out->dim[0] = i->in[0]->dim[0];
    i->out->dim[1] = channels;
    i->out->n_dim = n + 2;
}

static void conv(infer *i)
{
    if (i->in[0] && i->in[1] && i->in[1]->n_dim >= 3 && i->in[0]->n_dim == i->in[1]->n_dim)
        windows(i, i->in[1]->dim[0], i->in[1]->dim + 2, i->in[1]->n_dim - 2);
}

static void pool(infer *i)
{
    size_t n;
    const int64_t *kernel = smp__onnx_ints(i->node, "kernel_shape", &n);
    if (i->in[0] && kernel && n < SMP_ONNX_DIMS)
        windows(i, i->in[0]->dim[1], kernel, (int)n);
}

static void global_pool(infer *i)
{
    if (!i->in[0] || i->in[0]->n_dim < 2)
        return;
    shape_like(i->out, i->in[0]);
    for (int d = 2; d < i->out->n_dim; d++)
        i->out->dim[d] = 1;
}

static void flatten(infer *i)
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

static void reshape(infer *i)
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
        shape_like(i->out, &other);
}

static void transpose(infer *i)
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

static void concat(infer *i)
{
    int axis;
    if (!i->in[0] || !smp__onnx_axis(smp__onnx_int(i->node, "axis", 0), i->in[0]->n_dim, &axis))
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
    shape_like(i->out, i->in[0]);
    i->out->dim[axis] = size;
}

static void split(infer *i)
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
    const int64_t part = (size + i->node->n_out - 1) / i->node->n_out;
    for (int k = 0; k < i->node->n_out; k++) {
        smp_onnx_value *out = smp__onnx_out(i->m, i->node, k);
        if (!out)
            continue;
        const int64_t rest = size - part * k;
        const int64_t own = given ? sizes[k] : rest < part ? rest : part;
        if (own < 0 || own > size)
            continue;
        out->type = i->in[0]->type;
        shape_like(out, i->in[0]);
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

static void slice(infer *i)
{
    int64_t begin[SMP_ONNX_DIMS], step[SMP_ONNX_DIMS], count[SMP_ONNX_DIMS];
    if (!smp__onnx_slices(i->m, i->node, begin, step, count))
        return;
    i->out->n_dim = i->in[0]->n_dim;
    memcpy(i->out->dim, count, sizeof(*count) * (size_t)i->in[0]->n_dim);
}

static void squeeze(infer *i)
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

static void unsqueeze(infer *i)
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

static void gather(infer *i)
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

static void like_second(infer *i)
{
    if (i->in[1])
        shape_like(i->out, i->in[1]);
}

/* Expand, and ConstantOfShape of its one input: a shape given by values. */
static void expand(infer *i)
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

static void tile(infer *i)
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

static void pad(infer *i)
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

static void reduce(infer *i)
{
    const int64_t *axes = NULL;
    size_t n = 0;
    if (!i->in[0])
        return;
    const bool given = smp__onnx_list(i->m, i->node, "axes", 1, &axes, &n) && n > 0;
    if (!given && smp__onnx_in(i->m, i->node, 1) && !smp__onnx_in(i->m, i->node, 1)->ints)
        return;
    const bool keep = smp__onnx_int(i->node, "keepdims", 1) != 0;
    unsigned gone = given ? 0 : (1u << i->in[0]->n_dim) - 1;
    if (!given && smp__onnx_int(i->node, "noop_with_empty_axes", 0) != 0)
        gone = 0;
    for (size_t k = 0; k < n; k++) {
        int axis;
        if (!smp__onnx_axis(axes[k], i->in[0]->n_dim, &axis))
            return;
        gone |= 1u << axis;
    }
    int at = 0;
    for (int d = 0; d < i->in[0]->n_dim; d++)
        if (!(gone >> d & 1) || keep)
            i->out->dim[at++] = gone >> d & 1 ? 1 : i->in[0]->dim[d];
    i->out->n_dim = at;
}

static void arg_max(infer *i)
{
    int axis;
    if (!i->in[0] || !smp__onnx_axis(smp__onnx_int(i->node, "axis", 0), i->in[0]->n_dim, &axis))
        return;
    int at = 0;
    for (int d = 0; d < i->in[0]->n_dim; d++)
        if (d != axis || smp__onnx_int(i->node, "keepdims", 1) != 0)
            i->out->dim[at++] = d == axis ? 1 : i->in[0]->dim[d];
    i->out->n_dim = at;
    i->out->type = TYPE(INT64);
}

static void shape_of(infer *i)
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

static void range(infer *i)
{
    double value[3];
    for (int k = 0; k < 3; k++)
        if (!smp__onnx_scalar(smp__onnx_in(i->m, i->node, k), &value[k]))
            return;
    const double n = value[2] != 0 ? ceil((value[1] - value[0]) / value[2]) : -1;
    if (!(n < 1e9))
        return;
    i->out->n_dim = 1;
    i->out->dim[0] = n > 0 ? (int64_t)n : 0;
}

static void resize(infer *i)
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

static void where(infer *i)
{
    broadcast(i);
    i->out->type = i->in[1] ? i->in[1]->type : 0;
}

static void depth_and_space(infer *i)
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

typedef struct rule {
    const char *op;
    void (*infer)(infer *i);
} rule;

/* By name, so that they can be looked for. */
static const rule RULES[] = {
    {"Abs", like_first},
    {"Add", broadcast},
    {"And", compared},
    {"ArgMax", arg_max},
    {"ArgMin", arg_max},
    {"AveragePool", pool},
    {"BatchNormalization", like_first},
    {"Cast", cast},
    {"Ceil", like_first},
    {"Clip", like_first},
    {"Concat", concat},
    {"ConstantOfShape", expand},
    {"Conv", conv},
    {"Cos", like_first},
    {"CumSum", like_first},
    {"DepthToSpace", depth_and_space},
    {"Div", broadcast},
    {"Dropout", like_first},
    {"Elu", like_first},
    {"Equal", compared},
    {"Erf", like_first},
    {"Exp", like_first},
    {"Expand", expand},
    {"Flatten", flatten},
    {"Floor", like_first},
    {"Gather", gather},
    {"GatherElements", like_second},
    {"Gelu", like_first},
    {"Gemm", gemm},
    {"GlobalAveragePool", global_pool},
    {"GlobalMaxPool", global_pool},
    {"Greater", compared},
    {"GreaterOrEqual", compared},
    {"GroupNormalization", like_first},
    {"HardSigmoid", like_first},
    {"HardSwish", like_first},
    {"Identity", like_first},
    {"InstanceNormalization", like_first},
    {"LRN", like_first},
    {"LayerNormalization", like_first},
    {"LeakyRelu", like_first},
    {"Less", compared},
    {"LessOrEqual", compared},
    {"Log", like_first},
    {"LogSoftmax", like_first},
    {"LpPool", pool},
    {"MatMul", matmul},
    {"Max", broadcast},
    {"MaxPool", pool},
    {"Mean", broadcast},
    {"Min", broadcast},
    {"Mish", like_first},
    {"Mod", broadcast},
    {"Mul", broadcast},
    {"Neg", like_first},
    {"Not", like_first},
    {"Or", compared},
    {"PRelu", like_first},
    {"Pad", pad},
    {"Pow", broadcast},
    {"Range", range},
    {"Reciprocal", like_first},
    {"ReduceL1", reduce},
    {"ReduceL2", reduce},
    {"ReduceMax", reduce},
    {"ReduceMean", reduce},
    {"ReduceMin", reduce},
    {"ReduceProd", reduce},
    {"ReduceSum", reduce},
    {"ReduceSumSquare", reduce},
    {"Relu", like_first},
    {"Reshape", reshape},
    {"Resize", resize},
    {"Round", like_first},
    {"ScatterND", like_first},
    {"Selu", like_first},
    {"Shape", shape_of},
    {"Sigmoid", like_first},
    {"Sign", like_first},
    {"Sin", like_first},
    {"Size", shape_of},
    {"Slice", slice},
    {"Softmax", like_first},
    {"Softplus", like_first},
    {"Softsign", like_first},
    {"SpaceToDepth", depth_and_space},
    {"Split", split},
    {"Sqrt", like_first},
    {"Squeeze", squeeze},
    {"Sub", broadcast},
    {"Sum", broadcast},
    {"Tanh", like_first},
    {"Tile", tile},
    {"Transpose", transpose},
    {"Trilu", like_first},
    {"Unsqueeze", unsqueeze},
    {"Upsample", resize},
    {"Where", where},
    {"Xor", compared},
};

static int by_name(const void *key, const void *item)
{
    return strcmp(key, ((const rule *)item)->op);
}

void smp__onnx_infer(smp_onnx_model *model, const smp_onnx_node *node)
{
    infer i = {.m = model, .node = node, .out = smp__onnx_out(model, node, 0)};
    for (int k = 0; k < 4; k++) {
        const smp_onnx_value *v = smp__onnx_in(model, node, k);
        i.in[k] = v && v->n_dim >= 0 ? v : NULL;
    }
    const rule *found =
        bsearch(node->op, RULES, sizeof(RULES) / sizeof(RULES[0]), sizeof(RULES[0]), by_name);
    if (!found || !i.out)
        return;
    i.out->type = i.in[0] ? i.in[0]->type : 0;
    found->infer(&i);
    if (smp__onnx_elements(i.out) < 0)
        i.out->n_dim = -1;
}
