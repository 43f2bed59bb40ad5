/* attention: random and large models (packed and not, causal and not, several blocks of queries);
 * the naive reference; how exact gradients can be. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    bool is_long = round % 8 == 7, causal = round % 2 == 1; /* long: several blocks of queries */
    int heads = (int)random_int(rng, 1, is_long ? 2 : 4);
    int d = heads * (int)random_int(rng, 1, is_long ? 4 : 9);
    int queries = (int)random_int(rng, is_long ? 129 : 1, is_long ? 140 : 20);
    int keys = causal ? queries : (int)random_int(rng, 1, 20);
    char shape[64];
    m->batch = is_long ? 1 : m->batch;
    m->magnitude = round % 5 == 4 ? 10 : 1.5;
    if (round % 4 < 2 || is_long) {
        snprintf(shape, sizeof shape, "[%d, %d]", queries, 3 * d);
        model_input(m, "a", "float32", shape);
        model_write(m,
                    "ops:\n  - {op: attention, name: op, in: a, out: y, heads: %d, causal: %s}\n",
                    heads, causal ? "true" : "false");
        return;
    }
    snprintf(shape, sizeof shape, "[%d, %d]", queries, d);
    model_input(m, "a", "float32", shape);
    snprintf(shape, sizeof shape, "[%d, %d]", keys, d);
    model_input(m, "b", "float32", shape);
    model_input(m, "c", "float32", shape);
    model_write(m,
                "ops:\n  - {op: attention, name: op, in: [a, b, c], out: y, heads: %d, "
                "causal: %s}\n",
                heads, causal ? "true" : "false");
}

/* Element `i` of row `t` of q (part 0), k (1) or v (2) of sample b. */
static double qkv(const reference_call *c, int part, int64_t b, int64_t t, int64_t i)
{
    bool packed = c->op->n_in == 1;
    const smp_shape *shape = &ref_in(c, packed ? 0 : part)->shape;
    int64_t row = b * shape->dim[0] + t;
    if (packed)
        return c->in[0][row * shape->dim[1] + part * (shape->dim[1] / 3) + i];
    return c->in[part][row * shape->dim[1] + i];
}

static void reference(const reference_call *c)
{
    bool packed = c->op->n_in == 1, causal = ref_attr(c, "causal")->i;
    int64_t queries = ref_in(c, 0)->shape.dim[0];
    int64_t keys = ref_in(c, packed ? 0 : 1)->shape.dim[0];
    int64_t d = packed ? ref_last(c, 0) / 3 : ref_last(c, 0);
    int64_t heads = ref_attr(c, "heads")->i, width = d / heads;
    double *p = malloc((size_t)keys * sizeof *p);
    if (!p)
        abort();
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t q = 0; q < queries; q++) {
                int64_t n = causal ? q + 1 : keys;
                for (int64_t k = 0; k < n; k++) {
                    p[k] = 0;
                    for (int64_t i = h * width; i < (h + 1) * width; i++)
                        p[k] += qkv(c, 0, b, q, i) * qkv(c, 1, b, k, i);
                    p[k] /= sqrt((double)width);
                }
                ref_softmax_row(p, p, n);
                for (int64_t i = h * width; i < (h + 1) * width; i++) {
                    double sum = 0;
                    for (int64_t k = 0; k < n; k++)
                        sum += p[k] * qkv(c, 2, b, k, i);
                    c->out[(b * queries + q) * d + i] = sum;
                }
            }
    free(p);
}

/* The largest sum of magnitudes behind an element of gradient `part` (0: q, 1: k, 2: v) of an
 * attention. Where softmax is sharp its gradient is a small difference, and errors are relative to
 * what it is a difference of. */
