/* A tensor and a constant, added or multiplied: a bias, a table, a parameter, or a row of one. */
#include "graph/import/importing.h"

#include <string.h>

/* Values of a constant as one sample of the value beside it has them; NULL, with the reason, if
 * they differ between samples or have more dimensions. */
static const float *spread(smp_import *im, const smp_onnx_value *c, const smp_onnx_value *like,
                           const smp__bound *bound, int64_t n)
{
    if (!c->floats || like->n_dim < c->n_dim) {
        smp__refuse(im, "the constant '%.60s' does not fit its other input", c->name);
        return NULL;
    }
    const int first = bound->single ? 0 : 1, skip = like->n_dim - c->n_dim;
    const bool by_sample = skip == 0 && first == 1 && c->dim[0] != 1;
    float *values = smp__onnx_take(im->model, n, sizeof(*values));
    if (!values)
        smp__refuse(im, "constants take too much memory");
    for (int64_t i = 0; values && i < n; i++) {
        int64_t rest = i, at = 0, stride = 1;
        for (int d = like->n_dim - 1; d >= first && d >= skip; d--) {
            const int64_t size = like->dim[d], own = c->dim[d - skip];
            if (own != 1 && own != size)
                return smp__refuse(im, "'%.60s' is larger than its other input", c->name), NULL;
            at += own == 1 ? 0 : rest % size * stride;
            stride *= own;
            rest /= size;
        }
        values[i] = c->floats[at];
        for (int64_t s = 1; by_sample && s < c->dim[0]; s++)
            if (c->floats[s * stride + at] != values[i])
                return smp__refuse(im, "'%.60s' differs between samples", c->name), NULL;
    }
    return values;
}

/* The only dimension of a constant beside ones, of a sample; -1: it has none or several. */
static int only_axis(const smp_onnx_value *c, const smp_onnx_value *like, const smp__bound *bound)
{
    int axis = -1;
    for (int d = 0; d < c->n_dim; d++) {
        if (c->dim[d] == 1)
            continue;
        if (axis >= 0)
            return -1;
        axis = d + like->n_dim - c->n_dim;
    }
    return axis < 0 ? -1 : smp__sample_axis(bound, axis, like->n_dim);
}

/* Is it one row of a table, the same for all positions, of which nothing else is read? Token types
 * are, where a text has none. Of several equal rows none is the one. */
static bool one_row(smp_import *im, const smp_onnx_value *c)
{
    const int64_t n = smp__onnx_elements(c), d = c->n_dim > 0 ? c->dim[c->n_dim - 1] : 0;
    const smp_onnx_value *table = c->stored >= 0 ? &im->model->value[c->stored] : NULL;
    int64_t rows = 0;
    if (d < 1 || !c->floats || !table || !table->floats || table->n_dim != 2 ||
        table->dim[1] != d || !smp__onnx_work(im->model, n + smp__onnx_elements(table)))
        return false;
    for (int32_t i = 0; i < im->model->n_value; i++) {
        const smp_onnx_value *v = &im->model->value[i];
        if (v != c && v->n_use > 0 && v->stored == c->stored)
            return false;
    }
    for (int64_t i = d; i < n; i++)
        if (c->floats[i] != c->floats[i % d])
            return false;
    for (int64_t r = 0; r < table->dim[0]; r++)
        rows += memcmp(table->floats + r * d, c->floats, sizeof(float) * (size_t)d) == 0;
    return rows == 1;
}

static bool add_row(smp_import *im, const smp_onnx_node *node, const smp_onnx_value *c,
                    smp__bound *x)
{
    const int last = x->shape.n_dim - 1;
    const smp_onnx_value *table = &im->model->value[c->stored];
    const char *name = smp__op_name(im, node, table), *role = "bias";
    const char *tied =
        smp__add_weight(im, name, role, (smp_shape){1, {x->shape.dim[last]}}, c, c->floats, false);
    smp_text_append(&im->notes, "# %s: the only row of this table that the model reads\n", name);
    x->tensor = smp__emit_one(im, "bias", name, x->tensor, ", axis: %d%s}", last,
                              smp__ties(im, &role, &tied, 1));
    smp__bind(im, node, 0, x);
    return true;
}

