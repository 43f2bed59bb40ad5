/* global_avg_pool: random and large models; the naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    char shape[64];
    model_input(m, "a", "float32", random_shape(shape, rng, 3, round % 4 == 0 ? 15 : 6));
    model_write(m, "ops:\n  - {op: global_avg_pool, name: op, in: a, out: y}\n");
}

static void reference(const reference_call *c)
{
    const smp_shape *shape = &ref_in(c, 0)->shape;
    int64_t pixels = shape->dim[1] * shape->dim[2];
    for (int64_t channel = 0; channel < c->batch * shape->dim[0]; channel++) {
        double sum = 0;
        for (int64_t i = 0; i < pixels; i++)
            sum += c->in[0][channel * pixels + i];
        c->out[channel] = sum / (double)pixels;
    }
}

/* A sum for each pixel and a product for each channel; a product for each pixel. */
static reference_flops flops(const reference_call *c)
{
    reference_flops count = ref_flops_each(c, 1, 1, 0);
    count.forward += (double)(c->batch * ref_in(c, 0)->shape.dim[0]);
    return count;
}

static const large_case LARGE[] = {
    {2, 2, "a: float32 [100, 7, 7]", ""},
    {3, 2, "a: float32 [5, 56, 57]", ""},
    {2, 2, "a: float32 [72, 9, 7]", ""},
    {0},
};

OP_CASE(global_avg_pool) = {
    .make = make, .reference = reference, .flops = flops, .tolerance = 2e-6, .large = LARGE};