static double summands(const reference_call *c, const float *dout, int part)
{
    bool packed = c->op->n_in == 1, causal = ref_attr(c, "causal")->i;
    int64_t queries = ref_in(c, 0)->shape.dim[0];
    int64_t keys = ref_in(c, packed ? 0 : 1)->shape.dim[0];
    int64_t d = packed ? ref_last(c, 0) / 3 : ref_last(c, 0);
    int64_t heads = ref_attr(c, "heads")->i, width = d / heads, rows = part == 0 ? queries : keys;
    double *p = calloc((size_t)(2 * keys), sizeof *p), *dp = p + keys, largest_sum = 0;
    double *sums = calloc((size_t)(c->batch * rows * d), sizeof *sums);
    assert_true(p && sums);
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t q = 0; q < queries; q++) {
                int64_t n = causal ? q + 1 : keys;
                const float *dy = dout + (b * queries + q) * d;
                double mean = 0;
                for (int64_t k = 0; k < n; k++) {
                    p[k] = dp[k] = 0;
                    for (int64_t i = h * width; i < (h + 1) * width; i++) {
                        p[k] += qkv(c, 0, b, q, i) * qkv(c, 1, b, k, i);
                        dp[k] += fabs((double)dy[i] * qkv(c, 2, b, k, i));
                    }
                    p[k] /= sqrt((double)width);
                }
                ref_softmax_row(p, p, n);
                for (int64_t k = 0; k < n; k++)
                    mean += p[k] * dp[k];
                for (int64_t k = 0; k < n; k++)
                    for (int64_t i = h * width; i < (h + 1) * width; i++) {
                        double ds = p[k] * (dp[k] + mean) / sqrt((double)width);
                        double *sum = &sums[(b * rows + (part == 0 ? q : k)) * d + i];
                        *sum += part == 0   ? ds * fabs(qkv(c, 1, b, k, i))
                                : part == 1 ? ds * fabs(qkv(c, 0, b, q, i))
                                            : p[k] * fabs((double)dy[i]);
                        largest_sum = fmax(largest_sum, *sum);
                    }
            }
    free(p);
    free(sums);
    return largest_sum;
}

/* Of input `slot`: packed, of all three parts. */
static double gradient_scale(const reference_call *c, const float *dout, int slot)
{
    double scale = 1;
    for (int part = 0; part < 3; part++)
        if (c->op->n_in == 1 || part == slot)
            scale = fmax(scale, summands(c, dout, part));
    return scale;
}

/* A score is a product of rows, an exponential, and weighs a row. Backward has four such products
 * (dV, dP, dQ, dK). Blocks of 64 queries see the same keys, those past the diagonal masked. */
static reference_flops flops(const reference_call *c)
{
    bool packed = c->op->n_in == 1, causal = ref_attr(c, "causal")->i;
    int64_t queries = ref_in(c, 0)->shape.dim[0];
    int64_t keys = ref_in(c, packed ? 0 : 1)->shape.dim[0];
    int64_t width = (packed ? ref_last(c, 0) / 3 : ref_last(c, 0)) / ref_attr(c, "heads")->i;
    reference_flops count = {0};
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t h = 0; h < ref_attr(c, "heads")->i; h++)
            for (int64_t q = 0; q < queries; q++)
                for (int64_t k = 0; k < keys && (!causal || k / 64 <= q / 64); k++) {
                    count.forward += (double)(2 * width + REF_FUNCTION + 2 * width);
                    count.backward_input += (double)(4 * 2 * width + 5);
                }
    return count;
}

static const large_case LARGE[] = {
    {2, 1.5, "a: float32 [130, 384]", "heads: 2, causal: true"},
    {1, 3, "a: float32 [70, 240]", "heads: 1, causal: false"},
    {1, 3, "a: float32 [65, 384]", "heads: 1, causal: true"},
    {1, 1.5, "a: float32 [40, 96]; b: float32 [75, 96]; c: float32 [75, 96]",
     "in: [a, b, c], heads: 3, causal: false"},
    {0},
};

OP_CASE(attention) = {.make = make,
                      .reference = reference,
                      .flops = flops,
                      .tolerance = 2e-5,
                      .multiplies = true,
                      .gradient_scale = gradient_scale,
                      .large = LARGE};
