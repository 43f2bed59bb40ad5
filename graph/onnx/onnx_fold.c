/* Values of nodes whose inputs are constants: what shapes, masks, positions and tables of sines are
 * made of. Memory is what smp__onnx_take gives; what is too large, or not here, stays unknown. */
#include "graph/onnx/onnx_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TYPE(name) ONNX__TENSOR_PROTO__DATA_TYPE__##name

enum { MOST_PRODUCT = 1 << 26 /* multiplications of a constant MatMul */ };

typedef struct fold {
    smp_onnx_model *m;
    const smp_onnx_node *node;
    const smp_onnx_value *in[3];
    smp_onnx_value *out;
    int64_t n; /* elements of out */
    float *floats;
    int64_t *ints;
} fold;

/* Memory for the output; false: none. */
static bool make(fold *f)
{
    if (f->n < 1)
        return false;
    if (smp__onnx_is_float(f->out->type))
        f->out->floats = f->floats = smp__onnx_take(f->m, f->n, sizeof(float));
    else
        f->out->ints = f->ints = smp__onnx_take(f->m, f->n, sizeof(int64_t));
    return smp_onnx_constant(f->out);
}

static double number(const smp_onnx_value *v, int64_t i)
{
    return v->floats ? (double)v->floats[i] : (double)v->ints[i];
}

static void set(fold *f, int64_t i, double value)
{
    if (f->floats)
        f->floats[i] = (float)value;
    else
        f->ints[i] = value >= 9.2e18                    ? INT64_MAX
                     : value <= -9.2e18 || isnan(value) ? INT64_MIN
                                                        : (int64_t)value;
}

static void copy(fold *f, int64_t to, const smp_onnx_value *from, int64_t at)
{
    if (f->ints && from->ints)
        f->ints[to] = from->ints[at];
    else
        set(f, to, number(from, at));
}

/* Output element i is element begin + sum of index[d] * step[d] of the input. */
static void gather_by(fold *f, const smp_onnx_value *from, int64_t begin, const int64_t *step)
{
    int64_t index[SMP_ONNX_DIMS] = {0}, at = begin;
    const int n = f->out->n_dim;
    for (int64_t i = 0; i < f->n; i++) {
        copy(f, i, from, at);
        for (int d = n - 1; d >= 0; d--) {
            at += step[d];
            if (++index[d] < f->out->dim[d])
                break;
            at -= step[d] * index[d];
            index[d] = 0;
        }
    }
}

static void strides_of(const smp_onnx_value *v, int64_t stride[])
{
    int64_t all = 1;
    for (int d = v->n_dim - 1; d >= 0; d--) {
        stride[d] = all;
        all *= v->dim[d];
    }
}

/* Strides by which v repeats itself as the output's shape has it. */
static void broadcast_strides(const smp_onnx_value *v, const smp_onnx_value *out, int64_t stride[])
{
    int64_t own[SMP_ONNX_DIMS];
    strides_of(v, own);
    for (int d = 0; d < out->n_dim; d++) {
        const int at = d - (out->n_dim - v->n_dim);
        stride[d] = at < 0 || v->dim[at] == 1 ? 0 : own[at];
    }
}

/* The same values: no copy. */
static void same(fold *f)
{
    if (smp__onnx_elements(f->in[0]) != f->n)
        return;
    f->out->floats = f->in[0]->floats;
    f->out->ints = f->in[0]->ints;
    f->out->stored = f->in[0]->stored;
    if (strcmp(f->node->op, "Identity") == 0 && f->out->stored >= 0)
        f->out->stored = f->node->out[0]; /* an exporter's way to give equal weights two names */
}

static void cast(fold *f)
{
    const bool was_float = f->in[0]->floats != NULL, is_float = smp__onnx_is_float(f->out->type);
    if (smp__onnx_type_bytes(f->out->type) == 0)
        return;
    if (was_float && is_float) {
        same(f);
    } else if (make(f)) {
        for (int64_t i = 0; i < f->n; i++)
            if (f->out->type == TYPE(BOOL))
                f->ints[i] = number(f->in[0], i) != 0;
            else if (f->out->type == TYPE(INT32) && f->in[0]->ints)
                f->ints[i] = (int32_t)f->in[0]->ints[i];
            else
                copy(f, i, f->in[0], i);
    }
}

