/* position_embedding: random and large models (a learned vector per position); the naive
 * reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    char shape[64];
    (void)round;
    model_input(m, "a", "float32", random_shape(shape, rng, 2, 20));
    model_write(m, "ops:\n  - {op: position_embedding, name: op, in: a, out: y}\n");
}

static void reference(const reference_call *c)
{
    for (int64_t i = 0; i < ref_count(c, 0); i++)
        c->out[i] = c->in[0][i] + c->param[0][i % ref_in(c, 0)->elements];
}

/* A sum, and one more for the gradient of the table. */
static reference_flops flops(const reference_call *c)
{
    return ref_flops_each(c, 1, 0, 1);
}

static const large_case LARGE[] = {
    {5, 2, "a: float32 [70, 512]", ""},
    {5, 1e4, "a: float32 [129, 33]", ""},
    {0},
};

OP_CASE(position_embedding) = {.make = make,
                               .reference = reference,
                               .flops = flops,
                               .tolerance = 2e-6,
                               .exact = true,
                               .large = LARGE};
