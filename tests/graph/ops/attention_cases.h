/* attention and ring_attention: random and large models (packed and not, causal and not, heads that
 * share keys, masks, windows, biases, several blocks of queries); the naive reference; how exact
 * gradients can be. Defined before: the kind, and whether it has learned biases. */
#ifndef SMP_TESTS_GRAPH_OPS_ATTENTION_CASES_H
#define SMP_TESTS_GRAPH_OPS_ATTENTION_CASES_H

#include "tests/graph/ops/op_cases.h"

/* "[rows, columns]" of float input `name`. */
static void matrix(model_text *m, const char *name, int rows, int columns)
{
    char shape[64];
    snprintf(shape, sizeof shape, "[%d, %d]", rows, columns);
    model_input(m, name, "float32", shape);
}

static void write_bias(model_text *m, uint64_t *rng, bool causal)
{
    int kind = (int)random_int(rng, 0, ATTENTION_LEARNS ? 3 : 1),
        buckets = (int)random_int(rng, causal ? 2 : 4, 20);
    if (kind == 0)
        model_write(m, ", alibi: true");
    if (kind == 2)
        model_write(m, ", buckets: %d, max_distance: %d", buckets,
                    (int)random_int(rng, buckets / 2 + 1, 30));
    if (kind == 3)
        model_write(m, ", softcap: %d", (int)random_int(rng, 1, 3));
    if (random_int(rng, 0, 3) == 0)
        model_write(m, ", scale: 0.3");
}

static void make(model_text *m, uint64_t *rng, int round)
{
    bool is_long = round % 8 == 7, causal = round % 2 == 1; /* long: several blocks of queries */
    bool packed = round % 4 < 2 || (is_long && round % 3 > 0);
    int kv_heads = (int)random_int(rng, 1, 2), group = (int)random_int(rng, 1, is_long ? 1 : 3);
    int width = (int)random_int(rng, 1, is_long ? 4 : 9);
    int queries = (int)random_int(rng, is_long ? 129 : 1, is_long ? 140 : 20);
    int keys = causal ? queries : (int)random_int(rng, 1, 20);
    int d = kv_heads * group * width;
    bool masked = random_int(rng, 0, 2) == 0;
    m->batch = is_long ? 1 : m->batch;
    m->magnitude = round % 5 == 4 ? 10 : 1.5;
    if (packed) {
        matrix(m, "a", queries, 3 * d);
    } else {
        matrix(m, "a", queries, d);
        matrix(m, "b", keys, kv_heads * width);
        matrix(m, "c", keys, kv_heads * width);
    }
    if (masked)
        model_write(m, "  m: {dtype: int32, shape: [%d]}\n", packed ? queries : keys);
    model_write(
        m, "ops:\n  - {op: " ATTENTION_KIND ", name: op, in: [%s%s], out: y, heads: %d, causal: %s",
        packed ? "a" : "a, b, c", masked ? ", m" : "", kv_heads * group, causal ? "true" : "false");
    if (causal && random_int(rng, 0, 2) == 0)
        model_write(m, ", window: %d", (int)random_int(rng, 1, is_long ? 80 : 8));
    if (packed || causal)
        write_bias(m, rng, causal);
    if (!packed && (group > 1 || round % 3 == 0))
        model_write(m, ", kv_heads: %d", kv_heads);
    model_write(m, "}\n");
}

typedef struct sizes {
    bool packed, causal, alibi;
    const double *mask;                                    /* of all samples; NULL: none */
    int64_t queries, keys, heads, kv_heads, width, window; /* window 0: none */
    int64_t buckets, max_distance;
    double scale, softcap; /* 0: none */
    const double *weight;  /* (buckets, heads) */
} sizes;

static sizes sizes_of(const reference_call *c)
{
    const int n = c->op->n_in;
    bool packed = n <= 2;
    sizes s = {.packed = packed, .causal = ref_attr(c, "causal")->i};
    s.mask = n % 2 == 0 && c->in ? c->in[n - 1] : NULL;
    s.buckets = ref_attr(c, "buckets")->i;
    s.max_distance = ref_attr(c, "max_distance")->i;
    s.weight = s.buckets > 0 && c->param ? c->param[0] : NULL;
    s.window = ref_attr(c, "window")->i;
    s.alibi = ref_attr(c, "alibi")->i;
    s.queries = ref_in(c, 0)->shape.dim[0];
    s.keys = ref_in(c, packed ? 0 : 1)->shape.dim[0];
    s.heads = ref_attr(c, "heads")->i;
    s.kv_heads = ref_attr(c, "kv_heads")->i > 0 ? ref_attr(c, "kv_heads")->i : s.heads;
    s.width = ref_last(c, 0) / (packed ? 3 : 1) / s.heads;
    s.softcap = ref_attr(c, "softcap")->f;
    s.scale = ref_attr(c, "scale")->f > 0 ? ref_attr(c, "scale")->f : 1 / sqrt((double)s.width);
    return s;
}

/* Where in its input is value x of row t of what head h reads of q (part 0), k (1) or v (2)? */
static int64_t place(const sizes *s, int part, int64_t b, int64_t t, int64_t h, int64_t x)
{
    int64_t rows = part == 0 ? s->queries : s->keys, heads = part == 0 ? s->heads : s->kv_heads;
    int64_t head = part == 0 ? h : h * s->kv_heads / s->heads;
    if (s->packed)
        return (((b * rows + t) * 3 + part) * heads + head) * s->width + x;
    return ((b * rows + t) * heads + head) * s->width + x;
}

static double qkv(const reference_call *c, const sizes *s, int part, int64_t b, int64_t t,
                  int64_t h, int64_t x)
{
    return c->in[s->packed ? 0 : part][place(s, part, b, t, h, x)];
}