static void constant(fold *f)
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

static void shape_of(fold *f)
{
    const smp_onnx_value *in = smp__onnx_in(f->m, f->node, 0);
    if (!in || in->n_dim < 0 || !make(f))
        return;
    int64_t begin = smp__onnx_int(f->node, "start", 0);
    begin = begin < -in->n_dim ? 0 : begin < 0 ? begin + in->n_dim : begin;
    if (strcmp(f->node->op, "Size") == 0)
        f->ints[0] = smp__onnx_elements(in);
    else
        for (int64_t i = 0; i < f->n && begin + i < in->n_dim; i++)
            f->ints[i] = in->dim[begin + i];
}

static void constant_of_shape(fold *f)
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
    if (!smp_onnx_constant(&value) || smp__onnx_elements(&value) > 1 || !make(f))
        return;
    for (int64_t i = 0; i < f->n; i++)
        copy(f, i, &value, 0);
}

static void range(fold *f)
{
    if (!make(f))
        return;
    for (int64_t i = 0; i < f->n; i++)
        set(f, i, number(f->in[0], 0) + (double)i * number(f->in[2], 0));
}

static void expand(fold *f)
{
    int64_t step[SMP_ONNX_DIMS];
    if (!make(f))
        return;
    broadcast_strides(f->in[0], f->out, step);
    gather_by(f, f->in[0], 0, step);
}

static void transpose(fold *f)
{
    int64_t own[SMP_ONNX_DIMS], step[SMP_ONNX_DIMS];
    size_t n;
    const int64_t *perm = smp__onnx_ints(f->node, "perm", &n);
    if (!make(f))
        return;
    strides_of(f->in[0], own);
    for (int d = 0; d < f->out->n_dim; d++)
        step[d] = own[perm ? perm[d] : f->out->n_dim - 1 - d];
    gather_by(f, f->in[0], 0, step);
    f->out->stored = f->in[0]->stored;
}

static void slice(fold *f)
{
    int64_t begin[SMP_ONNX_DIMS], step[SMP_ONNX_DIMS], count[SMP_ONNX_DIMS], own[SMP_ONNX_DIMS];
    if (!smp__onnx_slices(f->m, f->node, begin, step, count) || !make(f))
        return;
    strides_of(f->in[0], own);
    int64_t at = 0;
    for (int d = 0; d < f->out->n_dim; d++) {
        at += begin[d] * own[d];
        step[d] = count[d] > 1 ? step[d] * own[d] : 0;
    }
    gather_by(f, f->in[0], at, step);
    f->out->stored = f->in[0]->stored;
}

static void gather(fold *f)
{
    int axis;
    const smp_onnx_value *from = f->in[0], *at = f->in[1];
    if (!smp__onnx_axis(smp__onnx_int(f->node, "axis", 0), from->n_dim, &axis) || !at->ints)
        return;
    const int64_t n_at = smp__onnx_elements(at), size = from->dim[axis];
    for (int64_t i = 0; i < n_at; i++)
        if (at->ints[i] < -size || at->ints[i] >= size)
            return;
    if (!make(f))
        return;
    int64_t own[SMP_ONNX_DIMS];
    strides_of(from, own);
    const int64_t inner = own[axis], outer = f->n / (inner * n_at);
    int64_t to = 0;
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < n_at; i++) {
            const int64_t row = at->ints[i] < 0 ? at->ints[i] + size : at->ints[i];
            for (int64_t k = 0; k < inner; k++)
                copy(f, to++, from, (o * size + row) * inner + k);
        }
    f->out->stored = from->stored;
}

