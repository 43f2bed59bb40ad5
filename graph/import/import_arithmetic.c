/* Operators that go by element, reductions and softmax. */
#include "graph/import/importing.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Heads stay heads: what goes by element does not mind how they lie. */
static bool by_element(smp_import *im, const smp_onnx_node *node, const char *kind,
                       const char *rest)
{
    const smp__bound *in = smp__peek(im, node, 0);
    smp__bound bound;
    if (in && in->form == SMP__HEADS && in->q.factor == 1) {
        bound = *in;
        bound.q.tensor =
            smp__emit_one(im, kind, smp__op_name(im, node, NULL), in->q.tensor, "%s", rest);
        smp__bind(im, node, 0, &bound);
        return true;
    }
    if (!smp__tensor_in(im, node, 0, &bound))
        return false;
    if (bound.shape.n_dim == 0)
        return smp__refuse(im, "a sample is a single value");
    bound.tensor = smp__emit_one(im, kind, smp__op_name(im, node, NULL), bound.tensor, "%s", rest);
    smp__bind(im, node, 0, &bound);
    return true;
}

static bool relu(smp_import *im, const smp_onnx_node *node)
{
    return by_element(im, node, "relu", "}");
}
static bool sigmoid(smp_import *im, const smp_onnx_node *node)
{
    return by_element(im, node, "sigmoid", "}");
}
static bool tanh_of(smp_import *im, const smp_onnx_node *node)
{
    return smp__scores_tanh(im, node) || by_element(im, node, "tanh", "}");
}
static bool silu(smp_import *im, const smp_onnx_node *node)
{
    return by_element(im, node, "silu", "}");
}
static bool gelu_erf(smp_import *im, const smp_onnx_node *node)
{
    return by_element(im, node, "gelu", ", approximate: erf}");
}
static bool gelu_tanh(smp_import *im, const smp_onnx_node *node)
{
    return by_element(im, node, "gelu", "}");
}

static bool gelu(smp_import *im, const smp_onnx_node *node)
{
    const bool tanh_form = strcmp(smp__onnx_text(node, "approximate", "none"), "tanh") == 0;
    return tanh_form ? gelu_tanh(im, node) : gelu_erf(im, node);
}

static bool scaled(smp_import *im, const smp_onnx_node *node, int input, double factor)
{
    smp__bound bound;
    if (smp__heads_scaled(im, node, input, factor))
        return true;
    if (!isfinite(factor) || !smp__tensor_in(im, node, input, &bound))
        return isfinite(factor) ? false : smp__refuse(im, "the factor is not finite");
    if (factor != 1) {
        smp_text number = {0};
        smp_text_append_double(&number, factor);
        bound.tensor = smp__emit_one(im, "scale", smp__op_name(im, node, NULL), bound.tensor,
                                     ", factor: %s}", number.data ? number.data : "1");
        smp_text_free(&number);
    }
    smp__bind(im, node, 0, &bound);
    return true;
}

bool smp__passes(smp_import *im, const smp_onnx_node *node, int k)
{
    const smp__bound *in = smp__peek(im, node, k);
    if (!in || in->form == SMP__NOTHING)
        return smp__refuse(im, "input %d is a constant", k);
    smp__bound copy = *in;
    if (copy.form != SMP__TENSOR && ++copy.deferred > SMP__MOST_DEFERRED)
        return smp__refuse(im, "too many steps that change nothing");
    smp__bind(im, node, 0, &copy);
    return true;
}

bool smp__same_size(smp_import *im, const smp_onnx_node *node, int k)
{
    const smp_onnx_value *in = smp__onnx_in(im->model, node, k);
    return in && smp__onnx_elements(in) == smp__onnx_elements(smp__onnx_out(im->model, node, 0));
}

/* Is it of two tensors that look alike, or of a batch and one array for all of its samples? */
static bool of_tensors(smp_import *im, const smp_onnx_node *node, const char *kind)
{
    smp__bound in[SMP_ONNX_DIMS * 4], all;
    const char *name[SMP_ONNX_DIMS * 4];
    if (node->n_in < 2 || node->n_in > SMP_ONNX_DIMS * 4)
        return smp__refuse(im, "%d inputs", node->n_in);
    const smp_onnx_value *out = smp__onnx_out(im->model, node, 0);
    all.single = true;
    for (int k = 0; k < node->n_in; k++) {
        const smp_onnx_value *v = smp__onnx_in(im->model, node, k);
        if (v && smp_onnx_constant(v))
            return smp__refuse(im, "a constant among several inputs");
        if (!smp__tensor_in(im, node, k, &in[k]))
            return false;
        if (k == 0 || (all.single && !in[k].single))
            all = in[k];
        name[k] = in[k].tensor;
        if (!in[k].single && smp__onnx_elements(v) != smp__onnx_elements(out))
            return smp__refuse(im, "inputs of different shapes");
    }
    for (int k = 0; k < node->n_in; k++)
        if (in[k].shape.n_dim != all.shape.n_dim || in[k].shape.n_dim == 0 ||
            (!in[k].single && in[k].merged != all.merged) ||
            memcmp(in[k].shape.dim, all.shape.dim, sizeof(int64_t) * (size_t)all.shape.n_dim) != 0)
            return smp__refuse(im, "inputs of different shapes");
    all.tensor = smp__emit(im, kind, smp__op_name(im, node, NULL), name, node->n_in, "}");
    smp__bind(im, node, 0, &all);
    return true;
}

