/* Rotary positions as exporters write them: x * cos + turned(x) * sin, where turned(x) is minus the
 * second half of each head and then the first; the tables are constants. They become `rope` if they
 * are those of one base. */
#include "graph/import/importing.h"

#include <math.h>
#include <string.h>

static bool heads_with_width_last(const smp__bound *b)
{
    return b && b->form == SMP__HEADS && b->q.factor == 1 && b->q.repeat == 1 &&
           smp__axes_end_in_width(b) && b->q.width % 2 == 0 && b->deferred < SMP__MOST_DEFERRED - 8;
}

static void bind_half(smp_import *im, const smp_onnx_node *node, int output,
                      const smp__bound *heads, int half)
{
    smp__bound x = *heads;
    x.form = SMP__HALF;
    x.half = half;
    x.deferred++;
    smp__bind(im, node, output, &x);
}

bool smp__rotary_slice(smp_import *im, const smp_onnx_node *node)
{
    const smp__bound *in = smp__peek(im, node, 0);
    const smp_onnx_value *v = smp__onnx_in(im->model, node, 0);
    int64_t begin[SMP_ONNX_DIMS], step[SMP_ONNX_DIMS], count[SMP_ONNX_DIMS];
    if (!heads_with_width_last(in) || !smp__onnx_slices(im->model, node, begin, step, count))
        return false;
    const int last = v->n_dim - 1;
    for (int d = 0; d < last; d++)
        if (count[d] != v->dim[d] || step[d] != 1)
            return false;
    const int64_t half = in->q.width / 2;
    if (count[last] != half || step[last] != 1 || begin[last] % half != 0)
        return false;
    bind_half(im, node, 0, in, begin[last] != 0);
    return true;
}

bool smp__rotary_split(smp_import *im, const smp_onnx_node *node)
{
    const smp__bound *in = smp__peek(im, node, 0);
    int axis;
    if (!heads_with_width_last(in) || node->n_out != 2)
        return false;
    const smp_onnx_value *v = smp__onnx_in(im->model, node, 0);
    const smp_onnx_value *first = smp__onnx_out(im->model, node, 0);
    if (!smp__onnx_axis(smp__onnx_int(node, "axis", 0), v->n_dim, &axis) || axis != v->n_dim - 1 ||
        !first || first->dim[axis] != in->q.width / 2)
        return false;
    for (int k = 0; k < 2; k++)
        bind_half(im, node, k, in, k);
    return true;
}

bool smp__rotary_negate(smp_import *im, const smp_onnx_node *node)
{
    const smp__bound *in = smp__peek(im, node, 0);
    if (!in || in->form != SMP__HALF || in->half != 1)
        return false;
    bind_half(im, node, 0, in, 2 + 1);
    return true;
}

static bool same_heads(const smp__bound *a, const smp__bound *b)
{
    return a->q.tensor == b->q.tensor && strcmp(a->axes, b->axes) == 0 &&
           a->q.heads == b->q.heads && a->q.width == b->q.width;
}

bool smp__rotary_concat(smp_import *im, const smp_onnx_node *node)
{
    const smp__bound *a = smp__peek(im, node, 0), *b = smp__peek(im, node, 1);
    const smp_onnx_value *out = smp__onnx_out(im->model, node, 0);
    int axis;
    if (!a || !b || node->n_in != 2 || a->form != SMP__HALF || b->form != SMP__HALF ||
        a->half != 3 || b->half != 0 || !same_heads(a, b) ||
        !smp__onnx_axis(smp__onnx_concat_axis(im->model, node), out->n_dim, &axis) ||
        axis != out->n_dim - 1)
        return false;
    smp__bound x = *a;
    x.form = SMP__TURNED;
    x.deferred++;
    smp__bind(im, node, 0, &x);
    return true;
}

/* A table [T][W] for the heads as they lie, its other dimensions 1. */
static bool is_table(const smp_onnx_value *v, const smp_onnx_value *like, const smp__bound *heads)
{
    const int skip = like->n_dim - v->n_dim;
    bool position = false, width = false;
    if (!v->floats || skip < 0 || smp__onnx_elements(v) != heads->q.length * heads->q.width)
        return false;
    for (int d = 0; d < v->n_dim; d++) {
        const bool is_position = smp__axis_is(heads, d + skip, 'T');
        const bool is_width = smp__axis_is(heads, d + skip, 'W');
        if (v->dim[d] != (is_position || is_width ? like->dim[d + skip] : 1) ||
            (is_position && width))
            return false;
        position |= is_position;
        width |= is_width;
    }
    return position && width;
}

bool smp__rotary_mul(smp_import *im, const smp_onnx_node *node)
{
    for (int k = 0; k < 2; k++) {
        const smp__bound *in = smp__peek(im, node, k);
        const smp_onnx_value *v = smp__onnx_in(im->model, node, 1 - k);
        if (!in || !v || (!heads_with_width_last(in) && in->form != SMP__TURNED) ||
            !is_table(v, smp__onnx_in(im->model, node, k), in))
            continue;
        smp__bound x = *in;
        x.form = in->form == SMP__TURNED ? SMP__SINE : SMP__COSINE;
        x.table = v->floats;
        x.deferred++;
        smp__bind(im, node, 0, &x);
        return true;
    }
    return false;
}

/* The base whose angles t * base^(-2 i / width) the tables have; 0: none. */
static double base_of(const float *cosine, const float *sine, int64_t length, int64_t width)
{
    const int64_t half = width / 2;
    double base = 10000;
    if (length > 1 && half > 1) {
        const double angle = atan2((double)sine[width + 1], (double)cosine[width + 1]);
        if (!(angle > 0))
            return 0;
        base = pow(angle, -(double)width / 2);
        base = fabs(base / round(base) - 1) < 1e-3 ? round(base) : base;
    }
    for (int64_t t = 0; t < length; t++)
        for (int64_t i = 0; i < width; i++) {
            const double angle = (double)t * pow(base, -2.0 * (double)(i % half) / (double)width);
            const double slack = 1e-5 + 1e-6 * (double)t;
            if (!(fabs(cos(angle) - (double)cosine[t * width + i]) < slack) ||
                !(fabs(sin(angle) - (double)sine[t * width + i]) < slack))
                return 0;
        }
    return base >= 1 && base <= 1e12 ? base : 0;
}

bool smp__rotary_add(smp_import *im, const smp_onnx_node *node)
{
    const smp__bound *a = smp__peek(im, node, 0), *b = smp__peek(im, node, 1);
    if (a && b && a->form == SMP__SINE) {
        const smp__bound *other = a;
        a = b;
        b = other;
    }
    if (!a || !b || a->form != SMP__COSINE || b->form != SMP__SINE || !same_heads(a, b))
        return false;
    const double base = base_of(a->table, b->table, a->q.length, a->q.width);
    if (base == 0)
        return false;
    smp__bound x = *a;
    x.form = SMP__HEADS;
    x.deferred = 0;
    x.q.tensor = smp__emit_one(im, "rope", smp__op_name(im, node, NULL), a->q.tensor,
                               ", heads: %lld, base: %.17g}", (long long)a->q.heads, base);
    smp__bind(im, node, 0, &x);
    return true;
}