static void concat(fold *f)
{
    int axis;
    if (!smp__onnx_axis(smp__onnx_int(f->node, "axis", 0), f->out->n_dim, &axis) || !make(f))
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
                copy(f, o * row + begin + i, v, o * part + i);
        begin += part;
    }
}

static void split(fold *f)
{
    int axis;
    const smp_onnx_value *from = f->in[0];
    if (!smp__onnx_axis(smp__onnx_int(f->node, "axis", 0), from->n_dim, &axis))
        return;
    int64_t own[SMP_ONNX_DIMS], begin = 0;
    strides_of(from, own);
    for (int k = 0; k < f->node->n_out; k++) {
        fold part = *f;
        part.out = smp__onnx_out(f->m, f->node, k);
        if (!part.out || part.out->n_dim != from->n_dim)
            return;
        part.n = smp__onnx_elements(part.out);
        part.floats = NULL;
        part.ints = NULL;
        if (make(&part))
            gather_by(&part, from, begin * own[axis], own);
        begin += part.out->dim[axis];
    }
}

static void trilu(fold *f)
{
    double shift = 0;
    if (f->out->n_dim < 2 || (f->in[1] && !smp__onnx_scalar(f->in[1], &shift)) || !make(f))
        return;
    const bool upper = smp__onnx_int(f->node, "upper", 1) != 0;
    const int64_t columns = f->out->dim[f->out->n_dim - 1], rows = f->out->dim[f->out->n_dim - 2];
    for (int64_t i = 0; i < f->n; i++) {
        const double above = (double)(i % columns) - (double)(i / columns % rows) - shift;
        if (upper ? above >= 0 : above <= 0)
            copy(f, i, f->in[0], i);
    }
}

static void where(fold *f)
{
    int64_t step[3][SMP_ONNX_DIMS], index[SMP_ONNX_DIMS] = {0}, at[3] = {0};
    if (!make(f))
        return;
    for (int k = 0; k < 3; k++)
        broadcast_strides(f->in[k], f->out, step[k]);
    for (int64_t i = 0; i < f->n; i++) {
        const int from = number(f->in[0], at[0]) != 0 ? 1 : 2;
        copy(f, i, f->in[from], at[from]);
        for (int d = f->out->n_dim - 1; d >= 0; d--) {
            index[d]++;
            for (int k = 0; k < 3; k++)
                at[k] += step[k][d];
            if (index[d] < f->out->dim[d])
                break;
            for (int k = 0; k < 3; k++)
                at[k] -= step[k][d] * index[d];
            index[d] = 0;
        }
    }
}

static double of_two(const char *op, double a, double b)
{
    switch (op[0]) {
    case 'A': /* Add, And */
        return op[1] == 'd' ? a + b : a != 0 && b != 0;
    case 'S':
        return a - b;
    case 'D':
        return a / b;
    case 'E':
        return a == b;
    case 'G':
        return op[7] ? a >= b : a > b;
    case 'L':
        return op[4] ? a <= b : a < b;
    case 'O':
        return a != 0 || b != 0;
    case 'P':
        return pow(a, b);
    default: /* Max, Min, Mul */
        return op[1] == 'u' ? a * b : op[1] == 'a' ? fmax(a, b) : fmin(a, b);
    }
}

/* Integers as such, where two doubles could lose one. False: it overflows, or is another operator. */
static bool of_ints(const char *op, int64_t a, int64_t b, int64_t *out)
{
    if (strcmp(op, "Add") == 0)
        return !__builtin_add_overflow(a, b, out);
    if (strcmp(op, "Sub") == 0)
        return !__builtin_sub_overflow(a, b, out);
    if (strcmp(op, "Mul") == 0)
        return !__builtin_mul_overflow(a, b, out);
    if ((strcmp(op, "Div") == 0 || strcmp(op, "Mod") == 0) && b != 0 && b != -1) {
        *out = op[0] == 'D' ? a / b : (a % b + b) % b;
        return b < INT64_MAX / 2 && b > INT64_MIN / 2;
    }
    return false;
}

