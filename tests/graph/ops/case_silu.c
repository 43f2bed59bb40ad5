/* silu: random and large models (far out too); the naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    m->magnitude = round % 2 == 0 ? 2 : 30;
    make_eltwise(m, rng, round, "op: silu");
}

static void reference(const reference_call *c)
{
    for (int64_t i = 0; i < ref_count(c, 0); i++)
        c->out[i] = c->in[0][i] / (1 + exp(-c->in[0][i]));
}

/* Sign, exp, sum, quotient; once more with s for x, and dy s (1 + x (1 - s)). */
static reference_flops flops(const reference_call *c)
{
    return ref_flops_each(c, REF_FUNCTION + 3, REF_FUNCTION + 8, 0);
}

static const large_case LARGE[] = {
    {3, 1e4, "a: float32 [13331]", ""},
    {0},
};

OP_CASE(silu) = {
    .make = make, .reference = reference, .flops = flops, .tolerance = 1e-5, .large = LARGE};
