/* cross_entropy: random and large models (rows of any number of dimensions, large logits); the
 * naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    char shape[64], logits[80];
    m->magnitude = round % 3 == 2 ? 1e4 : 3;
    random_shape(shape, rng, round % 3, 5);
    model_input(m, "b", "int32", shape);
    snprintf(logits, sizeof logits, "%.*s%s%d]", (int)strlen(shape) - 1, shape,
             round % 3 == 0 ? "" : ", ", (int)random_int(rng, 1, 60));
    model_input(m, "a", "float32", logits);
    model_write(m, "ops:\n  - {op: cross_entropy, name: op, in: [a, b], out: y%s}\n",
                round % 4 == 1   ? ", label_smoothing: 0.1"
                : round % 8 == 7 ? ", label_smoothing: 1"
                                 : "");
}

static void reference(const reference_call *c)
{
    int64_t classes = ref_last(c, 0), used = 0;
    double loss = 0, smoothing = ref_attr(c, "label_smoothing")->f;
    for (int64_t r = 0; r < ref_count(c, 1); r++) {
        const double *x = c->in[0] + r * classes;
        double max = x[0], sum = 0, log_sum;
        if (c->in[1][r] < 0)
            continue;
        for (int64_t i = 1; i < classes; i++)
            max = fmax(max, x[i]);
        for (int64_t i = 0; i < classes; i++)
            sum += exp(x[i] - max);
        log_sum = log(sum) + max;
        for (int64_t i = 0; i < classes; i++)
            loss += smoothing / (double)classes * (log_sum - x[i]);
        loss += (1 - smoothing) * (log_sum - x[(int64_t)c->in[1][r]]);
        used++;
    }
    c->out[0] = used > 0 ? loss / (double)used : 0;
}

/* Largest, difference, exp, sum; difference, exp, less one at the target, scale. */
static reference_flops flops(const reference_call *c)
{
    return ref_flops_each(c, REF_FUNCTION + 3, REF_FUNCTION + 3, 0);
}

static const large_case LARGE[] = {
    {2, 10, "a: float32 [9, 5003]; b: int32 [9]", "in: [a, b]"},
    {1, 1e4, "a: float32 [300, 64]; b: int32 [300]", "in: [a, b]"},
    {2, 10, "a: float32 [9, 5003]; b: int32 [9]", "in: [a, b], label_smoothing: 0.2"},
    {0},
};

OP_CASE(cross_entropy) = {
    .make = make, .reference = reference, .flops = flops, .tolerance = 1e-5, .large = LARGE};
