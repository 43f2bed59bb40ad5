/* Collecting the best pipeline over many orders: each order is split optimally, the result is
 * evaluated exactly, and the best one kept. What the partitioners share. */
#ifndef SMP_PARTITION_TUNE_H
#define SMP_PARTITION_TUNE_H

#include "partition/climb.h"
#include "partition/order.h"
#include "partition/partitioner.h"
#include "partition/split.h"

typedef struct smp__tuner {
    const smp_problem *problem;
    smp__units *units;
    smp__evaluator evaluator;
    double lower_bound_us;
    bool uniform; /* a rank has one stage and all links are alike: the split of a line is exact */

    bool have;
    smp__score best;
    int32_t *stage;    /* [units->n] of the best */
    double slowest_us; /* of the best, as the line measures it */

    int64_t work;      /* intervals looked at, and the like: the clock that limits the effort */
    int32_t *trial;    /* [units->n] */
    int32_t *op_stage; /* [n_op] */
    int32_t *order;    /* [units->n], for callers */
    smp__split split;
    smp_arena *arena;
} smp__tuner;

/* SMP_ERR_INPUT, SMP_ERR_NO_FIT: see smp__units_build. */
smp_status smp__tuner_init(smp__tuner *tuner, const smp_problem *problem);
void smp__tuner_free(smp__tuner *tuner);

/* Splits an order and keeps the result if it is the best. With pins, a copy of the order is moved
 * into their ranges first. */
smp_status smp__tuner_try(smp__tuner *tuner, const int32_t *order);

/* True if the best fits and is close enough to the lower bound. */
bool smp__tuner_done(const smp__tuner *tuner);

/* Tries random orders around the best pipeline, until many in a row did not help or the work done
 * since the start reaches the limit for a graph of this size. */
smp_status smp__tuner_improve(smp__tuner *tuner);

/* Falls back to the split with the least memory if none fits, then takes what is free: fewer
 * transfers at the same bottleneck, and where the line is not exact, better borders. */
smp_status smp__tuner_finish(smp__tuner *tuner, const char *solver, smp_partition **out);

#endif
