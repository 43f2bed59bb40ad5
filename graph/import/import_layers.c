/* Operators with weights: products, tables, norms. */
#include "graph/import/importing.h"

#include <stdlib.h>
#include <string.h>

static const char *const WEIGHT_BIAS[] = {"weight", "bias"};

/* A constant of floats with `n` dimensions. */
static const smp_onnx_value *weight_in(smp_import *im, const smp_onnx_node *node, int k, int n)
{
    const smp_onnx_value *v = smp__onnx_in(im->model, node, k);
    if (!v || !v->floats || v->n_dim != n) {
        smp__refuse(im, "input %d is no constant of %d dimensions", k, n);
        return NULL;
    }
    return smp__trainable(im, v) ? v : NULL;
}

/* What follows a node alone: an Add of a constant of n values. Its bias, and the Add in *next. */
static const smp_onnx_value *bias_behind(smp_import *im, const smp_onnx_node *node, int64_t n,
                                         const smp_onnx_node **next)
{
    const smp_onnx_value *out = smp__onnx_out(im->model, node, 0);
    const int32_t reader = im->reader[out - im->model->value];
    if (out->n_use != 1 || reader < 0 || strcmp(im->model->node[reader].op, "Add") != 0)
        return NULL;
    *next = &im->model->node[reader];
    for (int k = 0; k < 2; k++) {
        const smp_onnx_value *v = smp__onnx_in(im->model, *next, k);
        if (v && v->floats && v->n_dim == 1 && v->dim[0] == n && out->n_dim > 1 &&
            out->dim[out->n_dim - 1] == n &&
            (!im->options->loss || (v->stored >= 0 && !v->repeats)))
            return v;
    }
    return NULL;
}

/* x [.., in] times w, to x's dimensions but for the last. w: [in][out], or [out][in] as ours is. */
static bool linear(smp_import *im, const smp_onnx_node *node, const smp_onnx_value *w, bool as_ours,
                   const smp_onnx_value *bias)
{
    smp__bound x, seen = *smp__peek(im, node, 0);
    /* Whatever the order of samples and positions. */
    const bool is_seen = seen.form == SMP__HEADS && smp__axes_end_in_width(&seen) &&
                         seen.q.heads == 1 && seen.q.repeat == 1 && seen.q.factor == 1;
    if (is_seen)
        x = (smp__bound){.tensor = seen.q.tensor, .shape = {2, {seen.q.length, seen.q.width}}};
    else if (!smp__tensor_in(im, node, 0, &x))
        return false;
    const int64_t in = w->dim[as_ours ? 1 : 0], features = w->dim[as_ours ? 0 : 1];
    const int last = x.shape.n_dim - 1;
    if (last < x.merged || x.shape.dim[last] != in)
        return smp__refuse(im, "a product over samples");
    const smp_onnx_node *next = node;
    if (!bias)
        bias = bias_behind(im, node, features, &next);
    if (!bias)
        next = node;
    const char *after = strrchr(w->name, '.');
    const char *name =
        smp__op_name(im, node, !after || strstr(w->name, "::") ? (bias ? bias : w) : w);
    const char *tied[2] = {
        smp__add_weight(im, name, "weight", (smp_shape){2, {features, in}}, w, w->floats, !as_ours),
        NULL};
    im->node = next; /* which reads the bias */
    if (bias)
        tied[1] = smp__add_weight(im, name, "bias", (smp_shape){1, {features}}, bias, bias->floats,
                                  false);
    im->node = node;
    const bool has_bias = bias || smp__lost_bias(im, name, features);
    x.tensor =
        smp__emit_one(im, "linear", name, x.tensor, ", features: %lld%s%s}", (long long)features,
                      has_bias ? "" : ", bias: false", smp__ties(im, WEIGHT_BIAS, tied, 2));
    x.shape.dim[last] = features;
    if (next != node)
        im->done[next - im->model->node] = true;
    if (is_seen) {
        seen.q.tensor = x.tensor;
        seen.q.width = features;
        seen.deferred = 0;
        smp__heads_bind(im, next, 0, &seen);
    } else {
        smp__bind(im, next, 0, &x);
    }
    return true;
}