/* Heads beside heads that lie alike. */
static bool of_heads(smp_import *im, const smp_onnx_node *node, const char *kind)
{
    const smp__bound *a = smp__peek(im, node, 0), *b = smp__peek(im, node, 1);
    if (!a || !b || a->form != SMP__HEADS || b->form != SMP__HEADS ||
        strcmp(a->axes, b->axes) != 0 || a->q.heads != b->q.heads || a->q.width != b->q.width ||
        a->q.length != b->q.length || a->q.factor != 1 || b->q.factor != 1 || a->q.repeat != 1 ||
        b->q.repeat != 1)
        return false;
    smp__bound bound = *a;
    const char *in[] = {a->q.tensor, b->q.tensor};
    bound.q.tensor = smp__emit(im, kind, smp__op_name(im, node, NULL), in, 2, "}");
    smp__bind(im, node, 0, &bound);
    return true;
}

static int constant_input(smp_import *im, const smp_onnx_node *node)
{
    /* Operator sets before 7 say where the second operand's dimensions begin. */
    if (im->model->opset < 7 && smp__onnx_attr(node, "axis"))
        return -1;
    for (int k = 0; k < 2 && node->n_in == 2; k++) {
        const smp_onnx_value *v = smp__onnx_in(im->model, node, k);
        if (v && smp_onnx_constant(v))
            return k;
    }
    return -1;
}

static bool add(smp_import *im, const smp_onnx_node *node)
{
    double value;
    if (smp__mask_step(im, node) || smp__scores_add(im, node) || smp__rotary_add(im, node) ||
        of_heads(im, node, "add"))
        return true;
    const int c = constant_input(im, node);
    if (c < 0)
        return of_tensors(im, node, "add");
    if (smp__onnx_scalar(smp__onnx_in(im->model, node, c), &value) && value == 0 &&
        smp__same_size(im, node, 1 - c))
        return smp__passes(im, node, 1 - c);
    return smp__with_constant(im, node, "add", 1 - c, c);
}

static bool sub(smp_import *im, const smp_onnx_node *node)
{
    double value;
    if (smp__mask_step(im, node))
        return true;
    const int c = constant_input(im, node);
    if (c < 0)
        return of_tensors(im, node, "sub");
    if (c == 1 && smp__onnx_scalar(smp__onnx_in(im->model, node, 1), &value) && value == 0 &&
        smp__same_size(im, node, 0))
        return smp__passes(im, node, 0);
    return smp__with_constant(im, node, "sub", 1 - c, c);
}

static bool mul(smp_import *im, const smp_onnx_node *node)
{
    double value;
    if (smp__mask_step(im, node) || smp__rotary_mul(im, node) || of_heads(im, node, "mul"))
        return true;
    const int c = constant_input(im, node);
    if (c < 0)
        return of_tensors(im, node, "mul");
    const smp_onnx_value *constant = smp__onnx_in(im->model, node, c);
    if (smp__onnx_scalar(constant, &value) && smp__same_size(im, node, 1 - c)) {
        const bool learned = smp__onnx_parameters(node) > 0;
        if (im->options->loss && learned)
            return smp__refuse(im, "a factor of one number that is trained");
        if (im->options->loss && constant->stored >= 0 && strchr(constant->name, '.') &&
            !smp__onnx_reads_buffer(node))
            smp_text_append(&im->notes, "# %s: a factor of one number is not trained\n",
                            smp__op_name(im, node, constant));
        return scaled(im, node, 1 - c, value);
    }
    return smp__with_constant(im, node, "mul", 1 - c, c);
}

static bool divide(smp_import *im, const smp_onnx_node *node)
{
    double value;
    if (constant_input(im, node) == 1 && smp__same_size(im, node, 0) &&
        smp__onnx_scalar(smp__onnx_in(im->model, node, 1), &value) && value != 0)
        return scaled(im, node, 0, 1 / value);
    return smp__refuse(im, "only divisors of one constant number");
}

