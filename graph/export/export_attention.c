/* attention and rope, of matrix products, softmax and tables of positions.
 *
 * Where k and v have fewer heads, those of q that share one lie in a dimension of their own, [kv
 * heads, heads of each, T, w], and products repeat k and v along it. What depends on positions
 * alone (which keys a query may see, biases) is made once for all layers that have it alike. */
#include "graph/export/export_table.h"

#include <inttypes.h>
#include <math.h>

#include "graph/math/attention.h"
#include "graph/ops/attention/rope.h"

/* [T]: 0, 1, .. T - 1, of queries as a column. */
static const char *positions(smp__node_out *x, int64_t n, bool column)
{
    void *fill;
    const char *key = smp__node_text_of(x, "%s %" PRId64, column ? "queries" : "keys", n);
    const smp_shape shape = column ? (smp_shape){2, {n, 1}} : (smp_shape){1, {n}};
    const char *name = smp__node_table(x, key, shape, true, &fill);
    for (int64_t i = 0; fill && i < n; i++)
        ((int64_t *)fill)[i] = i;
    return name;
}

/* [Tq, Tk]: key - query. */
static const char *distances(smp__node_out *x, const smp__attention *at)
{
    const char *key = smp__node_text_of(x, "distances %" PRId64 " %" PRId64, at->queries, at->keys);
    const char *known = smp__node_known(x, key);
    return known ? known
                 : smp__node_keep(x, key,
                                  SMP__NODE(x, "Sub", positions(x, at->keys, false),
                                            positions(x, at->queries, true)));
}

static bool has_window(const smp__attention *at)
{
    return at->window < at->keys || at->window < at->queries;
}

/* [Tq, Tk]: may the query see the key, by their distance? NULL: all do. */
static const char *near_keys(smp__node_out *x, const smp__attention *at)
{
    if (!at->causal)
        return NULL;
    const char *key = smp__node_text_of(x, "sees %" PRId64 " %" PRId64 " %" PRId64, at->queries,
                                        at->keys, has_window(at) ? at->window : 0);
    const char *known = smp__node_known(x, key), *distance = distances(x, at);
    if (known)
        return known;
    known = SMP__NODE(x, "LessOrEqual", distance, SMP__LIST(x, 0));
    if (has_window(at)) {
        const char *within = SMP__NODE(x, "Greater", distance, SMP__LIST(x, -at->window));
        known = SMP__NODE(x, "And", known, within);
    }
    return smp__node_keep(x, key, known);
}

/* The mask, [batch, 1, (1,) 1, Tk]. */
static const char *masked_keys(smp__node_out *x, const smp__attention *at, bool grouped)
{
    const char *counts = SMP__NODE(x, "Cast", smp__node_in(x, at->mask));
    smp__node_int(x, "to", ONNX__TENSOR_PROTO__DATA_TYPE__BOOL);
    return grouped ? SMP__RESHAPE(x, counts, 1, 1, 1, at->keys)
                   : SMP__RESHAPE(x, counts, 1, 1, at->keys);
}

/* ALiBi's, [heads, Tq, Tk]. */
static const char *slopes(smp__node_out *x, const smp__attention *at)
{
    void *fill;
    const char *key = smp__node_text_of(x, "slopes %" PRId64, at->heads);
    const char *table = smp__node_table(x, key, (smp_shape){3, {at->heads, 1, 1}}, false, &fill);
    for (int64_t h = 0; fill && h < at->heads; h++)
        ((float *)fill)[h] = (float)-smp__attention_slope(at->heads, h);
    const char *far = SMP__NODE(x, "Cast", SMP__NODE(x, "Abs", distances(x, at)));
    smp__node_int(x, "to", ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT);
    return SMP__NODE(x, "Mul", far, table);
}

/* That of a weight [buckets, heads]: a bucket for each distance, from 1 - Tq on. */
static const char *learned(smp__node_out *x, const smp__attention *at)
{
    void *fill;
    const int64_t n = at->queries + at->keys - 1;
    const char *weight = smp__node_weight(x, 0);
    const char *key = smp__node_text_of(
        x, "buckets %" PRId64 " %" PRId64 " of %" PRId64 " to %" PRId64 "%s", at->queries, at->keys,
        at->buckets, at->max_distance, at->causal ? " causal" : "");
    const char *table = smp__node_table(x, key, (smp_shape){1, {n}}, true, &fill);
    for (int64_t i = 0; fill && i < n; i++)
        ((int64_t *)fill)[i] = smp__attention_bucket(at, i + 1 - at->queries);
    const char *place = SMP__NODE(x, "Add", distances(x, at), SMP__LIST(x, at->queries - 1));
    const char *bucket = SMP__NODE(x, "Gather", table, place);
    return SMP__PERMUTE(x, SMP__NODE(x, "Gather", weight, bucket), 2, 0, 1);
}