static bool matmul(smp_import *im, const smp_onnx_node *node)
{
    if (smp__heads_matmul(im, node))
        return true;
    const smp_onnx_value *w = smp__onnx_in(im->model, node, 1);
    if (w && !smp_onnx_constant(w))
        return smp__refuse(im, "a product of two tensors that is no attention");
    w = weight_in(im, node, 1, 2);
    return w && linear(im, node, w, false, NULL);
}

static bool gemm(smp_import *im, const smp_onnx_node *node)
{
    const smp_onnx_value *w = weight_in(im, node, 1, 2), *bias = smp__onnx_in(im->model, node, 2);
    if (!w)
        return false;
    if (smp__onnx_int(node, "transA", 0) != 0 || smp__onnx_float(node, "alpha", 1) != 1 ||
        (bias && smp__onnx_float(node, "beta", 1) != 1))
        return smp__refuse(im, "transA, alpha or beta");
    const bool transposed = smp__onnx_int(node, "transB", 0) != 0;
    if (bias && (!bias->floats || !smp__trainable(im, bias) || bias->n_dim < 1 ||
                 bias->dim[bias->n_dim - 1] != w->dim[transposed ? 0 : 1] ||
                 smp__onnx_elements(bias) != bias->dim[bias->n_dim - 1]))
        return smp__refuse(im, "its third input is no constant bias");
    return linear(im, node, w, transposed, bias);
}

/* A table's rows by the values of an input; a single one of a dimension. */
static bool gather(smp_import *im, const smp_onnx_node *node)
{
    const smp_onnx_value *table = smp__onnx_in(im->model, node, 0);
    const smp_onnx_value *index = smp__onnx_in(im->model, node, 1);
    smp__bound x;
    double at;
    const int64_t axis = smp__onnx_int(node, "axis", 0);
    if (!table || !index)
        return smp__refuse(im, "an input is left out");
    if (smp__mask_step(im, node))
        return true;
    if (smp_onnx_constant(table)) {
        if (axis != 0 || !weight_in(im, node, 0, 2) || !smp__tensor_of(im, index, &x))
            return axis != 0 ? smp__refuse(im, "a table by another axis than 0") : false;
        if (!x.is_int)
            return smp__refuse(im, "its indices are not of int32");
        const char *name = smp__op_name(im, node, table);
        const char *tied =
            smp__add_weight(im, name, "weight", (smp_shape){2, {table->dim[0], table->dim[1]}},
                            table, table->floats, false);
        const int64_t row = smp__onnx_padding_row(node);
        if (im->options->loss && smp__onnx_parameters(node) < 0)
            smp_text_append(&im->notes,
                            "# %s: all rows are trained; the file does not tell of a padding_idx\n",
                            name);
        const char *padding =
            row >= 0 && row < table->dim[0]
                ? smp_arena_printf(im->arena, ", padding_idx: %lld", (long long)row)
                : "";
        if (x.shape.n_dim == SMP_MAX_DIMS)
            return smp__refuse(im, "its indices have too many dimensions");
        x.tensor =
            smp__emit_one(im, "embedding", name, x.tensor, ", rows: %lld, features: %lld%s%s}",
                          (long long)table->dim[0], (long long)table->dim[1], padding,
                          smp__ties(im, WEIGHT_BIAS, &tied, 1));
        x.shape.dim[x.shape.n_dim++] = table->dim[1];
        x.is_int = false;
        smp__bind(im, node, 0, &x);
        return true;
    }
    if (!smp__onnx_scalar(index, &at))
        return smp__refuse(im, "neither a table nor one index");
    int own;
    if (at > -1e12 && at < 1e12 && smp__onnx_axis(axis, table->n_dim, &own) &&
        smp__heads_select(im, node, 0, own, (int64_t)at, index->n_dim > 0))
        return true;
    if (!smp__tensor_in(im, node, 0, &x))
        return false;
    const int d = smp__sample_axis(&x, axis, table->n_dim);
    if (d < x.merged)
        return smp__refuse(im, "an index of samples");
    if (!(at > -1e12 && at < 1e12))
        return smp__refuse(im, "its index is outside");
    const int64_t begin = (int64_t)at < 0 ? (int64_t)at + x.shape.dim[d] : (int64_t)at;
    if (begin < 0 || begin >= x.shape.dim[d])
        return smp__refuse(im, "its index is outside");
    const char *name = smp__op_name(im, node, NULL);
    const char *end = begin + 1 == x.shape.dim[d]
                          ? "0"
                          : smp_arena_printf(im->arena, "%lld", (long long)begin + 1);
    x.tensor = smp__emit_one(im, "slice", name, x.tensor, ", axis: %d, begin: %lld, end: %s}", d,
                             (long long)begin, end);
    x.shape.dim[d] = 1;
    if (index->n_dim == 0 && x.shape.n_dim > 1) {
        smp_shape to = x.shape;
        memmove(&to.dim[d], &to.dim[d + 1], sizeof(int64_t) * (size_t)(to.n_dim - d - 1));
        to.n_dim--;
        x.tensor = smp__reshaped(im, name, x.tensor, &x.shape, &to);
        x.shape = to;
    }
    smp__bind(im, node, 0, &x);
    return true;
}

