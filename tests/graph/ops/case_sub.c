/* sub: random and large models (also of a tensor with itself); the naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    make_pair(m, rng, round, "sub");
}

static void reference(const reference_call *c)
{
    for (int64_t i = 0; i < ref_count(c, 0); i++)
        c->out[i] = c->in[0][i] - c->in[1][i];
}

/* The difference; the second gradient is what arrives with the other sign. */
static reference_flops flops(const reference_call *c)
{
    return ref_flops_each(c, 1, 1, 0);
}

static const large_case LARGE[] = {
    {1, 1e4, "a: float32 [40003]; b: float32 [40003]", "in: [a, b]"},
    {2, 1e-4, "a: float32 [64, 32]; b: float32 [64, 32]", "in: [a, b]"},
    {0},
};

OP_CASE(sub) = {.make = make,
                .reference = reference,
                .flops = flops,
                .tolerance = 1e-6,
                .exact = true,
                .large = LARGE};
