/* mean_pool: random and large models; the naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    char shape[64];
    (void)round;
    model_input(m, "a", "float32", random_shape(shape, rng, 2, 30));
    model_write(m, "ops:\n  - {op: mean_pool, name: op, in: a, out: y}\n");
}

static void reference(const reference_call *c)
{
    int64_t positions = ref_in(c, 0)->shape.dim[0], d = ref_last(c, 0);
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t i = 0; i < d; i++) {
            double sum = 0;
            for (int64_t t = 0; t < positions; t++)
                sum += c->in[0][(b * positions + t) * d + i];
            c->out[b * d + i] = sum / (double)positions;
        }
}

/* The sum over positions and one product; a product for each position. */
static reference_flops flops(const reference_call *c)
{
    reference_flops count = ref_flops_each(c, 1, 1, 0);
    count.forward += (double)(c->batch * ref_last(c, 0));
    return count;
}

static const large_case LARGE[] = {
    {2, 1e4, "a: float32 [100, 200]", ""},
    {40, 2, "a: float32 [5, 33]", ""},
    {0},
};

OP_CASE(mean_pool) = {
    .make = make, .reference = reference, .flops = flops, .tolerance = 2e-6, .large = LARGE};
