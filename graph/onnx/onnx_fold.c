/* Values of nodes whose inputs are constants: what shapes, masks, positions and tables of sines are
 * made of. Memory is what smp__onnx_take gives; what is too large, or not here, stays unknown. */
#include "graph/onnx/onnx_fold.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TYPE(name) ONNX__TENSOR_PROTO__DATA_TYPE__##name

/* Memory for the output; false: none. */
bool smp__fold_make(smp__fold *f)
{
    if (f->n < 1)
        return false;
    if (smp__onnx_is_float(f->out->type))
        f->out->floats = f->floats = smp__onnx_take(f->m, f->n, sizeof(float));
    else
        f->out->ints = f->ints = smp__onnx_take(f->m, f->n, sizeof(int64_t));
    return smp_onnx_constant(f->out);
}

double smp__fold_number(const smp_onnx_value *v, int64_t i)
{
    return v->floats ? (double)v->floats[i] : (double)v->ints[i];
}

void smp__fold_set(smp__fold *f, int64_t i, double value)
{
    if (f->floats)
        f->floats[i] = (float)value;
    else
        f->ints[i] = value >= 9.2e18                    ? INT64_MAX
                     : value <= -9.2e18 || isnan(value) ? INT64_MIN
                                                        : (int64_t)value;
}

void smp__fold_copy(smp__fold *f, int64_t to, const smp_onnx_value *from, int64_t at)
{
    if (f->ints && from->ints)
        f->ints[to] = from->ints[at];
    else
        smp__fold_set(f, to, smp__fold_number(from, at));
}

/* Output element i is element begin + sum of index[d] * step[d] of the input. */
static void gather_by(smp__fold *f, const smp_onnx_value *from, int64_t begin, const int64_t *step)
{
    int64_t index[SMP_ONNX_DIMS] = {0}, at = begin;
    const int n = f->out->n_dim;
    for (int64_t i = 0; i < f->n; i++) {
        smp__fold_copy(f, i, from, at);
        for (int d = n - 1; d >= 0; d--) {
            at += step[d];
            if (++index[d] < f->out->dim[d])
                break;
            at -= step[d] * index[d];
            index[d] = 0;
        }
    }
}

void smp__fold_strides_of(const smp_onnx_value *v, int64_t stride[])
{
    int64_t all = 1;
    for (int d = v->n_dim - 1; d >= 0; d--) {
        stride[d] = all;
        all *= v->dim[d];
    }
}

/* A list of nothing, of whole numbers: what is left of a shape behind its end. */
static bool is_empty(const smp_onnx_value *v)
{
    return v->n_dim == 1 && v->dim[0] == 0 && !smp__onnx_is_float(v->type);
}

static bool make_list(smp__fold *f)
{
    if (f->n != 0 || !is_empty(f->out))
        return smp__fold_make(f);
    f->out->ints = f->ints = smp__onnx_take(f->m, 0, sizeof(int64_t));
    return f->ints != NULL;
}

/* Strides by which v repeats itself as the output's shape has it. */
void smp__fold_broadcast_strides(const smp_onnx_value *v, const smp_onnx_value *out,
                                 int64_t stride[])
{
    int64_t own[SMP_ONNX_DIMS];
    smp__fold_strides_of(v, own);
    for (int d = 0; d < out->n_dim; d++) {
        const int at = d - (out->n_dim - v->n_dim);
        stride[d] = at < 0 || v->dim[at] == 1 ? 0 : own[at];
    }
}

void smp__fold_rearranged(const smp__fold *f, bool repeats)
{
    f->out->stored = f->in[0]->stored;
    f->out->repeats = f->in[0]->repeats || repeats;
    f->out->by_sample = f->in[0]->by_sample && f->out->dim[0] == f->in[0]->dim[0];
}

/* The same values: no copy. */
static void same(smp__fold *f)
{
    if (smp__onnx_elements(f->in[0]) != f->n)
        return;
    f->out->floats = f->in[0]->floats;
    f->out->ints = f->in[0]->ints;
    smp__fold_rearranged(f, false);
    if (strcmp(f->node->op, "Identity") == 0 && f->out->stored >= 0)
        f->out->stored = f->node->out[0]; /* an exporter's way to give equal weights two names */
}

