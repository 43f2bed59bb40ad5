/* sigmoid: random and large models (far out too); the naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    m->magnitude = round % 2 == 0 ? 3 : 100;
    make_eltwise(m, rng, round, "op: sigmoid");
}

static void reference(const reference_call *c)
{
    for (int64_t i = 0; i < ref_count(c, 0); i++)
        c->out[i] = 1 / (1 + exp(-c->in[0][i]));
}

/* Sign, exp, sum, quotient; dx = dy y (1 - y). */
static reference_flops flops(const reference_call *c)
{
    return ref_flops_each(c, REF_FUNCTION + 3, 3, 0);
}

static const large_case LARGE[] = {
    {3, 20, "a: float32 [13331]", ""},
    {2, 1e4, "a: float32 [1331]", ""},
    {0},
};

OP_CASE(sigmoid) = {
    .make = make, .reference = reference, .flops = flops, .tolerance = 1e-6, .large = LARGE};