static void binary(fold *f)
{
    int64_t step[2][SMP_ONNX_DIMS], index[SMP_ONNX_DIMS] = {0}, at[2] = {0};
    if (f->node->n_in != 2 || !make(f))
        return;
    for (int k = 0; k < 2; k++)
        broadcast_strides(f->in[k], f->out, step[k]);
    const bool exact = f->ints && f->in[0]->ints && f->in[1]->ints;
    for (int64_t i = 0; i < f->n; i++) {
        if (!exact ||
            !of_ints(f->node->op, f->in[0]->ints[at[0]], f->in[1]->ints[at[1]], &f->ints[i]))
            set(f, i, of_two(f->node->op, number(f->in[0], at[0]), number(f->in[1], at[1])));
        for (int d = f->out->n_dim - 1; d >= 0; d--) {
            index[d]++;
            at[0] += step[0][d];
            at[1] += step[1][d];
            if (index[d] < f->out->dim[d])
                break;
            at[0] -= step[0][d] * index[d];
            at[1] -= step[1][d] * index[d];
            index[d] = 0;
        }
    }
}

static double absolute(double x)
{
    return fabs(x);
}
static double negative(double x)
{
    return -x;
}
static double inverse(double x)
{
    return 1 / x;
}
static double is_not(double x)
{
    return x == 0;
}
static double is_nan(double x)
{
    return isnan(x);
}

static const struct {
    const char *op;
    double (*of)(double);
} UNARY[] = {
    {"Abs", absolute},       {"Ceil", ceil},    {"Cos", cos},   {"Erf", erf},      {"Exp", exp},
    {"Floor", floor},        {"IsNaN", is_nan}, {"Log", log},   {"Neg", negative}, {"Not", is_not},
    {"Reciprocal", inverse}, {"Sin", sin},      {"Sqrt", sqrt}, {"Tanh", tanh},
};

static void unary(fold *f)
{
    for (size_t k = 0; k < sizeof(UNARY) / sizeof(UNARY[0]); k++)
        if (strcmp(UNARY[k].op, f->node->op) == 0 && make(f))
            for (int64_t i = 0; i < f->n; i++)
                set(f, i, UNARY[k].of(number(f->in[0], i)));
}

/* Over all elements, or of what has one dimension: sizes. */
static void reduce(fold *f)
{
    if (f->n != 1 || !make(f))
        return;
    const int64_t n = smp__onnx_elements(f->in[0]);
    const bool product = strcmp(f->node->op, "ReduceProd") == 0;
    const bool largest = strcmp(f->node->op, "ReduceMax") == 0;
    double all = product ? 1 : largest ? -INFINITY : 0;
    for (int64_t i = 0; i < n; i++) {
        const double x = number(f->in[0], i);
        all = product ? all * x : largest ? fmax(all, x) : all + x;
    }
    set(f, 0, all);
}

/* Of two matrices, or a stack of them by one: angles of positions. */
static void matmul(fold *f)
{
    const smp_onnx_value *a = f->in[0], *b = f->in[1];
    if (a->n_dim < 2 || b->n_dim < 2)
        return;
    const int64_t k = a->dim[a->n_dim - 1], rows = a->dim[a->n_dim - 2];
    const int64_t columns = b->dim[b->n_dim - 1];
    const int64_t stack = f->n > 0 ? f->n / (rows * columns) : 0;
    const int64_t na = smp__onnx_elements(a) / (rows * k),
                  nb = smp__onnx_elements(b) / (columns * k);
    if (f->n > MOST_PRODUCT / k || (na != stack && na != 1) || (nb != stack && nb != 1) || !make(f))
        return;
    for (int64_t s = 0; s < stack; s++)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < columns; j++) {
                double sum = 0;
                for (int64_t c = 0; c < k; c++)
                    sum += number(a, (na == 1 ? 0 : s * rows * k) + i * k + c) *
                           number(b, (nb == 1 ? 0 : s * k * columns) + c * columns + j);
                set(f, (s * rows + i) * columns + j, sum);
            }
}