static bool sees(const sizes *s, int64_t b, int64_t q, int64_t k)
{
    return (!s->causal || k <= q) && (s->window == 0 || q - k < s->window) &&
           (!s->mask || s->mask[b * s->keys + k] != 0);
}

/* 2^(-8/n), its square, ...; of 3 heads those of 2 and the first of 4, of 6 those of 4 and the
 * first and third of 8. */
static double slope(int64_t heads, int64_t h)
{
    int64_t power = 1;
    while (2 * power <= heads)
        power *= 2;
    if (h < power)
        return pow(2, -8.0 * (double)(h + 1) / (double)power);
    return pow(2, -8.0 * (double)(2 * (h - power) + 1) / (double)(2 * power));
}

/* T5's bucket, by counting the bounds that a distance has reached. */
static int64_t bucket(const sizes *s, int64_t q, int64_t k)
{
    const int64_t side = s->causal ? s->buckets : s->buckets / 2, single = side / 2;
    const int64_t far = s->causal ? (k < q ? q - k : 0) : llabs(q - k);
    const int64_t first = !s->causal && k > q ? side : 0;
    int64_t wide = 0;
    for (int64_t i = 1; i < side - single; i++)
        wide += (double)far > (double)single * pow((double)s->max_distance / (double)single,
                                                   (double)i / (double)(side - single)) -
                                  1e-6;
    return first + (far < single ? far : single + wide);
}

/* Of query q, over all keys; 0 where it does not see them. */
static void probabilities(const reference_call *c, const sizes *s, int64_t b, int64_t h, int64_t q,
                          double *p)
{
    bool any = false;
    for (int64_t k = 0; k < s->keys; k++) {
        p[k] = 0;
        for (int64_t x = 0; x < s->width; x++)
            p[k] += qkv(c, s, 0, b, q, h, x) * qkv(c, s, 1, b, k, h, x);
        p[k] *= s->scale;
        if (s->softcap > 0)
            p[k] = s->softcap * tanh(p[k] / s->softcap);
        if (s->weight)
            p[k] += s->weight[bucket(s, q, k) * s->heads + h];
        if (s->alibi)
            p[k] -= slope(s->heads, h) * fabs((double)(q - k));
        p[k] = sees(s, b, q, k) ? p[k] : -INFINITY;
        any |= sees(s, b, q, k);
    }
    if (any)
        ref_softmax_row(p, p, s->keys);
    else
        memset(p, 0, (size_t)s->keys * sizeof *p);
}

static void reference(const reference_call *c)
{
    const sizes s = sizes_of(c);
    double *p = malloc((size_t)s.keys * sizeof *p);
    if (!p)
        abort();
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t h = 0; h < s.heads; h++)
            for (int64_t q = 0; q < s.queries; q++) {
                probabilities(c, &s, b, h, q, p);
                for (int64_t x = 0; x < s.width; x++) {
                    double sum = 0;
                    for (int64_t k = 0; k < s.keys; k++)
                        sum += p[k] * qkv(c, &s, 2, b, k, h, x);
                    c->out[((b * s.queries + q) * s.heads + h) * s.width + x] = sum;
                }
            }
    free(p);
}

/* The largest sum of magnitudes behind an element of the gradient of input `slot`. Where softmax is
 * sharp its gradient is a small difference, and errors are relative to what it is a difference of.
 */
static double gradient_scale(const reference_call *c, const float *dout, int slot)
{
    const sizes s = sizes_of(c);
    double *p = calloc((size_t)(2 * s.keys), sizeof *p), *dp = p + s.keys, largest_sum = 1;
    double *sums = calloc((size_t)ref_count(c, slot), sizeof *sums);
    assert_true(p && sums);
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t h = 0; h < s.heads; h++)
            for (int64_t q = 0; q < s.queries; q++) {
                const float *dy = dout + ((b * s.queries + q) * s.heads + h) * s.width;
                double mean = 0;
                probabilities(c, &s, b, h, q, p);
                for (int64_t k = 0; k < s.keys; k++) {
                    dp[k] = 0;
                    for (int64_t x = 0; x < s.width; x++)
                        dp[k] += fabs((double)dy[x] * qkv(c, &s, 2, b, k, h, x));
                    mean += p[k] * dp[k];
                }
                for (int64_t i = 0; i < s.keys * s.width; i++) {
                    const int64_t k = i / s.width, x = i % s.width;
                    const double ds = p[k] * (dp[k] + mean) * s.scale;
                    if (s.packed || slot == 0)
                        sums[place(&s, 0, b, q, h, x)] += ds * fabs(qkv(c, &s, 1, b, k, h, x));
                    if (s.packed || slot == 1)
                        sums[place(&s, 1, b, k, h, x)] += ds * fabs(qkv(c, &s, 0, b, q, h, x));
                    if (s.packed || slot == 2)
                        sums[place(&s, 2, b, k, h, x)] += p[k] * fabs((double)dy[x]);
                }
            }
    for (int64_t i = 0; i < ref_count(c, slot); i++)
        largest_sum = fmax(largest_sum, sums[i]);
    free(p);
    free(sums);
    return largest_sum;
}

/* How often a score is made: blocks of 64 queries see the same keys, from the window of the first
 * to the diagonal of the last. */
static double scores_made(const reference_call *c)
{
    const sizes s = sizes_of(c);
    double scores = 0;
    for (int64_t q = 0; q < s.queries; q++)
        for (int64_t k = 0; k < s.keys && (!s.causal || k / 64 <= q / 64); k++)
            scores += s.window == 0 || q / 64 * 64 - k < s.window;
    return scores * (double)(c->batch * s.heads);
}

#endif
