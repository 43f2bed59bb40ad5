/* avg_pool: random and large models (overlapping windows, windows apart, padding); the naive
 * reference. */
#include "tests/graph/ops/pool_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    pool_make(m, rng, round, "avg_pool");
}

static double take(double sum, double pixel)
{
    return sum + pixel;
}

static void reference(const reference_call *c)
{
    const double kernel = (double)ref_attr(c, "kernel")->i;
    int64_t n = c->graph->tensor[c->op->out].elements * c->batch;
    pool_windows(c, 0, take);
    for (int64_t i = 0; i < n; i++)
        c->out[i] /= kernel * kernel;
}

/* For each row of windows sums over the rows of each column, then, for each window, over columns,
 * and a product; for each row of pixels the same the other way round. */
static reference_flops flops(const reference_call *c)
{
    const double kernel = (double)ref_attr(c, "kernel")->i;
    const smp_shape *in = &ref_in(c, 0)->shape, *out = &c->graph->tensor[c->op->out].shape;
    const double rows = (double)(c->batch * out->dim[0] * out->dim[1]);
    const double in_rows = (double)(c->batch * in->dim[0] * in->dim[1]);
    const double windows = (double)out->dim[2], pixels = (double)in->dim[2];
    return (reference_flops){rows * (kernel * (pixels + windows) + windows),
                             (rows + in_rows) * kernel * windows + in_rows * pixels, 0};
}

static const large_case LARGE[] = {
    {2, 2, "a: float32 [3, 32, 33]", "kernel: 2"},
    {2, 2, "a: float32 [4, 28, 31]", "kernel: 3, stride: 2, padding: 1"},
    {2, 2, "a: float32 [24, 9, 8]", "kernel: 3, stride: 2, padding: 1"},
    {0},
};

OP_CASE(avg_pool) = {.make = make,
                     .reference = reference,
                     .flops = flops,
                     .tolerance = 2e-6,
                     .exact = true,
                     .large = LARGE};
