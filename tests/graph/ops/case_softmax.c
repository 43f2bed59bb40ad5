/* softmax: random and large models (also of values whose exponentials overflow); the naive
 * reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    char shape[64];
    m->magnitude = round % 3 == 2 ? 1e4 : 3;
    model_input(m, "a", "float32",
                random_shape(shape, rng, 1 + round % 3, round % 4 == 0 ? 70 : 9));
    model_write(m, "ops:\n  - {op: softmax, name: op, in: a, out: y}\n");
}

static void reference(const reference_call *c)
{
    int64_t n = ref_last(c, 0);
    for (int64_t r = 0; r < ref_count(c, 0) / n; r++)
        ref_softmax_row(c->in[0] + r * n, c->out + r * n, n);
}

/* Largest, difference, exp, sum, quotient; y (dy - sum of y dy). */
static reference_flops flops(const reference_call *c)
{
    return ref_flops_each(c, REF_FUNCTION + 4, 4, 0);
}

static const large_case LARGE[] = {
    {2, 10, "a: float32 [7, 1000]", ""},
    {1, 1e4, "a: float32 [3, 5003]", ""},
    {0},
};

OP_CASE(softmax) = {
    .make = make, .reference = reference, .flops = flops, .tolerance = 1e-5, .large = LARGE};