static void cast(smp__fold *f)
{
    const bool was_float = f->in[0]->floats != NULL, is_float = smp__onnx_is_float(f->out->type);
    if (smp__onnx_type_bytes(f->out->type) == 0)
        return;
    if (was_float && is_float) {
        same(f);
    } else if (smp__fold_make(f)) {
        for (int64_t i = 0; i < f->n; i++)
            if (f->out->type == TYPE(BOOL))
                f->ints[i] = smp__fold_number(f->in[0], i) != 0;
            else if (f->out->type == TYPE(INT32) && f->in[0]->ints)
                f->ints[i] = (int32_t)f->in[0]->ints[i];
            else
                smp__fold_copy(f, i, f->in[0], i);
    }
}

static void constant(smp__fold *f)
{
    smp_onnx_value *out = f->out;
    const Onnx__AttributeProto *a =
        f->node->proto->n_attribute == 1 ? f->node->proto->attribute[0] : NULL;
    if (!a || !a->name)
        return;
    out->n_dim = 0;
    f->n = 1;
    if (strcmp(a->name, "value_float") == 0 && a->has_f) {
        out->type = TYPE(FLOAT);
        out->floats = &a->f;
    } else if (strcmp(a->name, "value_int") == 0 && a->has_i) {
        out->type = TYPE(INT64);
        out->ints = &a->i;
    } else if (strcmp(a->name, "value_floats") == 0 && a->n_floats > 0) {
        out->type = TYPE(FLOAT);
        out->floats = a->floats;
        out->dim[0] = (int64_t)a->n_floats;
        out->n_dim = 1;
    } else if (strcmp(a->name, "value_ints") == 0 && a->n_ints > 0) {
        out->type = TYPE(INT64);
        out->ints = a->ints;
        out->dim[0] = (int64_t)a->n_ints;
        out->n_dim = 1;
    } else {
        out->n_dim = -1;
    }
}

static void shape_of(smp__fold *f)
{
    const smp_onnx_value *in = smp__onnx_in(f->m, f->node, 0);
    if (!in || in->n_dim < 0 || !smp__fold_make(f))
        return;
    int64_t begin = smp__onnx_int(f->node, "start", 0);
    begin = begin < -in->n_dim  ? 0
            : begin < 0         ? begin + in->n_dim
            : begin > in->n_dim ? in->n_dim
                                : begin;
    if (strcmp(f->node->op, "Size") == 0)
        f->ints[0] = smp__onnx_elements(in);
    else
        for (int64_t i = 0; i < f->n && begin + i < in->n_dim; i++)
            f->ints[i] = in->dim[begin + i];
}

static void constant_of_shape(smp__fold *f)
{
    smp_onnx_value value = {.type = TYPE(FLOAT)};
    static const float zero[1];
    const Onnx__AttributeProto *a = smp__onnx_attr(f->node, "value");
    value.floats = zero;
    if (a && a->t) {
        value = (smp_onnx_value){0};
        if (smp__onnx_constant(f->m, a->t, "value of ConstantOfShape", &value) != SMP_OK)
            return;
    }
    if (!smp_onnx_constant(&value) || smp__onnx_elements(&value) > 1 || !smp__fold_make(f))
        return;
    for (int64_t i = 0; i < f->n; i++)
        smp__fold_copy(f, i, &value, 0);
}

static void range(smp__fold *f)
{
    if (!smp__fold_make(f))
        return;
    for (int64_t i = 0; i < f->n; i++)
        smp__fold_set(f, i,
                      smp__fold_number(f->in[0], 0) + (double)i * smp__fold_number(f->in[2], 0));
}

static void expand(smp__fold *f)
{
    int64_t step[SMP_ONNX_DIMS] = {0};
    if (!smp__fold_make(f))
        return;
    smp__fold_broadcast_strides(f->in[0], f->out, step);
    gather_by(f, f->in[0], 0, step);
    const smp_onnx_value *in = f->in[0], *out = f->out;
    const bool ahead = in->n_dim == out->n_dim - 1; /* of the samples alone */
    bool by_sample = ahead || (in->n_dim == out->n_dim && out->n_dim > 0 && in->dim[0] == 1);
    for (int d = 1; d < out->n_dim && by_sample; d++)
        by_sample = in->dim[d - ahead] == out->dim[d];
    if (in->stored >= 0 && by_sample && out->dim[0] == f->m->batch) {
        smp__fold_rearranged(f, true);
        f->out->by_sample = !in->repeats || in->by_sample;
    }
}

