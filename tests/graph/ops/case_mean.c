/* mean: random and large models (along any axis); the naive reference. */
#include "tests/graph/ops/axis_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    axis_make(m, rng, round, "mean");
}

static void reference(const reference_call *c)
{
    axis_sums(c, true);
}

/* A sum along the dimension and one product; a product for each element. */
static reference_flops flops(const reference_call *c)
{
    int64_t size, inner, outer = axis_split(c, &size, &inner);
    reference_flops count = ref_flops_each(c, 1, 1, 0);
    count.forward += (double)(outer * inner);
    return count;
}

OP_CASE(mean) = {
    .make = make, .reference = reference, .flops = flops, .tolerance = 2e-6, .large = AXIS_LARGE};