static void tile(fold *f)
{
    if (!make(f))
        return;
    int64_t own[SMP_ONNX_DIMS];
    strides_of(f->in[0], own);
    for (int64_t i = 0; i < f->n; i++) {
        int64_t rest = i, at = 0;
        for (int d = f->out->n_dim - 1; d >= 0; d--) {
            at += rest % f->out->dim[d] % f->in[0]->dim[d] * own[d];
            rest /= f->out->dim[d];
        }
        copy(f, i, f->in[0], at);
    }
}

static const struct rule {
    const char *op;
    void (*fold)(fold *f);
    bool any; /* of inputs that need not be constants */
} RULES[] = {
    {"Abs", unary, 0},
    {"Add", binary, 0},
    {"And", binary, 0},
    {"Cast", cast, 0},
    {"Ceil", unary, 0},
    {"Concat", concat, 0},
    {"Constant", constant, 1},
    {"ConstantOfShape", constant_of_shape, 0},
    {"Cos", unary, 0},
    {"Div", binary, 0},
    {"Equal", binary, 0},
    {"Erf", unary, 0},
    {"Exp", unary, 0},
    {"Expand", expand, 0},
    {"Flatten", same, 0},
    {"Floor", unary, 0},
    {"Gather", gather, 0},
    {"Greater", binary, 0},
    {"GreaterOrEqual", binary, 0},
    {"Identity", same, 0},
    {"IsNaN", unary, 0},
    {"Less", binary, 0},
    {"LessOrEqual", binary, 0},
    {"Log", unary, 0},
    {"MatMul", matmul, 0},
    {"Max", binary, 0},
    {"Min", binary, 0},
    {"Mod", binary, 0},
    {"Mul", binary, 0},
    {"Neg", unary, 0},
    {"Not", unary, 0},
    {"Or", binary, 0},
    {"Pow", binary, 0},
    {"Range", range, 0},
    {"Reciprocal", unary, 0},
    {"ReduceMax", reduce, 0},
    {"ReduceProd", reduce, 0},
    {"ReduceSum", reduce, 0},
    {"Reshape", same, 0},
    {"Shape", shape_of, 1},
    {"Sin", unary, 0},
    {"Size", shape_of, 1},
    {"Slice", slice, 0},
    {"Split", split, 0},
    {"Sqrt", unary, 0},
    {"Squeeze", same, 0},
    {"Sub", binary, 0},
    {"Tanh", unary, 0},
    {"Tile", tile, 0},
    {"Transpose", transpose, 0},
    {"Trilu", trilu, 0},
    {"Unsqueeze", same, 0},
    {"Where", where, 0},
};

static int by_name(const void *key, const void *item)
{
    return strcmp(key, ((const struct rule *)item)->op);
}

smp_status smp__onnx_fold(smp_onnx_model *model, const smp_onnx_node *node)
{
    fold f = {.m = model, .node = node, .out = smp__onnx_out(model, node, 0)};
    const struct rule *found =
        bsearch(node->op, RULES, sizeof(RULES) / sizeof(RULES[0]), sizeof(RULES[0]), by_name);
    if (!found || !f.out || (f.out->n_dim < 0 && !found->any))
        return SMP_OK;
    for (int k = 0; k < node->n_in; k++) {
        const smp_onnx_value *v = smp__onnx_in(model, node, k);
        if (!found->any && v && (!smp_onnx_constant(v) || smp__onnx_elements(v) < 1))
            return SMP_OK;
        if (k < 3)
            f.in[k] = v;
    }
    if (found->any && strcmp(node->op, "Constant") == 0) {
        const Onnx__AttributeProto *a = smp__onnx_attr(node, "value");
        if (a && a->t)
            return smp__onnx_constant(model, a->t, node->name, f.out);
    } else if (!found->any && !f.in[0]) {
        return SMP_OK;
    }
    f.n = smp__onnx_elements(f.out);
    found->fold(&f);
    return SMP_OK;
}