/* What is added to scores, [heads, Tq, Tk], grouped as they are; NULL: nothing. Layers that share a
 * weight share it. */
static const char *bias_of(smp__node_out *x, const smp__attention *at, bool grouped)
{
    if (!smp__attention_is_biased(at))
        return NULL;
    const char *key =
        smp__node_text_of(x, "bias %" PRId64 " %" PRId64 " %" PRId64 " by %" PRId64 "%s%s",
                          at->heads, at->queries, at->keys, grouped ? at->kv_heads : 0,
                          at->causal ? " causal " : " ", at->alibi ? "" : smp__node_weight(x, 0));
    const char *known = smp__node_known(x, key);
    if (known)
        return known;
    known = at->alibi ? slopes(x, at) : learned(x, at);
    if (grouped)
        known =
            SMP__NODE(x, "Reshape", known,
                      SMP__LIST(x, at->kv_heads, at->heads / at->kv_heads, at->queries, at->keys));
    return smp__node_keep(x, key, known);
}

/* Heads before positions: [batch, heads, T, w], or [batch, kv heads, heads of each, T, w]; of keys
 * the last two the other way round. */
static const char *heads_of(smp__node_out *x, const smp__attention *at, const char *value, int part,
                            bool grouped)
{
    const int64_t rows = part == SMP__Q ? at->queries : at->keys;
    const int64_t shared = part == SMP__Q ? at->heads / at->kv_heads : 1;
    const bool turned = part == SMP__K;
    if (!grouped) {
        value = SMP__RESHAPE(x, value, rows, at->heads, at->width);
        return turned ? SMP__PERMUTE(x, value, 0, 2, 3, 1) : SMP__PERMUTE(x, value, 0, 2, 1, 3);
    }
    value = SMP__RESHAPE(x, value, rows, at->kv_heads, shared, at->width);
    return turned ? SMP__PERMUTE(x, value, 0, 2, 3, 4, 1) : SMP__PERMUTE(x, value, 0, 2, 3, 1, 4);
}

/* q, k and v, [batch, T, d]. */
static void parts_of(smp__node_out *x, const smp__attention *at, const char *part[3])
{
    if (at->input[SMP__K] != 0) {
        for (int i = SMP__Q; i <= SMP__V; i++)
            part[i] = smp__node_in(x, at->input[i]);
        return;
    }
    const char *in[] = {smp__node_in(x, 0), SMP__LIST(x, at->d, at->d, at->d), NULL};
    smp__node_node_many(x, "Split", in, 3, part);
    smp__node_int(x, "axis", 2);
}

/* Who sees no key gets zeros, so what is hidden is hidden once more after the softmax. */
void smp__export_attention(smp__node_out *x)
{
    const smp__attention at = smp__attention_of(x->model, x->op);
    const bool grouped = at.kv_heads != at.heads;
    const char *part[3], *head[3];
    parts_of(x, &at, part);
    for (int i = SMP__Q; i <= SMP__V; i++)
        head[i] = heads_of(x, &at, part[i], i, grouped);
    const char *q = SMP__NODE(x, "Mul", head[SMP__Q], smp__node_number(x, (double)at.scale));
    const char *scores = SMP__NODE(x, "MatMul", q, head[SMP__K]);
    if (at.softcap > 0) {
        const char *share = SMP__NODE(x, "Div", scores, smp__node_number(x, (double)at.softcap));
        scores = SMP__NODE(x, "Mul", SMP__NODE(x, "Tanh", share),
                           smp__node_number(x, (double)at.softcap));
    }
    const char *bias = bias_of(x, &at, grouped), *sees = near_keys(x, &at);
    const char *mask = at.mask >= 0 ? masked_keys(x, &at, grouped) : NULL;
    if (bias)
        scores = SMP__NODE(x, "Add", scores, bias);
    if (mask)
        sees = sees ? SMP__NODE(x, "And", sees, mask) : mask;
    if (sees)
        scores = SMP__NODE(x, "Where", sees, scores, smp__node_number(x, -1e30));
    const char *shares = SMP__NODE(x, "Softmax", scores);
    smp__node_int(x, "axis", -1);
    if (mask)
        shares = SMP__NODE(x, "Where", sees, shares, smp__node_number(x, 0));
    const char *out = SMP__NODE(x, "MatMul", shares, head[SMP__V]);
    out = grouped ? SMP__PERMUTE(x, out, 0, 3, 1, 2, 4) : SMP__PERMUTE(x, out, 0, 2, 1, 3);
    smp__node_is(x, SMP__RESHAPE(x, out, at.queries, at.d));
}

