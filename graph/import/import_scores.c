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
    const int64_t columns = v->n_dim > 0 ? v->dim[v->n_dim - 1] : 1;
    const int64_t rows = v->n_dim > 1 ? v->dim[v->n_dim - 2] : 1;
    const int64_t k = (c * rows + (rows == 1 ? 0 : i)) * columns + (columns == 1 ? 0 : j);
    return v->floats ? (double)v->floats[k] : (double)v->ints[k];
}

/* The copies of a constant's last two dimensions; 0: they do not go with queries and keys. */
static int64_t copies(const smp_onnx_value *v, int64_t queries, int64_t keys)
{
    if (smp__onnx_elements(v) < 1)
        return 0;
    const int64_t columns = v->n_dim > 0 ? v->dim[v->n_dim - 1] : 1;
    const int64_t rows = v->n_dim > 1 ? v->dim[v->n_dim - 2] : 1;
    if (queries > MOST_SCORES / keys || (columns != 1 && columns != keys) ||
        (rows != 1 && rows != queries))
        return 0;
    return smp__onnx_elements(v) / (rows * columns);
}

static bool is_zero(double x)
{
    return x == 0;
}
static bool not_zero(double x)
{
    return x != 0;
}

/* A constant of two numbers: two[1] stands where places are open, two[0] where they are not. One
 * number alone is everywhere. */
static bool reads_places(smp_import *im, const smp_onnx_value *v, int64_t queries, int64_t keys,
                         smp__places *open, double two[2])
{
    const int64_t n = copies(v, queries, keys);
    *open = (smp__places){0};
    if (n < 1 || n > MOST_SCORES || !smp__onnx_work(im->model, n * queries * keys))
        return false;
    two[1] = at(v, 0, 0, 0); /* a query sees itself */
    two[0] = at(v, 0, 0, keys - 1);
    open->causal = two[0] != two[1];
    for (int64_t j = 0; j < keys && open->window == 0; j++)
        open->window = at(v, 0, queries - 1, j) == two[1] ? queries - j : 0;
    open->window = open->window >= queries ? 0 : open->window;
    for (int64_t c = 0; c < n; c++)
        for (int64_t i = 0; i < queries; i++)
            for (int64_t j = 0; j < keys; j++) {
                const bool behind = open->causal && j > i;
                const bool before = open->window > 0 && j <= i - open->window;
                if (at(v, c, i, j) != two[behind || before ? 0 : 1])
                    return false;
            }
    return open->causal ? queries == keys : open->window == 0;
}

/* Hides what `open` does not show; false: other places are hidden already. */
static bool hide(smp__bound *scores, const smp__places *open)
{
    if (scores->open.causal && open->causal && scores->open.window != open->window)
        return false;
    scores->open = open->causal ? *open : scores->open;
    return true;
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
    const int64_t heads = s->q.heads, one = heads * s->q.length * s->k.length;
    if (v->stored < 0 || !v->floats || s->q.length != s->k.length || s->bias_table ||
        copies(v, s->q.length, s->k.length) % heads != 0 || smp__onnx_elements(v) < one ||
        !smp__onnx_work(im->model, smp__onnx_elements(v)))
        return false;
    for (int64_t i = one; i < smp__onnx_elements(v); i++) /* of further samples */
        if (v->floats[i] != v->floats[i % one])
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
                how.max_distance <= how.buckets / 2 ||
                ((hidden || s->open.causal) && !how.causal) ||
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
    s->open.causal |= s->bias_table && hidden;
    return s->bias_table != NULL;
}

/* Is it spread from a table, whatever that begins with? */
static bool of_table(smp_import *im, const smp_onnx_value *v, smp__bound *s)
{
    return v->stored >= 0 && im->model->value[v->stored].n_dim == 2 && learned_bias(im, v, s);
}

/* Does a mask that is added, or chosen by, hide exactly the keys that do not count and the places
 * that are not open? Then the scores take it over. */
static bool hidden_by_mask(smp_import *im, const smp_onnx_value *v, const smp__bound *mask,
                           bool (*hidden)(double), bool (*open)(double), smp__bound *scores)
{
    if (mask->form != SMP__MASK || mask->shape.dim[0] != scores->k.length || v->n_dim != 4 ||
        mask->along.key != 3 || mask->along.sample > 0 || !smp__axes_are(scores, "N,H,T,W") ||
        (scores->mask && scores->mask != mask->tensor) || !open(mask->value[1][1]) ||
        !hidden(mask->value[1][0]) ||
        (mask->open.causal && !(hidden(mask->value[0][0]) && hidden(mask->value[0][1]))))
        return false;
    scores->mask = mask->tensor;
    return hide(scores, &mask->open) && (!mask->plus || learned_bias(im, mask->plus, scores));
}