static void transpose(smp__fold *f)
{
    int64_t own[SMP_ONNX_DIMS], step[SMP_ONNX_DIMS];
    size_t n;
    const int64_t *perm = smp__onnx_ints(f->node, "perm", &n);
    if (!smp__fold_make(f))
        return;
    smp__fold_strides_of(f->in[0], own);
    for (int d = 0; d < f->out->n_dim; d++)
        step[d] = own[perm ? perm[d] : f->out->n_dim - 1 - d];
    gather_by(f, f->in[0], 0, step);
    smp__fold_rearranged(f, false);
}

static void slice(smp__fold *f)
{
    int64_t begin[SMP_ONNX_DIMS], step[SMP_ONNX_DIMS], count[SMP_ONNX_DIMS], own[SMP_ONNX_DIMS];
    if (!smp__onnx_slices(f->m, f->node, begin, step, count) || !make_list(f))
        return;
    smp__fold_strides_of(f->in[0], own);
    int64_t at = 0;
    for (int d = 0; d < f->out->n_dim; d++) {
        at += begin[d] * own[d];
        step[d] = count[d] > 1 ? step[d] * own[d] : 0;
    }
    gather_by(f, f->in[0], at, step);
    smp__fold_rearranged(f, false);
}

static void concat(smp__fold *f)
{
    int axis;
    if (!smp__onnx_axis(smp__onnx_concat_axis(f->m, f->node), f->out->n_dim, &axis) ||
        !make_list(f))
        return;
    int64_t inner = 1, outer = 1, begin = 0;
    for (int d = 0; d < f->out->n_dim; d++)
        *(d < axis ? &outer : &inner) *= d == axis ? 1 : f->out->dim[d];
    const int64_t row = inner * f->out->dim[axis];
    for (int k = 0; k < f->node->n_in; k++) {
        const smp_onnx_value *v = smp__onnx_in(f->m, f->node, k);
        const int64_t part = v->dim[axis] * inner;
        for (int64_t o = 0; o < outer; o++)
            for (int64_t i = 0; i < part; i++)
                smp__fold_copy(f, o * row + begin + i, v, o * part + i);
        begin += part;
    }
}

static void split(smp__fold *f)
{
    int axis;
    const smp_onnx_value *from = f->in[0];
    if (!smp__onnx_axis(smp__onnx_int(f->node, "axis", 0), from->n_dim, &axis))
        return;
    int64_t own[SMP_ONNX_DIMS], begin = 0;
    smp__fold_strides_of(from, own);
    for (int k = 0; k < f->node->n_out; k++) {
        smp__fold part = *f;
        part.out = smp__onnx_out(f->m, f->node, k);
        if (!part.out || !part.out->inferred)
            return;
        part.n = smp__onnx_elements(part.out);
        part.floats = NULL;
        part.ints = NULL;
        if (smp__fold_make(&part))
            gather_by(&part, from, begin * own[axis], own);
        begin += part.out->dim[axis];
    }
}

static void tile(smp__fold *f)
{
    if (!smp__fold_make(f))
        return;
    int64_t own[SMP_ONNX_DIMS];
    smp__fold_strides_of(f->in[0], own);
    for (int64_t i = 0; i < f->n; i++) {
        int64_t rest = i, at = 0;
        for (int d = f->out->n_dim - 1; d >= 0; d--) {
            at += rest % f->out->dim[d] % f->in[0]->dim[d] * own[d];
            rest /= f->out->dim[d];
        }
        smp__fold_copy(f, i, f->in[0], at);
    }
}