/* Sines or cosines of all positions, [T, 1, pairs]; angles as the operator has them, base^(-2 i /
 * w) each, scaled. */
static const char *turns(smp__node_out *x, int64_t rows, int64_t pairs, double base, bool sines)
{
    void *fill;
    const smp__rope_scaling s = smp__rope_scaling_of(x->op->attr, 2 * pairs);
    const char *key = smp__node_text_of(
        x, "%s %" PRId64 " %" PRId64 " base %.17g %d %.17g %.17g %.17g %.17g %.17g",
        sines ? "sines" : "cosines", rows, pairs, base, (int)s.kind, s.factor, s.original, s.slow,
        s.fast, s.magnitude);
    for (int64_t i = 0; s.kind == SMP__ROPE_LONG && i < pairs; i++)
        key = smp__node_text_of(x, "%s %.17g", key, s.by_pair[i]);
    const char *name = smp__node_table(x, key, (smp_shape){3, {rows, 1, pairs}}, false, &fill);
    for (int64_t t = 0; fill && t < rows; t++)
        for (int64_t i = 0; i < pairs; i++) {
            const double plain = pow(base, -(double)i / (double)pairs);
            const double angle = (double)t * smp__rope_frequency(&s, plain, i);
            ((float *)fill)[t * pairs + i] =
                (float)((sines ? sin(angle) : cos(angle)) * s.magnitude);
        }
    return name;
}

/* Pairs u, v of [batch, T, heads, pairs] each: (u cos - v sin, v cos + u sin). */
static void turn(smp__node_out *x, const char *const pair[2], const char *cosines,
                 const char *sines, const char *out[2])
{
    out[0] = SMP__NODE(x, "Sub", SMP__NODE(x, "Mul", pair[0], cosines),
                       SMP__NODE(x, "Mul", pair[1], sines));
    out[1] = SMP__NODE(x, "Add", SMP__NODE(x, "Mul", pair[1], cosines),
                       SMP__NODE(x, "Mul", pair[0], sines));
}

/* Neighbours are pairs along a dimension of their own, which a transpose brings in front. */
static const char *turn_heads(smp__node_out *x, const char *value, int64_t heads, int64_t pairs)
{
    const int64_t rows = smp__node_in_shape(x, 0)->dim[0];
    const bool neighbours = smp__node_attr(x, "interleaved")->i != 0;
    const double base = smp__node_attr(x, "base")->f;
    const char *pair[2], *out[2];
    if (neighbours)
        value = SMP__PERMUTE(x, SMP__RESHAPE(x, value, rows, heads, pairs, 2), 0, 1, 2, 4, 3);
    value = SMP__RESHAPE(x, value, rows, heads, 2 * pairs);
    const char *in[] = {value, SMP__LIST(x, pairs, pairs), NULL};
    smp__node_node_many(x, "Split", in, 2, pair);
    smp__node_int(x, "axis", 3);
    turn(x, pair, turns(x, rows, pairs, base, false), turns(x, rows, pairs, base, true), out);
    value = SMP__NODE(x, "Concat", out[0], out[1]);
    smp__node_int(x, "axis", 3);
    if (neighbours)
        value = SMP__PERMUTE(x, SMP__RESHAPE(x, value, rows, heads, 2, pairs), 0, 1, 2, 4, 3);
    return SMP__RESHAPE(x, value, rows, heads * 2 * pairs);
}

void smp__export_rope(smp__node_out *x)
{
    const smp_shape *shape = smp__node_in_shape(x, 0);
    const int64_t heads = smp__node_attr(x, "heads")->i, given = smp__node_attr(x, "rotated")->i;
    const int64_t rotated = given > 0 ? given : heads, width = shape->dim[1] / heads;
    const char *part[2] = {smp__node_in(x, 0)};
    if (rotated < heads) {
        const char *in[] = {part[0], SMP__LIST(x, rotated * width, (heads - rotated) * width),
                            NULL};
        smp__node_node_many(x, "Split", in, 2, part);
        smp__node_int(x, "axis", 2);
    }
    const char *out = turn_heads(x, part[0], rotated, width / 2);
    if (rotated < heads) {
        out = SMP__NODE(x, "Concat", out, part[1]);
        smp__node_int(x, "axis", 2);
    }
    smp__node_is(x, out);
}
