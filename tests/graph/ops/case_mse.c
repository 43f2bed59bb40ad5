/* mse: random and large models (also of a tensor with itself); the naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    make_pair(m, rng, round, "mse");
}

static void reference(const reference_call *c)
{
    double sum = 0;
    for (int64_t i = 0; i < ref_count(c, 0); i++)
        sum += (c->in[0][i] - c->in[1][i]) * (c->in[0][i] - c->in[1][i]);
    c->out[0] = sum / (double)ref_count(c, 0);
}

/* Difference, square, sum; difference and product for each of two gradients. */
static reference_flops flops(const reference_call *c)
{
    return ref_flops_each(c, 3, 4, 0);
}

static const large_case LARGE[] = {
    {2, 100, "a: float32 [20011]; b: float32 [20011]", "in: [a, b]"},
    {0},
};

OP_CASE(mse) = {
    .make = make, .reference = reference, .flops = flops, .tolerance = 2e-6, .large = LARGE};
