/* upsample: random and large models; the naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    char shape[64];
    model_input(m, "a", "float32", random_shape(shape, rng, 3, 6));
    model_write(m, "ops:\n  - {op: upsample, name: op, in: a, out: y, factor: %d}\n",
                1 + round % 4);
}

static void reference(const reference_call *c)
{
    const smp_shape *in = &ref_in(c, 0)->shape;
    int64_t factor = ref_attr(c, "factor")->i, h = in->dim[1], w = in->dim[2], at = 0;
    for (int64_t plane = 0; plane < c->batch * in->dim[0]; plane++)
        for (int64_t y = 0; y < h * factor; y++)
            for (int64_t x = 0; x < w * factor; x++)
                c->out[at++] = c->in[0][(plane * h + y / factor) * w + x / factor];
}

/* Copies; a sum for each pixel of the output. */
static reference_flops flops(const reference_call *c)
{
    const int64_t factor = ref_attr(c, "factor")->i;
    return ref_flops_each(c, 0, (double)(factor * factor), 0);
}

static const large_case LARGE[] = {
    {2, 2, "a: float32 [3, 32, 32]", "factor: 2"},
    {3, 2, "a: float32 [5, 17, 13]", "factor: 3"},
    {2, 2, "a: float32 [24, 5, 6]", "factor: 2"},
    {0},
};

OP_CASE(upsample) = {.make = make,
                     .reference = reference,
                     .flops = flops,
                     .tolerance = 2e-6,
                     .exact = true,
                     .large = LARGE};