static bool negate(smp_import *im, const smp_onnx_node *node)
{
    return smp__rotary_negate(im, node) || scaled(im, node, 0, -1);
}

static bool power(smp_import *im, const smp_onnx_node *node)
{
    double exponent;
    smp__bound x;
    if (!smp__onnx_scalar(smp__onnx_in(im->model, node, 1), &exponent) || exponent != 2)
        return smp__refuse(im, "only squares");
    if (!smp__tensor_in(im, node, 0, &x))
        return false;
    if (x.shape.n_dim == 0 || !smp__same_size(im, node, 0))
        return smp__refuse(im, "a sample is a single value");
    const char *in[] = {x.tensor, x.tensor};
    x.tensor = smp__emit(im, "mul", smp__op_name(im, node, NULL), in, 2, "}");
    smp__bind(im, node, 0, &x);
    return true;
}

static bool sum(smp_import *im, const smp_onnx_node *node)
{
    return node->n_in == 1 ? smp__passes(im, node, 0) : of_tensors(im, node, "add");
}

static bool mean(smp_import *im, const smp_onnx_node *node)
{
    if (node->n_in == 1)
        return smp__passes(im, node, 0);
    if (!of_tensors(im, node, "add"))
        return false;
    smp__bound bound = *smp__bound_of(im, smp__onnx_out(im->model, node, 0));
    bound.tensor = smp__emit_one(im, "scale", smp__unique(im, bound.tensor), bound.tensor,
                                 ", factor: %.9g}", 1.0 / node->n_in);
    smp__bind(im, node, 0, &bound);
    return true;
}

static bool identity(smp_import *im, const smp_onnx_node *node)
{
    return smp__passes(im, node, 0);
}

static bool cast(smp_import *im, const smp_onnx_node *node)
{
    if (smp__mask_step(im, node))
        return true;
    const smp_onnx_value *from = smp__onnx_in(im->model, node, 0);
    const smp_onnx_value *to = smp__onnx_out(im->model, node, 0);
    const smp__bound *in = smp__peek(im, node, 0);
    const bool integers = in && in->form == SMP__TENSOR && in->is_int &&
                          (to->type == ONNX__TENSOR_PROTO__DATA_TYPE__INT64 ||
                           to->type == ONNX__TENSOR_PROTO__DATA_TYPE__INT32);
    return integers || (from && from->type == to->type)
               ? smp__passes(im, node, 0)
               : smp__refuse(im, "no operator converts these types");
}

static bool dropout(smp_import *im, const smp_onnx_node *node)
{
    double ratio = smp__onnx_float(node, "ratio", 0.5);
    double training = im->model->opset < 7 && smp__onnx_int(node, "is_test", 0) == 0;
    smp_onnx_value *given = smp__onnx_in(im->model, node, 1),
                   *mode = smp__onnx_in(im->model, node, 2);
    const smp_onnx_value *mask = smp__onnx_out(im->model, node, 1);
    if (mask && mask->n_use > 0)
        return smp__refuse(im, "its mask is read");
    if ((given && !smp__onnx_scalar(given, &ratio)) || (mode && !smp__onnx_scalar(mode, &training)))
        return smp__refuse(im, "its ratio or mode is not a constant");
    if (!(ratio >= 0 && ratio < 1))
        return smp__refuse(im, "its ratio is %g", ratio);
    if (training == 0 || ratio == 0 || !im->options->loss)
        return training != 0 && ratio != 0 ? smp__refuse(im, "drops values of an inference")
                                           : smp__passes(im, node, 0);
    char rest[64];
    snprintf(rest, sizeof(rest), ", p: %.9g}", ratio);
    return by_element(im, node, "dropout", rest);
}

/* Along the last dimension; others are brought there and back. */
static bool softmax(smp_import *im, const smp_onnx_node *node)
{
    smp__bound x;
    if (smp__scores_softmax(im, node))
        return true;
    const smp_onnx_value *in = smp__onnx_in(im->model, node, 0);
    const bool flat = im->model->opset < 13;
    if (!smp__tensor_in(im, node, 0, &x))
        return false;
    const int axis = smp__sample_axis(&x, smp__onnx_int(node, "axis", flat ? 1 : -1), in->n_dim);
    const int n = x.shape.n_dim;
    if (axis < x.merged || n == 0)
        return smp__refuse(im, "a softmax over samples");
    const char *name = smp__op_name(im, node, NULL), *t = x.tensor;
    if (axis == n - 1) {
        x.tensor = smp__emit_one(im, "softmax", name, t, "}");
    } else if (flat) {
        smp_shape wide = {axis + 1, {0}};
        for (int d = 0; d < axis; d++)
            wide.dim[d] = x.shape.dim[d];
        wide.dim[axis] = smp__product(&x.shape, axis, n);
        t = smp__reshaped(im, name, t, &x.shape, &wide);
        t = smp__emit_one(im, "softmax", smp__unique(im, name), t, "}");
        x.tensor = smp__reshaped(im, name, t, &wide, &x.shape);
    } else {
        char axes[64] = "";
        for (int d = 0; d < n; d++)
            snprintf(axes + strlen(axes), sizeof(axes) - strlen(axes), "%s%d", d > 0 ? ", " : "",
                     d == axis    ? n - 1
                     : d == n - 1 ? axis
                                  : d);
        t = smp__emit_one(im, "transpose", smp__unique(im, name), t, ", axes: [%s]}", axes);
        t = smp__emit_one(im, "softmax", name, t, "}");
        x.tensor = smp__emit_one(im, "transpose", smp__unique(im, name), t, ", axes: [%s]}", axes);
    }
    smp__bind(im, node, 0, &x);
    return true;
}