/* Weight and bias of a norm over n values, of ones and zeroes where they are left out. */
static const char *norm_weights(smp_import *im, const char *name, const smp_onnx_value *weight,
                                const smp_onnx_value *bias, int64_t n, bool has_bias)
{
    const smp_onnx_value *given[] = {weight, bias};
    const char *tied[2] = {NULL, NULL};
    for (int k = 0; k < (has_bias ? 2 : 1); k++) {
        if (given[k])
            tied[k] = smp__add_weight(im, name, WEIGHT_BIAS[k], (smp_shape){1, {n}}, given[k],
                                      given[k]->floats, false);
        else
            smp__fill_weight(im, name, WEIGHT_BIAS[k], n, k == 0 ? 1 : 0);
    }
    return smp__ties(im, WEIGHT_BIAS, tied, 2);
}

static bool fits(smp_import *im, const smp_onnx_value *v, int64_t n)
{
    if (!v)
        return true;
    if (!v->floats || smp__onnx_elements(v) != n)
        return smp__refuse(im, "its weight or bias is no constant of %lld values", (long long)n);
    return smp__trainable(im, v);
}

/* Also false for what is no number. */
static bool fraction(smp_import *im, const char *what, double value)
{
    return (value >= 0 && value <= 1) ||
           smp__refuse(im, "its %s is %g, expected 0 to 1", what, value);
}

/* Gemma's weight is what is added to 1. Returns the weight, and whether it is so. */
static const smp_onnx_value *without_offset(smp_import *im, const smp_onnx_value *v, bool *offset)
{
    const smp_onnx_node *add = v && v->producer >= 0 ? &im->model->node[v->producer] : NULL;
    double added;
    *offset = false;
    if (!add || strcmp(add->op, "Add") != 0 || add->n_in != 2)
        return v;
    for (int k = 0; k < 2; k++) {
        const smp_onnx_value *w = smp__onnx_in(im->model, add, k);
        if (w && w->floats && w->stored >= 0 && smp__onnx_elements(w) == smp__onnx_elements(v) &&
            smp__onnx_scalar(smp__onnx_in(im->model, add, 1 - k), &added) && added == 1) {
            *offset = true;
            return w;
        }
    }
    return v;
}

