/* linear_cross_entropy: random and large models (one chunk and several, tied, smoothed); the naive
 * reference, which has all logits at once. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    char shape[64], hidden[80];
    const int in = (int)random_int(rng, 1, 6), classes = (int)random_int(rng, 1, 12);
    const bool tied = round % 4 == 3;
    if (round % 3 == 0) /* two chunks where there are two samples or more */
        snprintf(shape, sizeof shape, "[%d]", (int)random_int(rng, 34, 44));
    else
        random_shape(shape, rng, round % 3, 5);
    model_input(m, "b", "int32", shape);
    snprintf(hidden, sizeof hidden, "%.*s, %d]", (int)strlen(shape) - 1, shape, in);
    model_input(m, "a", "float32", hidden);
    if (tied)
        model_input(m, "c", "int32", "[2]");
    model_write(m, "ops:\n");
    if (tied)
        model_write(m, "  - {op: embedding, name: wte, in: c, out: e, rows: %d, features: %d}\n",
                    classes, in);
    model_write(m,
                "  - {op: linear_cross_entropy, name: op, in: [a, b], out: y, features: %d, "
                "chunk: 64, bias: %s%s%s}\n",
                classes, round % 2 ? "true" : "false", tied ? ", weight: wte.weight" : "",
                round % 4 == 1 ? ", label_smoothing: 0.1" : "");
}

static double logit_of(const reference_call *c, int64_t row, int64_t class)
{
    const int64_t in = ref_last(c, 0);
    double sum = c->op->n_param > 1 ? c->param[1][class] : 0;
    for (int64_t k = 0; k < in; k++)
        sum += c->in[0][row * in + k] * c->param[0][class * in + k];
    return sum;
}

static void reference(const reference_call *c)
{
    const int64_t classes = ref_attr(c, "features")->i;
    const double smoothing = ref_attr(c, "label_smoothing")->f;
    double loss = 0, *x = malloc((size_t)classes * sizeof *x);
    int64_t used = 0;
    assert_non_null(x);
    for (int64_t r = 0; r < ref_count(c, 1); r++) {
        double max = -INFINITY, sum = 0, mean = 0;
        if (c->in[1][r] < 0)
            continue;
        for (int64_t i = 0; i < classes; i++) {
            x[i] = logit_of(c, r, i);
            max = fmax(max, x[i]);
            mean += x[i] / (double)classes;
        }
        for (int64_t i = 0; i < classes; i++)
            sum += exp(x[i] - max);
        loss += log(sum) + max - (1 - smoothing) * x[(int64_t)c->in[1][r]] - smoothing * mean;
        used++;
    }
    free(x);
    c->out[0] = used > 0 ? loss / (double)used : 0;
}

/* The products: logits, made again with the weight's gradient, and the two gradients. */
static reference_flops flops(const reference_call *c)
{
    const double logits = (double)(ref_count(c, 1) * ref_attr(c, "features")->i);
    const double product = 2 * logits * (double)ref_last(c, 0);
    const double bias = c->op->n_param > 1 ? logits : 0;
    return (reference_flops){product + bias, product, 2 * (product + bias)};
}

static const large_case LARGE[] = {
    {2, 2, "a: float32 [90, 72]; b: int32 [90]", "in: [a, b], features: 131, chunk: 64"},
    {2, 2, "a: float32 [64, 40]; b: int32 [64]",
     "in: [a, b], features: 1003, chunk: 64, bias: false, label_smoothing: 0.2"},
    {3, 1, "a: float32 [9, 24]; b: int32 [9]", "in: [a, b], features: 5003"},
    {0},
};

OP_CASE(linear_cross_entropy) = {.make = make,
                                 .reference = reference,
                                 .flops = flops,
                                 .tolerance = 1e-5,
                                 .multiplies = true,
                                 .large = LARGE};
