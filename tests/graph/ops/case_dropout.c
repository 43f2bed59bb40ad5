/* dropout: random and large models (several rates); the naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    static const char *const ops[] = {"op: dropout, p: 0.1", "op: dropout, p: 0.5",
                                      "op: dropout, p: 0", "op: dropout, p: 0.75"};
    make_eltwise(m, rng, round, ops[random_int(rng, 0, 3)]);
}

/* The documented contract: which counter and word an element's random number comes from. */
static void reference(const reference_call *c)
{
    double p = c->step.training ? ref_attr(c, "p")->f : 0;
    uint64_t index = (uint64_t)(c->op - c->graph->op);
    uint64_t key = smp_random_mix(c->step.seed + smp_random_mix(index));
    for (int64_t i = 0; i < ref_count(c, 0); i++) {
        int64_t group = i / 64, word = i / 16 % 4, lane = i % 16;
        smp_random4 r = smp_random_philox(key, (uint64_t)(group * 16 + lane), c->step.turn);
        c->out[i] = smp_random_uniform(r.v[word]) < p ? 0 : c->in[0][i] / (1 - p);
    }
}

/* A random number, a comparison, a product, both ways. */
static reference_flops flops(const reference_call *c)
{
    return ref_flops_each(c, REF_FUNCTION + 2, REF_FUNCTION + 2, 0);
}

static const large_case LARGE[] = {
    {1, 1e4, "a: float32 [40003]", "p: 0.3"},
    {2, 2, "a: float32 [2048]", "p: 0.9"},
    {0},
};

OP_CASE(dropout) = {.make = make,
                    .reference = reference,
                    .flops = flops,
                    .tolerance = 1e-6,
                    .exact = true,
                    .large = LARGE};