static const struct rule {
    const char *op;
    void (*fold)(smp__fold *f);
    bool any; /* of inputs that need not be constants */
} RULES[] = {
    {"Abs", smp__fold_unary, 0},
    {"Add", smp__fold_binary, 0},
    {"And", smp__fold_binary, 0},
    {"Cast", cast, 0},
    {"Ceil", smp__fold_unary, 0},
    {"Concat", concat, 0},
    {"Constant", constant, 1},
    {"ConstantOfShape", constant_of_shape, 0},
    {"Cos", smp__fold_unary, 0},
    {"CumSum", smp__fold_cum_sum, 0},
    {"Div", smp__fold_binary, 0},
    {"Equal", smp__fold_binary, 0},
    {"Erf", smp__fold_unary, 0},
    {"Exp", smp__fold_unary, 0},
    {"Expand", expand, 0},
    {"Flatten", same, 0},
    {"Floor", smp__fold_unary, 0},
    {"Gather", smp__fold_gather, 0},
    {"GatherElements", smp__fold_gather_elements, 0},
    {"GatherND", smp__fold_gather_nd, 0},
    {"Greater", smp__fold_binary, 0},
    {"GreaterOrEqual", smp__fold_binary, 0},
    {"Identity", same, 0},
    {"IsNaN", smp__fold_unary, 0},
    {"Less", smp__fold_binary, 0},
    {"LessOrEqual", smp__fold_binary, 0},
    {"Log", smp__fold_unary, 0},
    {"MatMul", smp__fold_matmul, 0},
    {"Max", smp__fold_binary, 0},
    {"Min", smp__fold_binary, 0},
    {"Mod", smp__fold_binary, 0},
    {"Mul", smp__fold_binary, 0},
    {"Neg", smp__fold_unary, 0},
    {"Not", smp__fold_unary, 0},
    {"Or", smp__fold_binary, 0},
    {"Pow", smp__fold_binary, 0},
    {"Range", range, 0},
    {"Reciprocal", smp__fold_unary, 0},
    {"ReduceMax", smp__fold_reduce, 0},
    {"ReduceProd", smp__fold_reduce, 0},
    {"ReduceSum", smp__fold_reduce, 0},
    {"Reshape", same, 0},
    {"Shape", shape_of, 1},
    {"Sin", smp__fold_unary, 0},
    {"Size", shape_of, 1},
    {"Slice", slice, 0},
    {"Split", split, 0},
    {"Sqrt", smp__fold_unary, 0},
    {"Squeeze", same, 0},
    {"Sub", smp__fold_binary, 0},
    {"Tanh", smp__fold_unary, 0},
    {"Tile", tile, 0},
    {"Transpose", transpose, 0},
    {"Trilu", smp__fold_trilu, 0},
    {"Unsqueeze", same, 0},
    {"Where", smp__fold_where, 0},
};

static int by_name(const void *key, const void *item)
{
    return strcmp(key, ((const struct rule *)item)->op);
}

/* Whatever is picked out of a constant of one value is that value. */
static void pick_any(smp__fold *f)
{
    const smp_onnx_value *from = smp__onnx_in(f->m, f->node, 0);
    const int64_t n = from && smp_onnx_constant(from) ? smp__onnx_elements(from) : 0;
    if (n < 1 || !smp__onnx_work(f->m, n))
        return;
    for (int64_t i = 1; i < n; i++)
        if (smp__fold_number(from, i) != smp__fold_number(from, 0))
            return;
    if (smp__fold_make(f))
        for (int64_t i = 0; i < f->n; i++)
            smp__fold_copy(f, i, from, 0);
}

smp_status smp__onnx_fold(smp_onnx_model *model, const smp_onnx_node *node)
{
    smp__fold f = {.m = model, .node = node, .out = smp__onnx_out(model, node, 0)};
    const struct rule *found =
        bsearch(node->op, RULES, sizeof(RULES) / sizeof(RULES[0]), sizeof(RULES[0]), by_name);
    if (!found || !f.out || (!f.out->inferred && !found->any))
        return SMP_OK;
    /* The second input may have any place in the first, and any shape: none is folded. */
    if (model->opset < 7 && smp__onnx_int(node, "broadcast", 0) != 0)
        return SMP_OK;
    int64_t elements = 0;
    for (int k = 0; k < node->n_in; k++) {
        const smp_onnx_value *v = smp__onnx_in(model, node, k);
        if (k == 1 && v && !smp_onnx_constant(v) && found->fold == smp__fold_gather_elements) {
            f.n = smp__onnx_elements(f.out);
            pick_any(&f);
            return SMP_OK;
        }
        if (!found->any && v &&
            (!smp_onnx_constant(v) ||
             (smp__onnx_elements(v) < 1 &&
              !(is_empty(v) && (found->fold == constant_of_shape || found->fold == concat)))))
            return SMP_OK;
        if (k < 3)
            f.in[k] = v;
        elements += v && !found->any ? smp__onnx_elements(v) : 0;
    }
    if (found->any && strcmp(node->op, "Constant") == 0) {
        const Onnx__AttributeProto *a = smp__onnx_attr(node, "value");
        if (a && a->t)
            return smp__onnx_constant(model, a->t, node->name, f.out);
    } else if (!found->any && !f.in[0]) {
        return SMP_OK;
    }
    if (!smp__onnx_work(model, elements))
        return SMP_OK;
    f.n = smp__onnx_elements(f.out);
    found->fold(&f);
    return SMP_OK;
}
