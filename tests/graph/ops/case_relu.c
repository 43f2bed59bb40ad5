/* relu: random and large models; the naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    make_eltwise(m, rng, round, "op: relu");
}

static void reference(const reference_call *c)
{
    for (int64_t i = 0; i < ref_count(c, 0); i++)
        c->out[i] = fmax(c->in[0][i], 0);
}

/* A comparison each way. */
static reference_flops flops(const reference_call *c)
{
    return ref_flops_each(c, 1, 1, 0);
}

static const large_case LARGE[] = {
    {3, 1e4, "a: float32 [13331]", ""},
    {0},
};

OP_CASE(relu) = {.make = make,
                 .reference = reference,
                 .flops = flops,
                 .tolerance = 1e-6,
                 .exact = true,
                 .large = LARGE};
