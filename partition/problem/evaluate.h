/* Loads of stages without the checks and allocations of smp_partition_evaluate: what the solvers
 * compare candidates with. */
#ifndef SMP_PARTITION_PROBLEM_EVALUATE_H
#define SMP_PARTITION_PROBLEM_EVALUATE_H

#include "partition/problem/recompute_price.h"
#include "partition/problem/unit_graph.h"

typedef struct smp__evaluator {
    const smp_problem *problem;
    int n_replica;
    smp__price price;
    double *slowest;      /* [n_stage] slowdown of the slowest device that it has in any replica */
    double *slowdown;     /* [n_replica * n_stage] */
    double *transfer_us;  /* [n_replica * n_stage] */
    double *rank_us;      /* [n_replica * pipeline] */
    int32_t *seen;        /* [n_stage] mark of the last tensor or weight counted there */
    smp_stage_load *load; /* [n_stage] of the last call */
} smp__evaluator;

smp_status smp__evaluator_init(smp__evaluator *evaluator, const smp_problem *problem,
                               smp_arena *arena);

typedef struct smp__score {
    double bottleneck_us; /* slowest rank of all replicas */
    double total_us;      /* sum of all stage loads: what fills and drains the pipeline */
    double excess;        /* largest memory_bytes / memory_limit - 1; 0 where all fits */
} smp__score;

/* stage: [n_op], every entry in 0..n_stage-1. O(n_op + uses of weights + replicas * (uses of
 * tensors + n_stage)). */
smp__score smp__evaluate(smp__evaluator *evaluator, const int32_t *stage);

/* What a stage holds, in bytes; in and out: per micro-batch, one way. */
typedef struct smp__holdings {
    double weight, stash, workspace, in, out;
} smp__holdings;

/* What a stage keeps with nothing made again, and with everything. */
typedef struct smp__stage_range {
    double kept, recomputed;
} smp__stage_range;

static inline smp__stage_range smp__stage_bytes(const smp_problem *problem, int s,
                                                const smp__holdings *held)
{
    double border = held->in + held->out;
    double fixed = problem->state_factor * held->weight +
                   (problem->graph->training ? 2.0 : 1.0) * border + held->workspace;
    return (smp__stage_range){fixed + problem->live[s] * held->stash,
                              fixed + problem->live[s] * held->in + held->stash};
}

/* memory_bytes of stage s, and the share of its stash that it makes again: as much as `limit` asks
 * for where that is a choice. The one place that knows the rule. */
static inline double smp__stage_memory(const smp_problem *problem, int s, const smp__holdings *held,
                                       double limit, double *share)
{
    smp__stage_range bytes = smp__stage_bytes(problem, s, held);
    *share = 0.0;
    if (!problem->graph->training || problem->recompute == SMP_RECOMPUTE_NONE)
        return bytes.kept;
    bool choice = problem->recompute == SMP_RECOMPUTE_AUTO;
    if (choice && (bytes.kept <= limit || bytes.recomputed >= bytes.kept))
        return bytes.kept;
    *share = 1.0;
    if (!choice || bytes.recomputed >= limit)
        return bytes.recomputed;
    *share = (bytes.kept - limit) / (bytes.kept - bytes.recomputed);
    return limit;
}

/* Times its forward that a stage computes once more where that is a choice: 0 otherwise (then
 * smp_problem_recomputes_all counts). */
static inline double smp__recompute_part(const smp_problem *problem, const smp__price *price,
                                         double share)
{
    return problem->recompute == SMP_RECOMPUTE_AUTO ? smp__price_at(price, share) : 0.0;
}

#endif
