/* Operators that move values: reshape and its kin, transpose, concat, split, slice. */
#include "graph/import/importing.h"

#include <stdio.h>
#include <string.h>

bool smp__only_moves(const char *op)
{
    static const char *const MOVES[] = {"Cast",    "Expand",  "Flatten",  "Identity",
                                        "Reshape", "Squeeze", "Unsqueeze"};
    for (size_t k = 0; k < sizeof(MOVES) / sizeof(MOVES[0]); k++)
        if (strcmp(MOVES[k], op) == 0)
            return true;
    return false;
}

/* Flatten, Reshape, Squeeze, Unsqueeze: the same values by other dimensions. */
static bool reshape(smp_import *im, const smp_onnx_node *node)
{
    if (smp__mask_step(im, node) || smp__heads_reshape(im, node))
        return true;
    const smp_onnx_value *in = smp__onnx_in(im->model, node, 0);
    const smp_onnx_value *out = smp__onnx_out(im->model, node, 0);
    smp__bound x;
    smp_shape to;
    if (!in)
        return false;
    x = *smp__bound_of(im, in);
    if (x.form != SMP__TENSOR && !smp__tensor_of(im, in, &x))
        return false;
    const int64_t n = smp__product(&x.shape, 0, x.shape.n_dim);
    if (x.opaque)
        return smp__refuse(im, "its input is not of float32 or int32");
    if (!x.single && smp__sample_shape(im, out, &to) && smp__product(&to, 0, to.n_dim) == n) {
        if (to.n_dim < 1)
            return smp__refuse(im, "a sample is a single value");
        x.tensor = smp__reshaped(im, smp__op_name(im, node, NULL), x.tensor, &x.shape, &to);
        x.shape = to;
        x.merged = 0;
        smp__bind(im, node, 0, &x);
        return true;
    }
    /* The batch with the first dimensions of a sample: rows of all samples below one another. */
    for (int m = 1; !x.single && m < x.shape.n_dim; m++)
        if (out->n_dim == x.shape.n_dim - m + 1 &&
            out->dim[0] == im->model->batch * smp__product(&x.shape, 0, m) &&
            memcmp(out->dim + 1, x.shape.dim + m, sizeof(int64_t) * (size_t)(out->n_dim - 1)) ==
                0) {
            x.merged = m;
            smp__bind(im, node, 0, &x);
            return true;
        }
    return smp__refuse(im, "mixes samples with other dimensions");
}

static bool transpose(smp_import *im, const smp_onnx_node *node)
{
    if (smp__heads_transpose(im, node))
        return true;
    const smp_onnx_value *in = smp__onnx_in(im->model, node, 0);
    smp__bound x;
    size_t n;
    const int64_t *perm = smp__onnx_ints(node, "perm", &n);
    if (!in || !smp__tensor_in(im, node, 0, &x))
        return false;
    const int first = x.single ? 0 : 1, dims = in->n_dim;
    if (x.merged > 0 || (perm && n != (size_t)dims) ||
        (first == 1 && (perm ? perm[0] != 0 : dims != 1)))
        return smp__refuse(im, "moves the batch to another place");
    char axes[64] = "";
    smp_shape to = x.shape;
    bool moves = false;
    for (int d = 0; d < x.shape.n_dim; d++) {
        const int from = (perm ? (int)perm[d + first] : dims - 1 - d) - first;
        if (from < 0 || from >= x.shape.n_dim)
            return smp__refuse(im, "its perm is none");
        moves |= from != d;
        to.dim[d] = x.shape.dim[from];
        snprintf(axes + strlen(axes), sizeof(axes) - strlen(axes), "%s%d", d > 0 ? ", " : "", from);
    }
    if (moves)
        x.tensor = smp__emit_one(im, "transpose", smp__op_name(im, node, NULL), x.tensor,
                                 ", axes: [%s]}", axes);
    x.shape = to;
    smp__bind(im, node, 0, &x);
    return true;
}

