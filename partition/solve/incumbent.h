/* The incumbent of a search: the best pipeline known, which orders that are split optimally, and
 * pipelines from elsewhere, are offered to. What the partitioners share. */
#ifndef SMP_PARTITION_SOLVE_INCUMBENT_H
#define SMP_PARTITION_SOLVE_INCUMBENT_H

#include "partition/cut/best_split.h"
#include "partition/cut/border_climb.h"
#include "partition/problem/order.h"
#include "partition/solve/partitioner.h"

typedef struct smp__incumbent {
    const smp_problem *problem;
    smp__units *units;
    smp__evaluator evaluator;
    const char *name; /* of the solver */
    double lower_bound_us;
    const char *bound;
    bool late;    /* the deadline has struck */
    bool uniform; /* one stage per rank, all links alike: the split of a sequence is exact */

    /* The best; nothing of it holds before `have`. It is a pipeline always, if not one that
     * fits. */
    bool have;
    smp__score score;
    const char *solver; /* that found the best */
    int32_t *stage;     /* [units->n] of the best */
    double slowest_us;  /* of the best, as the sequence measures it */

    int64_t work;      /* intervals looked at, and the like: the clock that limits the effort */
    int32_t *trial;    /* [units->n] */
    int32_t *op_stage; /* [n_op] */
    int32_t *order;    /* [units->n], for callers */
    smp__split split;
    smp_arena *arena;
} smp__incumbent;

/* start: see smp_partitioner.solve. SMP_ERR_INPUT, SMP_ERR_NO_FIT: see smp__units_build. */
smp_status smp__incumbent_init(smp__incumbent *incumbent, const smp_problem *problem,
                               const smp_partition *start, const char *name);
void smp__incumbent_free(smp__incumbent *incumbent);

/* Splits an order and keeps the result if it is the best. With pins, a copy of the order is moved
 * into their ranges first. Does nothing after the deadline. */
smp_status smp__incumbent_try(smp__incumbent *incumbent, const int32_t *order);

/* Evaluates a pipeline of units (incumbent->trial) and keeps it if it is the best. */
bool smp__incumbent_offer(smp__incumbent *incumbent);

/* True if the best fits and is close enough to the lower bound, or if the deadline has struck. */
bool smp__incumbent_done(smp__incumbent *incumbent);

/* Tries random orders around the best pipeline, until many in a row did not help or the work done
 * since the start reaches the limit for a graph of this size. */
smp_status smp__incumbent_improve(smp__incumbent *incumbent);

/* Falls back to the split with the least memory if none fits, then takes what is free: fewer
 * transfers at the same bottleneck, and where the sequence is not exact, better borders. */
smp_status smp__incumbent_polish(smp__incumbent *incumbent);

/* The best, or after the deadline at least a pipeline. */
smp_status smp__incumbent_finish(smp__incumbent *incumbent, smp_partition **out);

/* Orders guided by METIS's parts, each tried (partition/solve/metis_guide.c). */
smp_status smp__incumbent_try_metis(smp__incumbent *incumbent);

#endif