static bool normalised(smp_import *im, const smp_onnx_node *node, const char *kind, bool has_bias,
                       double eps)
{
    smp__bound x;
    bool offset = false;
    const smp_onnx_value *weight = smp__onnx_in(im->model, node, 1);
    const smp_onnx_value *bias = smp__onnx_in(im->model, node, 2);
    const smp_onnx_value *in = smp__onnx_in(im->model, node, 0);
    if (im->options->loss && !has_bias)
        weight = without_offset(im, weight, &offset);
    for (int k = 1; k < node->n_out; k++)
        if (smp__onnx_out(im->model, node, k) && smp__onnx_out(im->model, node, k)->n_use > 0)
            return smp__refuse(im, "its statistics are read");
    const smp__bound heads = in ? *smp__bound_of(im, in) : (smp__bound){0};
    const bool by_head = heads.form == SMP__HEADS && heads.q.factor == 1 && heads.q.repeat == 1 &&
                         smp__axes_end_in_width(&heads);
    const smp_shape rows = {2, {heads.q.length, heads.q.heads * heads.q.width}};
    if (by_head) {
        x = (smp__bound){.shape = {3, {heads.q.length, heads.q.heads, heads.q.width}}};
        x.shape = heads.q.heads == 1 ? rows : x.shape;
        x.tensor = smp__reshaped(im, heads.q.tensor, heads.q.tensor, &rows, &x.shape);
    } else if (!smp__tensor_in(im, node, 0, &x)) {
        return false;
    }
    int d;
    if (!smp__onnx_axis(smp__onnx_int(node, "axis", -1), in->n_dim, &d) || d != in->n_dim - 1 ||
        (d = x.shape.n_dim - 1) < x.merged)
        return smp__refuse(im, "a norm over more than the last dimension");
    const int64_t n = x.shape.dim[d];
    if (!fits(im, weight, n) || !fits(im, bias, n) || !fraction(im, "epsilon", eps))
        return false;
    const char *name = smp__op_name(im, node, weight);
    const char *ties = norm_weights(im, name, weight, bias, n, has_bias);
    x.tensor = smp__emit_one(im, kind, name, x.tensor, ", eps: %s%s%s}", smp__number(im, eps),
                             offset ? ", offset: 1" : "", ties);
    if (by_head) {
        const char *tensor = smp__reshaped(im, name, x.tensor, &x.shape, &rows);
        x = heads;
        x.q.tensor = tensor;
    }
    smp__bind(im, node, 0, &x);
    return true;
}

static bool layernorm(smp_import *im, const smp_onnx_node *node)
{
    return normalised(im, node, "layernorm", true, smp__onnx_float(node, "epsilon", 1e-5));
}
static bool found_layernorm(smp_import *im, const smp_onnx_node *node)
{
    return normalised(im, node, "layernorm", true, node->number);
}
static bool rmsnorm(smp_import *im, const smp_onnx_node *node)
{
    return normalised(im, node, "rmsnorm", false, smp__onnx_float(node, "epsilon", 1e-5));
}
static bool found_rmsnorm(smp_import *im, const smp_onnx_node *node)
{
    return normalised(im, node, "rmsnorm", false, node->number);
}

