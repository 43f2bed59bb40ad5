/* bce_with_logits: random and large models (also of a tensor with itself); the naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    m->magnitude = round % 2 == 0 ? 2 : 200;
    make_pair(m, rng, round, "bce_with_logits");
}

static void reference(const reference_call *c)
{
    double sum = 0;
    for (int64_t i = 0; i < ref_count(c, 0); i++)
        sum += log(1 + exp(c->in[0][i])) - c->in[0][i] * c->in[1][i];
    c->out[0] = sum / (double)ref_count(c, 0);
}

/* Magnitude, exp, product with its sum, larger, product, two sums; a sigmoid of three besides exp,
 * difference, product, and a product for the second gradient. */
static reference_flops flops(const reference_call *c)
{
    return ref_flops_each(c, REF_FUNCTION + 7, REF_FUNCTION + 6, 0);
}

static const large_case LARGE[] = {
    {2, 3, "a: float32 [20011]; b: float32 [20011]", "in: [a, b]"},
    {2, 100, "a: float32 [20011]; b: float32 [20011]", "in: [a, b]"},
    {0},
};

OP_CASE(bce_with_logits) = {
    .make = make, .reference = reference, .flops = flops, .tolerance = 2e-6, .large = LARGE};