/* Input k, which may be a weight that is the same for all samples: a class token. */
static bool part_of_concat(smp_import *im, const smp_onnx_node *node, int k, smp__bound *x)
{
    const smp_onnx_value *v = smp__onnx_in(im->model, node, k);
    const int64_t n = v && v->n_dim > 1 ? smp__onnx_elements(v) / v->dim[0] : 0;
    if (!v || !v->floats || n < 1 || !smp__sample_shape(im, v, &x->shape) ||
        (!v->by_sample && !smp__trainable(im, v)) ||
        !smp__onnx_work(im->model, smp__onnx_elements(v)))
        return smp__tensor_in(im, node, k, x);
    for (int64_t i = n; i < smp__onnx_elements(v); i++)
        if (v->floats[i] != v->floats[i % n])
            return smp__refuse(im, "input '%.60s' differs between samples", v->name);
    *x = (smp__bound){.form = SMP__TENSOR, .shape = x->shape};
    x->tensor = smp__parameter(im, node, v, &x->shape, v->floats);
    return true;
}

static bool is_nothing(const smp_import *im, const smp_onnx_node *node, int k)
{
    const smp_onnx_value *v = smp__onnx_in(im->model, node, k);
    return v && smp__onnx_elements(v) == 0;
}

static bool concat(smp_import *im, const smp_onnx_node *node)
{
    enum { MOST = 32 };
    if (smp__rotary_concat(im, node))
        return true;
    const smp_onnx_value *out = smp__onnx_out(im->model, node, 0);
    smp__bound x, all = {0};
    const char *in[MOST];
    if (node->n_in > MOST)
        return smp__refuse(im, "%d inputs, expected at most %d", node->n_in, MOST);
    int64_t size = 0;
    int axis = -1, n = 0, some = 0;
    for (int k = 0; k < node->n_in; k++)
        if (!is_nothing(im, node, k)) {
            some = k;
            n++;
        }
    if (n == 1 && smp__peek(im, node, some) && smp__passes(im, node, some))
        return true;
    n = 0;
    for (int k = 0; k < node->n_in; k++) {
        if (is_nothing(im, node, k))
            continue;
        if (!part_of_concat(im, node, k, &x))
            return false;
        axis = smp__sample_axis(&x, smp__onnx_concat_axis(im->model, node), out->n_dim);
        if (axis < 0 || x.merged > 0 || (n > 0 && x.single != all.single))
            return smp__refuse(im, "puts samples one after another");
        size += x.shape.dim[axis];
        in[n++] = x.tensor;
        all = x;
    }
    if (n == 0)
        return smp__refuse(im, "makes nothing");
    all.shape.dim[axis] = size;
    if (n > 1)
        all.tensor =
            smp__emit(im, "concat", smp__op_name(im, node, NULL), in, n, ", axis: %d}", axis);
    smp__bind(im, node, 0, &all);
    return true;
}

static bool split(smp_import *im, const smp_onnx_node *node)
{
    enum { MOST_PARTS = 32 };
    if (smp__rotary_split(im, node))
        return true;
    const smp_onnx_value *in = smp__onnx_in(im->model, node, 0);
    smp__bound x;
    int cut, taken = 0;
    if (in && smp__onnx_axis(smp__onnx_int(node, "axis", 0), in->n_dim, &cut) &&
        in->dim[cut] == node->n_out)
        while (taken < node->n_out && smp__heads_select(im, node, taken, cut, taken, true))
            taken++;
    if (taken == node->n_out)
        return true;
    if (!in || !smp__tensor_in(im, node, 0, &x))
        return false;
    const int axis = smp__sample_axis(&x, smp__onnx_int(node, "axis", 0), in->n_dim);
    if (axis < x.merged || node->n_out < 1 || node->n_out > MOST_PARTS)
        return smp__refuse(im, "splits the batch");
    const char *part[MOST_PARTS];
    int64_t size[MOST_PARTS], all = 0;
    int n = 0;
    for (; n < node->n_out; n++) {
        const smp_onnx_value *v = smp__onnx_out(im->model, node, n);
        if (!v || v->n_dim != in->n_dim)
            break;
        size[n] = v->dim[x.single ? axis : axis - x.merged + 1];
        all += size[n];
    }
    if (n < node->n_out || all != x.shape.dim[axis])
        return smp__refuse(im, "one of its outputs is left out");
    part[0] = x.tensor;
    if (n > 1)
        smp__split(im, smp__op_name(im, node, NULL), x.tensor, axis, n, size, part);
    for (int k = 0; k < n; k++) {
        x.tensor = part[k];
        x.shape.dim[axis] = size[k];
        smp__bind(im, node, k, &x);
    }
    return true;
}

