/* Constants that are computed by element, over elements, or by a product. */
#include "graph/onnx/onnx_fold.h"

#include <math.h>
#include <string.h>

enum { MOST_PRODUCT = 1 << 26 /* multiplications of a constant MatMul */ };

void smp__fold_trilu(smp__fold *f)
{
    double shift = 0;
    if (f->out->n_dim < 2 || (f->in[1] && !smp__onnx_scalar(f->in[1], &shift)) ||
        !smp__fold_make(f))
        return;
    const bool upper = smp__onnx_int(f->node, "upper", 1) != 0;
    const int64_t columns = f->out->dim[f->out->n_dim - 1], rows = f->out->dim[f->out->n_dim - 2];
    for (int64_t i = 0; i < f->n; i++) {
        const double above = (double)(i % columns) - (double)(i / columns % rows) - shift;
        if (upper ? above >= 0 : above <= 0)
            smp__fold_copy(f, i, f->in[0], i);
    }
}

double smp__onnx_of_two(const char *op, double a, double b)
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
    default: /* Max, Min, Mod, Mul */
        return op[1] == 'u'   ? a * b
               : op[1] == 'a' ? fmax(a, b)
               : op[1] == 'i' ? fmin(a, b)
               : b == 0       ? 0
                              : fmod(a, b);
    }
}

/* Integers as such, where two doubles could lose one. False: it overflows, divides by zero, or is
 * another operator. A remainder has the sign of b; by_c: that of a. */
static bool of_ints(const char *op, bool by_c, int64_t a, int64_t b, int64_t *out)
{
    if (strcmp(op, "Add") == 0)
        return !__builtin_add_overflow(a, b, out);
    if (strcmp(op, "Sub") == 0)
        return !__builtin_sub_overflow(a, b, out);
    if (strcmp(op, "Mul") == 0)
        return !__builtin_mul_overflow(a, b, out);
    if (strcmp(op, "Div") == 0 && b != 0) {
        if (b == -1)
            return !__builtin_sub_overflow(0, a, out);
        *out = a / b;
        return true;
    }
    if (strcmp(op, "Mod") == 0) {
        *out = b == 0 || b == -1 ? 0 : a % b;
        *out += !by_c && *out != 0 && (*out < 0) != (b < 0) ? b : 0;
        return true;
    }
    return false;
}

/* A table is still that table where a mask hides some of it. */
static void keep_stored(smp__fold *f, const smp_onnx_value *table, const smp_onnx_value *mask)
{
    const int64_t n = smp__onnx_elements(mask);
    bool only_masks = f->floats && table->stored >= 0 && mask->stored < 0 && mask->floats;
    for (int64_t i = 0; i < n && only_masks; i++)
        only_masks = mask->floats[i] == 0 || mask->floats[i] <= -1e4f;
    if (only_masks) {
        f->out->stored = table->stored;
        f->out->repeats = table->repeats || smp__onnx_elements(table) < f->n;
    }
}