static bool hidden_by(smp_import *im, const smp_onnx_value *v, bool (*hidden)(double),
                      bool (*open)(double), smp__bound *s)
{
    smp__places places;
    double two[2];
    return reads_places(im, v, s->q.length, s->k.length, &places, two) && open(two[1]) &&
           (!places.causal || hidden(two[0])) && hide(s, &places);
}

bool smp__scores_add(smp_import *im, const smp_onnx_node *node)
{
    for (int k = 0; k < 2; k++) {
        const smp__bound *in = smp__peek(im, node, k), *other = smp__peek(im, node, 1 - k);
        const smp_onnx_value *v = smp__onnx_in(im->model, node, 1 - k);
        if (!in || in->form != SMP__SCORES || in->tanh || !v || in->deferred >= SMP__MOST_DEFERRED)
            continue;
        smp__bound s = *in;
        s.deferred++;
        s.scores_closed = true;
        if (smp_onnx_constant(v) ? !of_table(im, v, &s) && !hidden_by(im, v, hides, is_zero, &s) &&
                                       !learned_bias(im, v, &s)
                                 : !hidden_by_mask(im, v, other, hides, is_zero, &s))
            return false;
        smp__bind(im, node, 0, &s);
        return true;
    }
    return false;
}

/* A soft cap: scores divided by it, their tanh, times it. */
bool smp__scores_tanh(smp_import *im, const smp_onnx_node *node)
{
    const smp__bound *in = smp__peek(im, node, 0);
    if (!in || in->form != SMP__SCORES || in->scores_closed || in->tanh || in->cap > 0 ||
        in->deferred >= SMP__MOST_DEFERRED)
        return false;
    smp__bound s = *in;
    s.tanh = true;
    s.deferred++;
    smp__bind(im, node, 0, &s);
    return true;
}

bool smp__scores_softmax(smp_import *im, const smp_onnx_node *node)
{
    const smp__bound *in = smp__peek(im, node, 0);
    const smp_onnx_value *v = smp__onnx_in(im->model, node, 0);
    int axis;
    if (!in || in->form != SMP__SCORES || in->tanh || in->deferred >= SMP__MOST_DEFERRED ||
        !smp__onnx_axis(smp__onnx_int(node, "axis", im->model->opset < 13 ? 1 : -1), v->n_dim,
                        &axis) ||
        axis != v->n_dim - 1 || !(in->scale >= 1e-6 && in->scale <= 1e6) ||
        (in->bias_table && in->cap > 0) || (in->bias_table && in->bias_causal != in->open.causal))
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
        if (in->form != SMP__SCORES || in->tanh || !hides(other))
            continue;
        bool (*const hidden)(double) = k == 1 ? is_zero : not_zero;
        bool (*const open)(double) = k == 1 ? not_zero : is_zero;
        if (smp_onnx_constant(condition) ? !hidden_by(im, condition, hidden, open, &s)
                                         : !hidden_by_mask(im, condition, by, hidden, open, &s))
            return false;
        smp__bind(im, node, 0, &s);
        return true;
    }
    return false;
}

/* A mask, or an int32 input of [keys] that may become one. */
static bool as_mask(const smp_import *im, const smp__bound *in, smp__bound *out)
{
    if (!in)
        return false;
    *out = *in;
    if (in->form == SMP__MASK)
        return in->deferred < SMP__MOST_DEFERRED;
    if (in->form != SMP__TENSOR || !in->is_int || in->single || in->shape.n_dim != 1 ||
        in->merged > 0 || in->shape.dim[0] < 2)
        return false;
    *out = (smp__bound){.form = SMP__MASK,
                        .tensor = in->tensor,
                        .shape = in->shape,
                        .along = {im->model->batch > 1 ? 0 : -1, 1},
                        .value = {{0, 1}, {0, 1}}};
    return true;
}