static bool batchnorm(smp_import *im, const smp_onnx_node *node)
{
    static const char *const ROLE[] = {"weight", "bias", "running_mean", "running_var"};
    smp__bound x;
    if (!smp__tensor_in(im, node, 0, &x))
        return false;
    if (x.shape.n_dim < 1 || x.merged > 0)
        return smp__refuse(im, "channels are not the second dimension");
    for (int k = 0; k < 4; k++)
        if (!smp__onnx_in(im->model, node, k + 1) ||
            !fits(im, smp__onnx_in(im->model, node, k + 1), x.shape.dim[0]))
            return smp__refuse(im, "its weights are no constants");
    if (!fraction(im, "epsilon", smp__onnx_float(node, "epsilon", 1e-5)) ||
        !fraction(im, "momentum", smp__onnx_float(node, "momentum", 0.9)))
        return false;
    bool statistics = false;
    for (int k = 1; k < node->n_out; k++)
        statistics |= smp__onnx_out(im->model, node, k) != NULL;
    const bool training = im->model->opset < 7    ? smp__onnx_int(node, "is_test", 0) == 0
                          : im->model->opset < 14 ? statistics /* they are what says it */
                                                  : smp__onnx_int(node, "training_mode", 0) != 0;
    if (training && !im->options->loss)
        return smp__refuse(im, "statistics of a batch in an inference");
    for (int k = 1; k < node->n_out; k++)
        if (smp__onnx_out(im->model, node, k) && smp__onnx_out(im->model, node, k)->n_use > 0 &&
            !im->options->loss)
            return smp__refuse(im, "its statistics are read");
    const char *name = smp__op_name(im, node, smp__onnx_in(im->model, node, 1));
    const char *tied[4] = {NULL};
    const double momentum =
        1 - strtod(smp__number(im, smp__onnx_float(node, "momentum", 0.9)), NULL);
    for (int k = 0; k < 4; k++) {
        const smp_onnx_value *v = smp__onnx_in(im->model, node, k + 1);
        smp_onnx_value own = *v;
        own.stored = k < 2 ? v->stored : -1; /* statistics cannot be tied */
        tied[k] = smp__add_weight(im, name, ROLE[k], (smp_shape){1, {x.shape.dim[0]}}, &own,
                                  v->floats, false);
    }
    x.tensor = smp__emit_one(im, "batchnorm", name, x.tensor, ", eps: %s, momentum: %s%s}",
                             smp__number(im, smp__onnx_float(node, "epsilon", 1e-5)),
                             smp__number(im, momentum), smp__ties(im, ROLE, tied, 4));
    smp__bind(im, node, 0, &x);
    return true;
}

static bool by_groups(smp_import *im, const smp_onnx_node *node, int64_t groups)
{
    smp__bound x;
    if (!smp__tensor_in(im, node, 0, &x))
        return false;
    const smp_onnx_value *weight = smp__onnx_in(im->model, node, 1);
    const smp_onnx_value *bias = smp__onnx_in(im->model, node, 2);
    if (x.shape.n_dim < 1 || x.merged > 0 || groups == 0 || groups < -1 ||
        x.shape.dim[0] % groups != 0)
        return smp__refuse(im, "its groups do not divide the channels");
    if (!fraction(im, "epsilon", smp__onnx_float(node, "epsilon", 1e-5)))
        return false;
    groups = groups < 0 ? x.shape.dim[0] : groups;
    if (!weight || !bias || !fits(im, weight, x.shape.dim[0]) || !fits(im, bias, x.shape.dim[0]))
        return smp__refuse(im, "its weights are no constants by channel");
    const char *name = smp__op_name(im, node, weight);
    const char *ties = norm_weights(im, name, weight, bias, x.shape.dim[0], true);
    x.tensor = smp__emit_one(im, "groupnorm", name, x.tensor, ", groups: %lld, eps: %s%s}",
                             (long long)groups,
                             smp__number(im, smp__onnx_float(node, "epsilon", 1e-5)), ties);
    smp__bind(im, node, 0, &x);
    return true;
}

static bool groupnorm(smp_import *im, const smp_onnx_node *node)
{
    return by_groups(im, node, smp__onnx_int(node, "num_groups", 0));
}
static bool instancenorm(smp_import *im, const smp_onnx_node *node)
{
    return by_groups(im, node, -1);
}

const smp__converter smp__convert_layers[] = {
    {"BatchNormalization", batchnorm},
    {"Gather", gather},
    {"Gemm", gemm},
    {"GroupNormalization", groupnorm},
    {"InstanceNormalization", instancenorm},
    {"LayerNormalization", layernorm},
    {"MatMul", matmul},
    {"RMSNormalization", rmsnorm},
    {"smp.layernorm", found_layernorm},
    {"smp.rmsnorm", found_rmsnorm},
    {NULL, NULL},
};