void smp__fold_where(smp__fold *f)
{
    int64_t step[3][SMP_ONNX_DIMS], index[SMP_ONNX_DIMS] = {0}, at[3] = {0};
    if (f->node->n_in != 3 || !smp__fold_make(f))
        return;
    for (int k = 0; k < 3; k++)
        smp__fold_broadcast_strides(f->in[k], f->out, step[k]);
    for (int64_t i = 0; i < f->n; i++) {
        const int from = smp__fold_number(f->in[0], at[0]) != 0 ? 1 : 2;
        smp__fold_copy(f, i, f->in[from], at[from]);
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
    keep_stored(f, f->in[1], f->in[2]);
}

void smp__fold_binary(smp__fold *f)
{
    int64_t step[2][SMP_ONNX_DIMS], index[SMP_ONNX_DIMS] = {0}, at[2] = {0};
    if (f->node->n_in != 2 || !smp__fold_make(f))
        return;
    for (int k = 0; k < 2; k++)
        smp__fold_broadcast_strides(f->in[k], f->out, step[k]);
    const bool exact = f->ints && f->in[0]->ints && f->in[1]->ints;
    const bool by_c = smp__onnx_int(f->node, "fmod", 0) != 0;
    for (int64_t i = 0; i < f->n; i++) {
        if (!exact ||
            !of_ints(f->node->op, by_c, f->in[0]->ints[at[0]], f->in[1]->ints[at[1]], &f->ints[i]))
            smp__fold_set(f, i,
                          smp__onnx_of_two(f->node->op, smp__fold_number(f->in[0], at[0]),
                                           smp__fold_number(f->in[1], at[1])));
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
    for (int k = 0; k < 2 && strcmp(f->node->op, "Add") == 0; k++)
        keep_stored(f, f->in[k], f->in[1 - k]);
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

void smp__fold_unary(smp__fold *f)
{
    for (size_t k = 0; k < sizeof(UNARY) / sizeof(UNARY[0]); k++)
        if (strcmp(UNARY[k].op, f->node->op) == 0 && smp__fold_make(f))
            for (int64_t i = 0; i < f->n; i++)
                smp__fold_set(f, i, UNARY[k].of(smp__fold_number(f->in[0], i)));
}

/* Over all elements, or of what has one dimension: sizes. */
void smp__fold_reduce(smp__fold *f)
{
    if (f->n != 1 || !smp__fold_make(f))
        return;
    const int64_t n = smp__onnx_elements(f->in[0]);
    const bool product = strcmp(f->node->op, "ReduceProd") == 0;
    const bool largest = strcmp(f->node->op, "ReduceMax") == 0;
    double all = product ? 1 : largest ? -INFINITY : 0;
    for (int64_t i = 0; i < n; i++) {
        const double x = smp__fold_number(f->in[0], i);
        all = product ? all * x : largest ? fmax(all, x) : all + x;
    }
    smp__fold_set(f, 0, all);
}

/* Running sums along a dimension, of all that stand before, or after, and of the element itself. */
void smp__fold_cum_sum(smp__fold *f)
{
    double wanted;
    int axis;
    if (!smp__onnx_scalar(f->in[1], &wanted) ||
        !smp__onnx_axis((int64_t)wanted, f->out->n_dim, &axis) || !smp__fold_make(f))
        return;
    const bool reverse = smp__onnx_int(f->node, "reverse", 0) != 0;
    const bool exclusive = smp__onnx_int(f->node, "exclusive", 0) != 0;
    int64_t own[SMP_ONNX_DIMS];
    smp__fold_strides_of(f->out, own);
    const int64_t size = f->out->dim[axis], stride = own[axis];
    for (int64_t line = 0; line < f->n / size; line++) {
        const int64_t begin = line / stride * stride * size + line % stride;
        double sum = 0;
        for (int64_t k = 0; k < size; k++) {
            const int64_t at = begin + (reverse ? size - 1 - k : k) * stride;
            const double x = smp__fold_number(f->in[0], at);
            smp__fold_set(f, at, exclusive ? sum : sum + x);
            sum += x;
        }
    }
}

/* Multiplies two matrices, or a stack of them by one: angles of positions. */
void smp__fold_matmul(smp__fold *f)
{
    const smp_onnx_value *a = f->in[0], *b = f->in[1];
    if (a->n_dim < 2 || b->n_dim < 2)
        return;
    const int64_t k = a->dim[a->n_dim - 1], rows = a->dim[a->n_dim - 2];
    const int64_t columns = b->dim[b->n_dim - 1];
    const int64_t stack = f->n > 0 ? f->n / (rows * columns) : 0;
    const int64_t na = smp__onnx_elements(a) / (rows * k),
                  nb = smp__onnx_elements(b) / (columns * k);
    if (f->n > MOST_PRODUCT / k || (na != stack && na != 1) || (nb != stack && nb != 1) ||
        !smp__onnx_work(f->m, f->n * k) || !smp__fold_make(f))
        return;
    for (int64_t s = 0; s < stack; s++)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < columns; j++) {
                double sum = 0;
                for (int64_t c = 0; c < k; c++)
                    sum += smp__fold_number(a, (na == 1 ? 0 : s * rows * k) + i * k + c) *
                           smp__fold_number(b, (nb == 1 ? 0 : s * k * columns) + c * columns + j);
                smp__fold_set(f, (s * rows + i) * columns + j, sum);
            }
}