static bool slice(smp_import *im, const smp_onnx_node *node)
{
    if (smp__rotary_slice(im, node))
        return true;
    const smp_onnx_value *in = smp__onnx_in(im->model, node, 0);
    int64_t begin[SMP_ONNX_DIMS], step[SMP_ONNX_DIMS], count[SMP_ONNX_DIMS];
    smp__bound x;
    if (!in || !smp__onnx_slices(im->model, node, begin, step, count))
        return smp__refuse(im, "its ranges are not known");
    int cut = -1, n_cut = 0;
    for (int d = 0; d < in->n_dim; d++)
        if (count[d] != in->dim[d] || step[d] != 1) {
            cut = d;
            n_cut++;
        }
    const smp__bound *bound = smp__bound_of(im, in);
    if (n_cut == 0 && bound->form != SMP__NOTHING && bound->deferred < SMP__MOST_DEFERRED) {
        smp__bound same = *bound;
        same.deferred += same.form != SMP__TENSOR;
        smp__bind(im, node, 0, &same);
        return true;
    }
    if (n_cut == 1 && count[cut] == 1 && smp__heads_select(im, node, 0, cut, begin[cut], true))
        return true;
    if (!smp__tensor_in(im, node, 0, &x))
        return false;
    for (int d = 0; d < in->n_dim; d++) {
        if (count[d] == in->dim[d] && step[d] == 1)
            continue;
        const int axis = smp__sample_axis(&x, d, in->n_dim);
        if (axis < x.merged || step[d] != 1)
            return smp__refuse(im,
                               step[d] != 1 ? "leaves elements out" : "takes some of the samples");
        const int64_t end = begin[d] + count[d];
        x.tensor = smp__emit_one(im, "slice", smp__op_name(im, node, NULL), x.tensor,
                                 ", axis: %d, begin: %lld, end: %lld}", axis, (long long)begin[d],
                                 end == in->dim[d] ? 0LL : (long long)end);
        x.shape.dim[axis] = count[d];
    }
    smp__bind(im, node, 0, &x);
    return true;
}

/* To the shape that it has. */
static bool expand(smp_import *im, const smp_onnx_node *node)
{
    const smp_onnx_value *in = smp__onnx_in(im->model, node, 0);
    const smp_onnx_value *out = smp__onnx_out(im->model, node, 0);
    if (smp__mask_step(im, node) || smp__heads_expand(im, node))
        return true;
    const smp__bound *bound = smp__peek(im, node, 0);
    if (!in || !bound || bound->form != SMP__TENSOR ||
        smp__onnx_elements(in) != smp__onnx_elements(out))
        return smp__refuse(im, "repeats values");
    smp__bound copy = *bound;
    smp__bind(im, node, 0, &copy);
    return true;
}

const smp__converter smp__convert_layout[] = {
    {"Concat", concat},       {"Expand", expand},     {"Flatten", reshape}, {"Reshape", reshape},
    {"Slice", slice},         {"Split", split},       {"Squeeze", reshape}, {"Tile", expand},
    {"Transpose", transpose}, {"Unsqueeze", reshape}, {NULL, NULL},
};
