/* tanh: random and large models; the naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    make_eltwise(m, rng, round, "op: tanh");
}

static void reference(const reference_call *c)
{
    for (int64_t i = 0; i < ref_count(c, 0); i++)
        c->out[i] = tanh(c->in[0][i]);
}

/* dx = dy (1 - y y). */
static reference_flops flops(const reference_call *c)
{
    return ref_flops_each(c, REF_FUNCTION, 3, 0);
}

static const large_case LARGE[] = {
    {3, 20, "a: float32 [13331]", ""},
    {0},
};

OP_CASE(tanh) = {
    .make = make, .reference = reference, .flops = flops, .tolerance = 5e-6, .large = LARGE};
