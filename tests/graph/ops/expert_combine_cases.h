/* expert_combine, and expert_return of one device: gates over the chosen and over all experts,
 * tokens without a place; the naive reference. Defined before: the kind. */
#ifndef SMP_TESTS_GRAPH_OPS_EXPERT_COMBINE_CASES_H
#define SMP_TESTS_GRAPH_OPS_EXPERT_COMBINE_CASES_H

#include "tests/graph/ops/expert_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    char y[64], logits[64], attrs[128];
    int tokens = (int)random_int(rng, 1, 9),
        experts = round % 5 == 0 ? 1 : (int)random_int(rng, 2, 7);
    expert_attrs(attrs, sizeof attrs, rng, experts);
    double top_k = atof(attrs + strlen("top_k: ")), factor = 1.25;
    const char *capacity = strstr(attrs, "capacity: ");
    if (capacity)
        factor = atof(capacity + strlen("capacity: "));
    int places = (int)ceil(factor * top_k * tokens / experts);
    places = factor == 0 || places > tokens ? tokens : places < 1 ? 1 : places;
    snprintf(y, sizeof y, "[%d, %d, %d]", experts, places, (int)random_int(rng, 1, 20));
    snprintf(logits, sizeof logits, "[%d, %d]", tokens, experts);
    model_input(m, "a", "float32", y);
    model_input(m, "b", "float32", logits);
    model_write(m, "ops:\n  - {op: " EXPERT_KIND ", name: op, in: [a, b], out: y, %s}\n", attrs);
}

static void reference(const reference_call *c)
{
    int64_t tokens = ref_in(c, 1)->shape.dim[0], d = ref_last(c, 0), experts = ref_last(c, 1);
    int64_t places = expert_places(c, tokens, experts);
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t i = 0; i < d; i++) {
                double *out = &c->out[(b * tokens + t) * d + i];
                const double *logits = c->in[1] + b * tokens * experts;
                *out = 0;
                for (int64_t e = 0; e < experts; e++) {
                    int64_t place = expert_place(c, logits, tokens, experts, t, e);
                    if (place >= 0)
                        *out += expert_gate(c, logits + t * experts, experts, e) *
                                c->in[0][((b * experts + e) * places + place) * d + i];
                }
            }
}

/* Routing as in expert_dispatch, an exponential for each gate, product and sum of each value; back
 * a product for what the experts made, product and sum for a gate, and three more of it. */
static reference_flops flops(const reference_call *c)
{
    const double tokens = (double)(c->batch * ref_in(c, 1)->shape.dim[0]);
    const double experts = (double)ref_last(c, 1);
    const double choices = tokens * (double)ref_attr(c, "top_k")->i;
    const double gates = ref_attr(c, "gates")->i == 1 ? tokens * experts : choices;
    const double routing = choices * experts + REF_FUNCTION * gates;
    const double values = choices * (double)ref_last(c, 0);
    return (reference_flops){routing + 2 * values, routing + 3 * values + 3 * choices, 0};
}

#endif