/* One dimension after the other, the last one first. */
static bool reduce(smp_import *im, const smp_onnx_node *node, const char *kind)
{
    const int64_t *axes = NULL;
    size_t n_axes = 0;
    smp__bound x;
    const smp_onnx_value *in = smp__onnx_in(im->model, node, 0);
    const bool given = smp__onnx_list(im->model, node, "axes", 1, &axes, &n_axes) && n_axes > 0;
    if (!smp__tensor_in(im, node, 0, &x))
        return false;
    if (!given || x.merged > 0)
        return smp__refuse(im, "reduces the batch");
    unsigned gone = 0;
    for (size_t k = 0; k < n_axes; k++) {
        const int axis = smp__sample_axis(&x, axes[k], in->n_dim);
        if (axis < 0)
            return smp__refuse(im, "reduces the batch");
        gone |= 1u << axis;
    }
    const char *near = smp__op_name(im, node, NULL);
    const smp_shape before = x.shape;
    bool first = true;
    for (int d = before.n_dim - 1; d >= 0; d--) {
        if (!(gone >> d & 1))
            continue;
        x.tensor = smp__emit_one(im, kind, first ? near : smp__unique(im, near), x.tensor,
                                 ", axis: %d}", d);
        first = false;
        memmove(&x.shape.dim[d], &x.shape.dim[d + 1],
                sizeof(int64_t) * (size_t)(x.shape.n_dim - d - 1));
        x.shape.n_dim--;
    }
    smp__bind(im, node, 0, &x); /* kept dimensions of 1 are put in where they matter */
    return true;
}

static bool reduce_mean(smp_import *im, const smp_onnx_node *node)
{
    return reduce(im, node, "mean");
}
static bool reduce_sum(smp_import *im, const smp_onnx_node *node)
{
    return reduce(im, node, "sum");
}

static bool where(smp_import *im, const smp_onnx_node *node)
{
    return smp__mask_step(im, node) || smp__scores_where(im, node) ||
           smp__refuse(im, "no operator of SMP does this");
}

static bool mask_step(smp_import *im, const smp_onnx_node *node)
{
    return smp__mask_step(im, node) || smp__refuse(im, "no operator of SMP does this");
}

static bool is_nan(smp_import *im, const smp_onnx_node *node)
{
    const smp__bound *in = smp__peek(im, node, 0);
    if (!in || in->form != SMP__PROBS || in->deferred >= SMP__MOST_DEFERRED)
        return smp__refuse(im, "no operator of SMP does this");
    smp__bound bound = *in;
    bound.form = SMP__NO_PROBS;
    bound.deferred++;
    smp__bind(im, node, 0, &bound);
    return true;
}

const smp__converter smp__convert_arithmetic[] = {
    {"Add", add},
    {"And", mask_step},
    {"Cast", cast},
    {"Div", divide},
    {"Dropout", dropout},
    {"Equal", mask_step},
    {"GatherND", mask_step},
    {"Gelu", gelu},
    {"Greater", mask_step},
    {"GreaterOrEqual", mask_step},
    {"Identity", identity},
    {"IsNaN", is_nan},
    {"Less", mask_step},
    {"LessOrEqual", mask_step},
    {"Mean", mean},
    {"Mul", mul},
    {"Neg", negate},
    {"Not", mask_step},
    {"Or", mask_step},
    {"Pow", power},
    {"ReduceMean", reduce_mean},
    {"ReduceSum", reduce_sum},
    {"Relu", relu},
    {"Sigmoid", sigmoid},
    {"Softmax", softmax},
    {"Sub", sub},
    {"Sum", sum},
    {"Tanh", tanh_of},
    {"Where", where},
    {"smp.gelu_erf", gelu_erf},
    {"smp.gelu_tanh", gelu_tanh},
    {"smp.silu", silu},
    {NULL, NULL},
};
