/* scale: random and large models (factors of either sign, and 0); the naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    static const char *const ops[] = {"op: scale, factor: 0.3", "op: scale, factor: -1.7",
                                      "op: scale, factor: 1e-3", "op: scale, factor: 0",
                                      "op: scale, factor: 12"};
    make_eltwise(m, rng, round, ops[round % 5]);
}

static void reference(const reference_call *c)
{
    for (int64_t i = 0; i < ref_count(c, 0); i++)
        c->out[i] = ref_attr(c, "factor")->f * c->in[0][i];
}

/* The product, either way. */
static reference_flops flops(const reference_call *c)
{
    return ref_flops_each(c, 1, 1, 0);
}

static const large_case LARGE[] = {
    {3, 1e4, "a: float32 [13331]", "factor: 0.0442"},
    {2, 1, "a: float32 [64, 32]", "factor: -3"},
    {0},
};

OP_CASE(scale) = {.make = make,
                  .reference = reference,
                  .flops = flops,
                  .tolerance = 1e-6,
                  .exact = true,
                  .large = LARGE};
