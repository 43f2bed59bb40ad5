/* From scores to probabilities: masks that hide the future or padding, the learned bias of T5,
 * the softmax. And masks on their way there: whatever is computed from an int32 input [keys] of
 * ones and zeroes by steps that keep it a function of one bit, base + slope * bit. */
#include "graph/import/importing.h"

#include <math.h>
#include <string.h>

#include "graph/math/attention.h"

enum {
    MOST_SCORES = 1 << 26, /* of one head, in a mask that is looked at */
    MOST_BUCKETS = 1024    /* of a bias by distance */
};
static const float HIDDEN = -1e4f; /* at most so much is added to a score that is to be nothing */

static bool hides(double value)
{
    return value <= (double)HIDDEN;
}

/* Element [i][j] of the last two dimensions of a constant in copy c of the others. */
static double at(const smp_onnx_value *v, int64_t c, int64_t i, int64_t j)
{
    const int64_t columns = v->dim[v->n_dim - 1], rows = v->n_dim > 1 ? v->dim[v->n_dim - 2] : 1;
    const int64_t k = (c * rows + (rows == 1 ? 0 : i)) * columns + (columns == 1 ? 0 : j);
    return v->floats ? (double)v->floats[k] : (double)v->ints[k];
}

/* The copies of a constant's last two dimensions; 0: they do not go with queries and keys. */
static int64_t copies(const smp_onnx_value *v, const smp__bound *s)
{
    if (v->n_dim < 1 || smp__onnx_elements(v) < 1)
        return 0;
    const int64_t columns = v->dim[v->n_dim - 1], rows = v->n_dim > 1 ? v->dim[v->n_dim - 2] : 1;
    if (s->q.length > MOST_SCORES / s->k.length || (columns != 1 && columns != s->k.length) ||
        (rows != 1 && rows != s->q.length))
        return 0;
    return smp__onnx_elements(v) / (rows * columns);
}

/* Are exactly the later keys hidden, or none? `hidden` is what a value has to be for that. */
static bool reads_causal(smp_import *im, const smp_onnx_value *v, const smp__bound *s,
                         bool (*hidden)(double), bool (*open)(double), bool *causal)
{
    const int64_t n = copies(v, s);
    bool later = true, none = true;
    if (n > MOST_SCORES || !smp__onnx_work(im->model, n * s->q.length * s->k.length))
        return false;
    for (int64_t c = 0; c < n; c++)
        for (int64_t i = 0; i < s->q.length; i++)
            for (int64_t j = 0; j < s->k.length; j++) {
                const double x = at(v, c, i, j);
                if (!hidden(x) && !open(x))
                    return false;
                later &= hidden(x) == (j > i);
                none &= !hidden(x);
            }
    *causal = later && !none;
    return n > 0 && (none || (later && s->q.length == s->k.length));
}

static bool is_zero(double x)
{
    return x == 0;
}
static bool not_zero(double x)
{
    return x != 0;
}

/* The table [buckets][heads] that a constant [heads][T][T] spreads by distance, with later keys
 * hidden or not; buckets that no distance has stay 0. known: what it is to be, or NULL. Returns
 * how many have one; 0: it is no such constant. */
static int64_t gathered(const smp_onnx_value *v, const smp__bound *s, const smp__attention *how,
                        const float *known, float *table)
{
    const int64_t heads = s->q.heads;
    bool seen[MOST_BUCKETS] = {false};
    int64_t n_seen = 0;
    memset(table, 0, sizeof(*table) * (size_t)(how->buckets * heads));
    for (int64_t i = 0; i < s->q.length; i++)
        for (int64_t j = 0; j < s->k.length; j++) {
            const int64_t b = smp__attention_bucket(how, j - i);
            if (how->causal && j > i && hides(at(v, 0, i, j)))
                continue;
            for (int64_t h = 0; h < heads; h++) {
                const float x = (float)at(v, h, i, j);
                if (hides((double)x) || (seen[b] && x != table[b * heads + h]) ||
                    (known && x != known[b * heads + h]))
                    return 0;
                table[b * heads + h] = x;
            }
            n_seen += !seen[b];
            seen[b] = true;
        }
    return n_seen;
}

/* T5's bias by distance. Its table is the initializer that was spread; where an exporter spread it
 * itself, the one with the fewest buckets that explains all equal values. */