/* Where samples and keys are in a value that has each key once, in their order. */
static bool find_keys(const smp_import *im, const smp_onnx_value *v, const smp__bound *mask,
                      smp__mask_axes *along)
{
    const int64_t n = im->model->batch, keys = mask->shape.dim[0];
    int found[2], n_found = 0;
    for (int d = 0; d < v->n_dim; d++)
        if (v->dim[d] != 1 && n_found++ < 2)
            found[n_found - 1] = d;
    if (n_found == 1 && v->dim[found[0]] == n * keys)
        *along = (smp__mask_axes){n > 1 ? found[0] : -1, found[0]};
    else if (n_found == 2 && v->dim[found[0]] == n && v->dim[found[1]] == keys)
        *along = (smp__mask_axes){found[0], found[1]};
    else
        return false;
    return true;
}

/* Each key once? */
static bool only_keys(const smp_import *im, const smp_onnx_value *v, const smp__bound *mask)
{
    return v && !mask->open.causal &&
           smp__onnx_elements(v) == im->model->batch * mask->shape.dim[0];
}

static bool gathers(const smp_onnx_node *node)
{
    return strncmp(node->op, "Gather", 6) == 0;
}

/* Picked by constants, each key at its own place: so exporters write an index of sample and key. */
static bool picks_all(smp_import *im, const smp_onnx_node *node, const smp__bound *mask)
{
    const smp_onnx_value *from = smp__onnx_in(im->model, node, 0);
    const smp_onnx_value *at = smp__onnx_in(im->model, node, 1);
    const bool pairs = strcmp(node->op, "GatherND") == 0;
    const int64_t keys = mask->shape.dim[0], n = im->model->batch * keys;
    if (!at || !at->ints || !only_keys(im, from, mask) || from->dim[0] != (pairs ? n / keys : n) ||
        smp__onnx_int(node, pairs ? "batch_dims" : "axis", 0) != 0 ||
        smp__onnx_elements(at) != (pairs ? 2 * n : n) || (pairs && from->n_dim != 2) ||
        !smp__onnx_work(im->model, 2 * n))
        return false;
    for (int64_t i = 0; i < n; i++)
        if ((pairs ? at->ints[2 * i] * keys + at->ints[2 * i + 1] : at->ints[i]) != i)
            return false;
    return true;
}

/* The same dimensions, but for some of 1 that come or go? */
static bool only_ones_differ(const smp_onnx_value *from, const smp_onnx_value *to,
                             smp__mask_axes *along)
{
    const smp__mask_axes before = *along;
    int d = 0;
    for (int e = 0; e < from->n_dim; e++) {
        if (from->dim[e] == 1)
            continue;
        while (d < to->n_dim && to->dim[d] == 1)
            d++;
        if (d == to->n_dim || to->dim[d] != from->dim[e])
            return false;
        along->sample = before.sample == e ? d : along->sample;
        along->key = before.key == e ? d : along->key;
        d++;
    }
    while (d < to->n_dim && to->dim[d] == 1)
        d++;
    return d == to->n_dim;
}

/* Dimensions are put in front, and others repeated. */
static bool only_repeats(const smp_onnx_value *from, const smp_onnx_value *to,
                         smp__mask_axes *along)
{
    const int ahead = to->n_dim - from->n_dim;
    if (ahead < 0 || from->dim[along->key] != to->dim[along->key + ahead] ||
        (along->sample >= 0 && from->dim[along->sample] != to->dim[along->sample + ahead]))
        return false;
    along->key += ahead;
    along->sample += along->sample >= 0 ? ahead : 0;
    return true;
}

/* An input of integers stays one: it may be indices. */
static bool mask_moved(smp_import *im, const smp_onnx_node *node, smp__bound *mask)
{
    const smp_onnx_value *from = smp__onnx_in(im->model, node, 0);
    const smp_onnx_value *to = smp__onnx_out(im->model, node, 0);
    const bool is_bool = to->type == ONNX__TENSOR_PROTO__DATA_TYPE__BOOL;
    const bool is_float = to->type == ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT;
    if (smp__peek(im, node, 0)->form == SMP__TENSOR && !is_bool && !is_float &&
        (strcmp(node->op, "Cast") == 0 || to->n_dim <= 2))
        return false;
    if (gathers(node) && !picks_all(im, node, mask))
        return false;
    if (strcmp(node->op, "Expand") == 0
            ? !only_repeats(from, to, &mask->along)
            : (gathers(node) || !only_ones_differ(from, to, &mask->along)) &&
                  !(only_keys(im, from, mask) && only_keys(im, to, mask) &&
                    find_keys(im, to, mask, &mask->along)))
        return false;
    for (int i = 0; i < 4; i++) {
        double *x = &mask->value[i / 2][i % 2];
        *x = is_bool ? *x != 0 : is_float ? *x : trunc(*x);
    }
    return !mask->open.causal || mask->along.key == to->n_dim - 1;
}

