/* max_pool: random and large models (overlapping windows, windows apart, padding); the naive
 * reference. */
#include "tests/graph/ops/pool_cases.h"

/* More than central_difference moves a value: the first of equal ones stays the largest. */
static const double TIE = 1.1e-5;

static void make(model_text *m, uint64_t *rng, int round)
{
    pool_make(m, rng, round, "max_pool");
}

static double take(double largest, double pixel)
{
    return pixel > largest + TIE ? pixel : largest;
}

static void reference(const reference_call *c)
{
    pool_windows(c, -INFINITY, take);
}

/* A comparison for each pixel of a window; a sum for each window. */
static reference_flops flops(const reference_call *c)
{
    const double kernel = (double)ref_attr(c, "kernel")->i;
    const double windows = (double)(c->graph->tensor[c->op->out].elements * c->batch);
    return (reference_flops){windows * kernel * kernel, windows, 0};
}

static const large_case LARGE[] = {
    {2, 2, "a: float32 [3, 32, 33]", "kernel: 2"},
    {2, 2, "a: float32 [4, 28, 31]", "kernel: 3, stride: 2, padding: 1"},
    {2, 2, "a: float32 [24, 9, 8]", "kernel: 3, stride: 2, padding: 1"},
    {0},
};

OP_CASE(max_pool) = {.make = make,
                     .reference = reference,
                     .flops = flops,
                     .tolerance = 1.2e-5, /* of a value that is larger by less than TIE */
                     .exact = true,
                     .large = LARGE};