static bool learned_bias(smp_import *im, const smp_onnx_value *v, smp__bound *s)
{
    static const int64_t MOST[] = {128, 64, 32, 256, 512, 20, 16, 8};
    static const int64_t BUCKETS[] = {32, 8, 16, 64, 128};
    const int64_t heads = s->q.heads;
    if (v->stored < 0 || !v->floats || s->q.length != s->k.length || copies(v, s) != heads ||
        smp__onnx_elements(v) != heads * s->q.length * s->k.length || s->bias_table)
        return false;
    const smp_onnx_value *table = &im->model->value[v->stored];
    const bool is_there = table->floats && table->n_dim == 2 && table->dim[1] == heads;
    const bool hidden = s->q.length > 1 && hides(at(v, 0, 0, s->k.length - 1));
    int64_t fewest = INT64_MAX;
    for (size_t b = 0; b < (is_there ? 1 : sizeof(BUCKETS) / sizeof(BUCKETS[0])); b++)
        for (size_t k = 0; k < 2 * sizeof(MOST) / sizeof(MOST[0]); k++) {
            const smp__attention how = {.buckets = is_there ? table->dim[0] : BUCKETS[b],
                                        .max_distance = MOST[k / 2],
                                        .causal = k % 2 == 1};
            if (how.buckets < 4 || how.buckets > MOST_BUCKETS ||
                how.max_distance <= how.buckets / 2 || ((hidden || s->causal) && !how.causal) ||
                !smp__onnx_work(im->model, smp__onnx_elements(v)))
                continue;
            float *made = smp__onnx_take(im->model, how.buckets * heads, sizeof(*made));
            const int64_t n =
                made ? gathered(v, s, &how, is_there ? table->floats : NULL, made) : 0;
            if (n == 0 || n >= fewest)
                continue;
            fewest = n;
            s->bias_table = is_there ? table->floats : made;
            s->bias_stored = v->stored;
            s->buckets = how.buckets;
            s->max_distance = how.max_distance;
            s->bias_causal = how.causal;
        }
    s->causal |= s->bias_table && hidden;
    return s->bias_table != NULL;
}

bool smp__scores_add(smp_import *im, const smp_onnx_node *node)
{
    for (int k = 0; k < 2; k++) {
        const smp__bound *in = smp__peek(im, node, k), *other = smp__peek(im, node, 1 - k);
        const smp_onnx_value *v = smp__onnx_in(im->model, node, 1 - k);
        bool causal = false;
        if (!in || in->form != SMP__SCORES || !v || in->deferred >= SMP__MOST_DEFERRED)
            continue;
        smp__bound s = *in;
        s.deferred++;
        s.scores_closed = true;
        if (smp_onnx_constant(v)) {
            if (!learned_bias(im, v, &s) && !reads_causal(im, v, &s, hides, is_zero, &causal))
                return false;
            s.causal |= causal;
        } else if (other->form == SMP__MASK && hides(other->base) &&
                   fabs(other->base + other->slope) <= 1e-6 * fabs(other->base) && !s.mask &&
                   other->shape.dim[0] == s.k.length) {
            s.mask = other->tensor;
        } else {
            return false;
        }
        smp__bind(im, node, 0, &s);
        return true;
    }
    return false;
}

bool smp__scores_softmax(smp_import *im, const smp_onnx_node *node)
{
    const smp__bound *in = smp__peek(im, node, 0);
    const smp_onnx_value *v = smp__onnx_in(im->model, node, 0);
    int axis;
    if (!in || in->form != SMP__SCORES || in->deferred >= SMP__MOST_DEFERRED ||
        !smp__onnx_axis(smp__onnx_int(node, "axis", im->model->opset < 13 ? 1 : -1), v->n_dim,
                        &axis) ||
        axis != v->n_dim - 1 || !(in->scale >= 1e-6 && in->scale <= 1e6) ||
        (in->bias_table && in->bias_causal != in->causal))
        return false;
    smp__bound s = *in;
    s.form = SMP__PROBS;
    s.deferred++;
    smp__bind(im, node, 0, &s);
    return true;
}

/* Where(mask, scores, -inf), or the other way round; Where(not a number, 0, probabilities). */
bool smp__scores_where(smp_import *im, const smp_onnx_node *node)
{
    const smp_onnx_value *condition = smp__onnx_in(im->model, node, 0);
    const smp__bound *by = smp__peek(im, node, 0);
    for (int k = 1; k < 3; k++) {
        const smp__bound *in = smp__peek(im, node, k);
        double other;
        bool causal = false;
        if (!condition || !in || !smp__onnx_scalar(smp__onnx_in(im->model, node, 3 - k), &other) ||
            in->deferred >= SMP__MOST_DEFERRED)
            continue;
        smp__bound s = *in;
        s.deferred++;
        s.scores_closed = true;
        if (in->form == SMP__PROBS && by->form == SMP__NO_PROBS && other == 0 && k == 2) {
            smp__bind(im, node, 0, &s);
            return true;
        }
        if (in->form != SMP__SCORES || !hides(other))
            continue;
        if (smp_onnx_constant(condition)) {
            if (!(k == 1 ? reads_causal(im, condition, &s, is_zero, not_zero, &causal)
                         : reads_causal(im, condition, &s, not_zero, is_zero, &causal)))
                return false;
            s.causal |= causal;
        } else if (by->form == SMP__MASK && !s.mask && by->shape.dim[0] == s.k.length &&
                   by->base == (k == 1 ? 0 : 1) && by->slope == (k == 1 ? 1 : -1)) {
            s.mask = by->tensor;
        } else {
            return false;
        }
        smp__bind(im, node, 0, &s);
        return true;
    }
    return false;
}

