/* Loads of stages without the checks and allocations of smp_partition_evaluate: what the solvers
 * compare candidates with. */
#ifndef SMP_PARTITION_PROBLEM_EVALUATE_H
#define SMP_PARTITION_PROBLEM_EVALUATE_H

#include "partition/problem/unit_graph.h"

typedef struct smp__evaluator {
    const smp_problem *problem;
    int n_replica;
    double *again_bytes;  /* [n_stage] stash of the ops that are known to be made again */
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

/* stage: [n_op], every entry in 0..n_stage-1. O(n_op + uses of weights + replicas * (uses of tensors +
 * n_stage)). */
smp__score smp__evaluate(smp__evaluator *evaluator, const int32_t *stage);

/* What a stage holds, in bytes; in and out: per micro-batch, one way. */
typedef struct smp__holdings {
    double weight, stash, workspace, in, out;
} smp__holdings;

/* memory_bytes of stage s where `share` of its stash is made again. */
static inline double smp__stage_bytes(const smp_problem *problem, int s, const smp__holdings *held,
                                      double share)
{
    bool training = problem->graph->training;
    double border = held->in + held->out;
    double fixed =
        problem->state_factor * held->weight + (training ? 2.0 : 1.0) * border + held->workspace;
    double kept = fixed + problem->live[s] * held->stash;
    double again = fixed + problem->live[s] * held->in + held->stash;
    return share < 1.0 ? kept - share * (kept - again) : again;
}

/* memory_bytes of stage s, and whether it recomputes, all or nothing. The one place that knows the
 * rule. */
static inline double smp__stage_memory(const smp_problem *problem, int s, const smp__holdings *held,
                                       bool *recompute)
{
    double bytes = smp__stage_bytes(problem, s, held, 0.0);
    *recompute = false;
    if (!problem->graph->training || problem->recompute == SMP_RECOMPUTE_NONE)
        return bytes;
    double again = smp__stage_bytes(problem, s, held, 1.0);
    *recompute = problem->recompute == SMP_RECOMPUTE_ALL ||
                 (bytes > smp__memory_limit(problem, s) && again < bytes);
    return *recompute ? again : bytes;
}

#endif
