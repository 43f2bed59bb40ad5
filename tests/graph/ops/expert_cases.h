/* Routing by its definition, for the cases of expert_dispatch and expert_combine. */
#ifndef SMP_TESTS_GRAPH_OPS_EXPERT_CASES_H
#define SMP_TESTS_GRAPH_OPS_EXPERT_CASES_H

#include "tests/graph/ops/op_cases.h"

static inline void expert_attrs(char *text, size_t size, uint64_t *rng, int experts)
{
    static const char *const capacities[] = {"", ", capacity: 0", ", capacity: 0.5",
                                             ", capacity: 1"};
    int top_k = (int)random_int(rng, 1, experts < 4 ? experts : 4);
    snprintf(text, size, "top_k: %d%s%s", top_k, capacities[random_int(rng, 0, 3)],
             random_int(rng, 0, 1) ? ", gates: all" : "");
}

static inline int64_t expert_places(const reference_call *c, int64_t tokens, int64_t experts)
{
    double factor = ref_attr(c, "capacity")->f;
    double top_k = (double)ref_attr(c, "top_k")->i;
    int64_t places = (int64_t)ceil(factor * top_k * (double)tokens / (double)experts);
    return factor == 0 || places > tokens ? tokens : places < 1 ? 1 : places;
}

/* The rank of an expert among the logits of a token: how many come before it. */
static inline int64_t expert_rank(const double *logits, int64_t experts, int64_t expert)
{
    int64_t rank = 0;
    for (int64_t e = 0; e < experts; e++)
        rank += logits[e] > logits[expert] || (logits[e] == logits[expert] && e < expert);
    return rank;
}

/* The place of a token at an expert, -1: it did not choose it, or it was full. logits: of the
 * sample. */
static inline int64_t expert_place(const reference_call *c, const double *logits, int64_t tokens,
                                   int64_t experts, int64_t token, int64_t expert)
{
    int64_t rank = expert_rank(logits + token * experts, experts, expert), before = 0;
    if (rank >= ref_attr(c, "top_k")->i)
        return -1;
    for (int64_t t = 0; t < tokens; t++) {
        int64_t other = expert_rank(logits + t * experts, experts, expert);
        before += other < rank || (other == rank && t < token);
    }
    return before < expert_places(c, tokens, experts) ? before : -1;
}

static inline double expert_gate(const reference_call *c, const double *logits, int64_t experts,
                                 int64_t expert)
{
    const bool all = ref_attr(c, "gates")->i == 1;
    double sum = 0;
    for (int64_t e = 0; e < experts; e++)
        if (all || expert_rank(logits, experts, e) < ref_attr(c, "top_k")->i)
            sum += exp(logits[e] - logits[expert]);
    return 1 / sum;
}

#endif