/* A mask, or an int32 input of [keys] that may become one. */
static bool as_mask(const smp__bound *in, smp__bound *out)
{
    if (!in)
        return false;
    *out = *in;
    if (in->form == SMP__MASK)
        return in->deferred < SMP__MOST_DEFERRED;
    if (in->form != SMP__TENSOR || !in->is_int || in->single || in->shape.n_dim != 1 ||
        in->merged > 0)
        return false;
    *out = (smp__bound){.form = SMP__MASK, .tensor = in->tensor, .shape = in->shape, .slope = 1};
    return true;
}

/* Both values that a mask has, after a step with a constant. */
static bool stepped(const char *op, bool mask_first, double c, const double in[2], double out[2])
{
    for (int k = 0; k < 2; k++) {
        const double a = mask_first ? in[k] : c, b = mask_first ? c : in[k];
        if (strcmp(op, "Sub") == 0)
            out[k] = a - b;
        else if (strcmp(op, "Mul") == 0)
            out[k] = a * b;
        else if (strcmp(op, "Add") == 0)
            out[k] = a + b;
        else if (strcmp(op, "Equal") == 0)
            out[k] = a == b;
        else if (strcmp(op, "Greater") == 0)
            out[k] = a > b;
        else if (strcmp(op, "And") == 0)
            out[k] = a != 0 && b != 0;
        else
            return false;
    }
    return true;
}

static bool all_one_value(smp_import *im, const smp_onnx_value *v, double *value)
{
    const int64_t n = v ? smp__onnx_elements(v) : 0;
    if (n < 1 || !smp_onnx_constant(v) || !smp__onnx_work(im->model, n))
        return false;
    *value = v->floats ? (double)v->floats[0] : (double)v->ints[0];
    for (int64_t i = 1; i < n; i++)
        if ((v->floats ? (double)v->floats[i] : (double)v->ints[i]) != *value)
            return false;
    return true;
}

static bool where_of_mask(smp_import *im, const smp_onnx_node *node, double x[2])
{
    double yes, no;
    if (!all_one_value(im, smp__onnx_in(im->model, node, 1), &yes) ||
        !all_one_value(im, smp__onnx_in(im->model, node, 2), &no))
        return false;
    for (int k = 0; k < 2; k++)
        x[k] = x[k] != 0 ? yes : no;
    return true;
}

/* Do the keys stay the last dimension? */
static bool keys_last(const smp_import *im, const smp_onnx_node *node, const smp__bound *mask)
{
    const smp_onnx_value *out = smp__onnx_out(im->model, node, 0);
    return out && out->n_dim > 1 && out->dim[out->n_dim - 1] == mask->shape.dim[0] &&
           out->dim[0] == im->model->batch;
}

bool smp__mask_step(smp_import *im, const smp_onnx_node *node)
{
    smp__bound mask;
    const bool first = as_mask(smp__peek(im, node, 0), &mask);
    const bool moved = strcmp(node->op, "Unsqueeze") == 0 || strcmp(node->op, "Expand") == 0 ||
                       strcmp(node->op, "Reshape") == 0;
    if (!first && (node->n_in != 2 || moved || !as_mask(smp__peek(im, node, 1), &mask)))
        return false;
    const smp_onnx_value *to = smp__onnx_out(im->model, node, 0);
    double x[2] = {mask.base, mask.base + mask.slope}, c;
    const bool was_input =
        mask.form == SMP__MASK && smp__peek(im, node, first ? 0 : 1)->form == SMP__TENSOR;
    if (!keys_last(im, node, &mask))
        return false;
    if (moved || strcmp(node->op, "Cast") == 0) {
        /* An input of integers stays one: it may be indices. */
        if (was_input && to->type != ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT &&
            to->type != ONNX__TENSOR_PROTO__DATA_TYPE__BOOL && (!moved || to->n_dim == 2))
            return false;
        for (int k = 0; k < 2 && to->type == ONNX__TENSOR_PROTO__DATA_TYPE__BOOL; k++)
            x[k] = x[k] != 0;
    } else if (strcmp(node->op, "Not") == 0) {
        x[0] = x[0] == 0;
        x[1] = x[1] == 0;
    } else if (strcmp(node->op, "Where") == 0) {
        if (!where_of_mask(im, node, x))
            return false;
    } else if (node->n_in != 2 ||
               !all_one_value(im, smp__onnx_in(im->model, node, first ? 1 : 0), &c) ||
               !stepped(node->op, first, c, x, x)) {
        return false;
    }
    mask.base = x[0];
    mask.slope = x[1] - x[0];
    mask.deferred++;
    smp__bind(im, node, 0, &mask);
    return true;
}
