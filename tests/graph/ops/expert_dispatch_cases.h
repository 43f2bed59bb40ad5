/* expert_dispatch, and expert_send of one device: more and fewer places than tokens, all and one
 * expert; the naive reference. Defined before: the kind. */
#ifndef SMP_TESTS_GRAPH_OPS_EXPERT_DISPATCH_CASES_H
#define SMP_TESTS_GRAPH_OPS_EXPERT_DISPATCH_CASES_H

#include "tests/graph/ops/expert_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    char x[64], logits[64], attrs[128];
    int tokens = (int)random_int(rng, 1, 9),
        experts = round % 5 == 0 ? 1 : (int)random_int(rng, 2, 7);
    snprintf(x, sizeof x, "[%d, %d]", tokens, (int)random_int(rng, 1, 20));
    snprintf(logits, sizeof logits, "[%d, %d]", tokens, experts);
    model_input(m, "a", "float32", x);
    model_input(m, "b", "float32", logits);
    expert_attrs(attrs, sizeof attrs, rng, experts);
    model_write(m, "ops:\n  - {op: " EXPERT_KIND ", name: op, in: [a, b], out: y, %s}\n", attrs);
}

static void reference(const reference_call *c)
{
    int64_t tokens = ref_in(c, 0)->shape.dim[0], d = ref_last(c, 0), experts = ref_last(c, 1);
    int64_t places = expert_places(c, tokens, experts);
    for (int64_t i = 0; i < c->batch * experts * places * d; i++)
        c->out[i] = 0;
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t e = 0; e < experts; e++) {
                int64_t place =
                    expert_place(c, c->in[1] + b * tokens * experts, tokens, experts, t, e);
                for (int64_t i = 0; place >= 0 && i < d; i++)
                    c->out[((b * experts + e) * places + place) * d + i] =
                        c->in[0][(b * tokens + t) * d + i];
            }
}

/* A comparison with every expert for each choice; a sum for each value that comes back. */
static reference_flops flops(const reference_call *c)
{
    const double choices =
        (double)(c->batch * ref_in(c, 0)->shape.dim[0] * ref_attr(c, "top_k")->i);
    const double compared = choices * (double)ref_last(c, 1);
    return (reference_flops){compared, compared + choices * (double)ref_last(c, 0), 0};
}

#endif