const char *smp__parameter(smp_import *im, const smp_onnx_node *node, const smp_onnx_value *c,
                           const smp_shape *shape, const float *values)
{
    const char *name = smp__op_name(im, node, c), *role = "weight";
    const char *tied = smp__add_weight(im, name, role, *shape, c, values, false);
    smp_text dims = {0};
    for (int d = 0; d < shape->n_dim; d++)
        smp_text_append(&dims, "%s%lld", d > 0 ? ", " : "", (long long)shape->dim[d]);
    smp_text_append(&im->ops, "  - {op: parameter, name: %s, out: %s, shape: [%s]%s}\n", name, name,
                    dims.data ? dims.data : "", smp__ties(im, &role, &tied, 1));
    im->n_op++;
    smp_text_free(&dims);
    return name;
}

static bool all_zero(smp_import *im, const smp_onnx_value *c)
{
    const int64_t n = smp__onnx_elements(c);
    bool zero = c->floats && smp__onnx_work(im->model, n);
    for (int64_t i = 0; i < n && zero; i++)
        zero = c->floats[i] == 0;
    return zero;
}

bool smp__with_constant(smp_import *im, const smp_onnx_node *node, const char *kind, int tensor,
                        int constant)
{
    const smp_onnx_value *c = smp__onnx_in(im->model, node, constant);
    const smp_onnx_value *like = smp__onnx_in(im->model, node, tensor);
    smp__bound x;
    if (!smp__tensor_in(im, node, tensor, &x))
        return false;
    const smp_onnx_value *out = smp__onnx_out(im->model, node, 0);
    const int64_t n = smp__product(&x.shape, 0, x.shape.n_dim);
    if (strcmp(kind, "add") == 0 && smp__onnx_reads_buffer(node) &&
        smp__same_size(im, node, tensor) && all_zero(im, c))
        return smp__passes(im, node, tensor);
    if (!c->floats || smp__onnx_elements(out) != smp__onnx_elements(like) || x.shape.n_dim < 1 ||
        x.merged > 0 || n > 1 << 26)
        return smp__refuse(im, "no operator adds or multiplies a constant of this shape");
    const bool adds = strcmp(kind, "add") == 0;
    const bool batched = !x.single && c->n_dim == like->n_dim && c->dim[0] == im->model->batch;
    if (im->options->loss && adds && c->repeats && !(batched && c->by_sample) &&
        c->dim[c->n_dim - 1] == x.shape.dim[x.shape.n_dim - 1] && one_row(im, c))
        return add_row(im, node, c, &x);
    if (!(batched && c->by_sample) && !smp__trainable(im, c))
        return false;
    const int axis = only_axis(c, like, &x);
    if (adds && axis >= 0 && c->n_dim <= like->n_dim &&
        x.shape.dim[axis] == smp__onnx_elements(c)) {
        const char *name = smp__op_name(im, node, c), *role = "bias";
        const char *tied = smp__add_weight(im, name, "bias", (smp_shape){1, {x.shape.dim[axis]}}, c,
                                           c->floats, false);
        x.tensor = smp__emit_one(im, "bias", name, x.tensor, ", axis: %d%s}", axis,
                                 smp__ties(im, &role, &tied, 1));
        smp__bind(im, node, 0, &x);
        return true;
    }
    const bool full = smp__onnx_elements(c) == (batched ? n * im->model->batch : n);
    if (im->options->loss && !full)
        return smp__refuse(im, "a weight of another shape than the tensor that it is %s",
                           adds ? "added to" : "multiplied with");
    const float *values = spread(im, c, like, &x, n);
    if (!values)
        return false;
    if (adds && x.shape.n_dim == 2) {
        const char *name = smp__op_name(im, node, c), *role = "weight";
        const char *tied = smp__add_weight(im, name, role, x.shape, c, values, false);
        x.tensor = smp__emit_one(im, "position_embedding", name, x.tensor, "%s}",
                                 smp__ties(im, &role, &tied, 1));
    } else {
        const char *name = smp__parameter(im, node, c, &x.shape, values);
        const char *in[] = {tensor == 0 ? x.tensor : name, tensor == 0 ? name : x.tensor};
        x.tensor = smp__emit(im, kind, smp__unique(im, name), in, 2, "}");
    }
    smp__bind(im, node, 0, &x);
    return true;
}