/* What an input of a step by element is, of places and keys. */
static bool operand(smp_import *im, const smp_onnx_node *node, int k, const smp_onnx_value *to,
                    smp__bound *mask, double value[2][2])
{
    const smp_onnx_value *v = smp__onnx_in(im->model, node, k);
    smp__bound own;
    smp__places open;
    double two[2];
    if (v && smp_onnx_constant(v)) {
        if (!reads_places(im, v, to->n_dim > 1 ? to->dim[to->n_dim - 2] : 1, to->dim[to->n_dim - 1],
                          &open, two))
            return false;
        for (int i = 0; i < 4; i++)
            value[i / 2][i % 2] = two[i / 2];
    } else if (v && as_mask(im, smp__peek(im, node, k), &own) && own.tensor == mask->tensor &&
               only_repeats(v, to, &own.along) &&
               (mask->along.key < 0 || memcmp(&own.along, &mask->along, sizeof(own.along)) == 0)) {
        open = own.open;
        mask->along = own.along;
        memcpy(value, own.value, sizeof(own.value));
    } else {
        return false;
    }
    return hide(mask, &open);
}

/* Where(mask, what is learned, something that hides). */
static bool mask_of_bias(smp_import *im, const smp_onnx_node *node, smp__bound *mask)
{
    const smp_onnx_value *v = smp__onnx_in(im->model, node, 1);
    const smp_onnx_value *to = smp__onnx_out(im->model, node, 0);
    double hidden;
    if (node->n_in != 3 || strcmp(node->op, "Where") != 0 || !v || !v->floats || v->stored < 0 ||
        v->n_dim != 4 || !smp__onnx_scalar(smp__onnx_in(im->model, node, 2), &hidden) ||
        to->n_dim != 4 || mask->along.key != 3 || mask->along.sample > 0)
        return false;
    const bool places = mask->open.causal;
    for (int i = 0; i < 4; i++) {
        const bool shown = i == 3 || (i == 1 && !places);
        if ((mask->value[i / 2][i % 2] != 0) != shown)
            return false;
        mask->value[i / 2][i % 2] = shown ? 0 : hidden;
    }
    mask->plus = v;
    return true;
}

static bool mask_computed(smp_import *im, const smp_onnx_node *node, smp__bound *mask)
{
    const char *op = node->op;
    const smp_onnx_value *to = smp__onnx_out(im->model, node, 0);
    const bool inverts = strcmp(op, "Not") == 0, chooses = strcmp(op, "Where") == 0;
    double in[3][2][2] = {{{0}}};
    if (node->n_in != (inverts ? 1 : chooses ? 3 : 2))
        return false;
    mask->open = (smp__places){0};
    mask->along = (smp__mask_axes){-1, -1};
    for (int k = 0; k < node->n_in; k++)
        if (!operand(im, node, k, to, mask, in[k]))
            return false;
    for (int i = 0; i < 4; i++) {
        const double a = in[0][i / 2][i % 2], b = in[1][i / 2][i % 2], c = in[2][i / 2][i % 2];
        mask->value[i / 2][i % 2] = inverts   ? a == 0
                                    : chooses ? (a != 0 ? b : c)
                                              : smp__onnx_of_two(op, a, b);
    }
    /* Places are of the last two dimensions: queries and keys. */
    return mask->along.key >= 0 && (!mask->open.causal || (mask->along.key == to->n_dim - 1 &&
                                                           mask->along.sample < to->n_dim - 2));
}

bool smp__mask_step(smp_import *im, const smp_onnx_node *node)
{
    smp__bound mask;
    const smp_onnx_value *to = smp__onnx_out(im->model, node, 0);
    bool found = false;
    for (int k = 0; k < node->n_in && !found; k++)
        found = as_mask(im, smp__peek(im, node, k), &mask);
    if (!found || !to || to->n_dim < 1)
        return false;
    if (mask.plus || (smp__only_moves(node->op) || gathers(node)
                          ? !mask_moved(im, node, &mask)
                          : !mask_of_bias(im, node, &mask) && !mask_computed(im, node, &mask)))
        return false;
    mask.deferred++;
    smp__bind(im, node, 0, &mask);
    return true;
}
