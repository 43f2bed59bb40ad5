/* sum: random and large models (along any axis); the naive reference. */
#include "tests/graph/ops/axis_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    axis_make(m, rng, round, "sum");
}

static void reference(const reference_call *c)
{
    axis_sums(c, false);
}

/* A sum along the dimension; copies. */
static reference_flops flops(const reference_call *c)
{
    return ref_flops_each(c, 1, 0, 0);
}

OP_CASE(sum) = {
    .make = make, .reference = reference, .flops = flops, .tolerance = 2e-6, .large = AXIS_LARGE};
