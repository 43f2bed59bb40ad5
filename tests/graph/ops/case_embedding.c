/* embedding: random and large models (rows of a table); the naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    char shape[64];
    model_input(m, "a", "int32", random_shape(shape, rng, round % 3, 6));
    model_write(m, "ops:\n  - {op: embedding, name: op, in: a, out: y, rows: %d, features: %d}\n",
                (int)random_int(rng, 1, 9), (int)random_int(rng, 1, 40));
}

static void reference(const reference_call *c)
{
    int64_t features = ref_attr(c, "features")->i;
    for (int64_t i = 0; i < ref_count(c, 0); i++)
        for (int64_t f = 0; f < features; f++)
            c->out[i * features + f] = c->param[0][(int64_t)c->in[0][i] * features + f];
}

/* A row of the table is copied, and its gradient added. */
static reference_flops flops(const reference_call *c)
{
    return ref_flops_each(c, 0, 0, (double)ref_attr(c, "features")->i);
}

static const large_case LARGE[] = {
    {2, 2, "a: int32 [700]", "rows: 300, features: 64"},
    {2, 2, "a: int32 [700]", "rows: 4, features: 300, padding_idx: 2"},
    {3, 2, "a: int32 [600]", "rows: 70000, features: 5"},
    {1, 2, "a: int32 [33]", "rows: 1, features: 1032"},
    {0},
};

OP_CASE(embedding) = {.make = make,
                      .reference = reference,
                      .flops = flops,
                      .tolerance = 2e-6,
                      .exact = true,
                      .large = LARGE};
