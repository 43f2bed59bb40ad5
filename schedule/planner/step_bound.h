/* What a step takes at least, whatever the partition (schedule/planner/step_bound.c). */
#ifndef SMP_SCHEDULE_PLANNER_STEP_BOUND_H
#define SMP_SCHEDULE_PLANNER_STEP_BOUND_H

#include "schedule/planner/configs.h"
#include "schedule/rules/path_bound.h"
#include "schedule/rules/segment.h"

/* Of the candidate's devices, micro-batches and chunks: *rule_us with the order of its schedule,
 * *any_us with any order of actions. Both hold for every partition that respects pins and what is
 * kept together. Messages count where they occupy ranks, and in the first what a path waits for at
 * least; recomputation that is a choice counts in neither. step_us: of a plan; no more is tried
 * than to come near it. prices: memory counts
 * as well, and what has to recompute for it: then both hold of partitions that fit. *found: stage,
 * [n_op] or NULL, is a partition that may take less, by all that the bound counts; it need not
 * respect pins and what is kept together. */
smp_status smp__step_bound(const smp__configs *configs, const smp__config *config, double step_us,
                           bool prices, double *rule_us, double *any_us, int32_t *stage,
                           bool *found);

/* The same op by op: on any rank a step takes at least what one of its ops has as chain_us, and so
 * many times what all of its ops take. */
typedef struct smp__step_floor {
    const double *chain_us;    /* [n_op] */
    const smp__op_times *op;   /* [n_op] on device 0 */
    const smp__segment *times; /* [pipeline] of those, with the slowdown of the rank */
} smp__step_floor;

/* Of the configuration's rule; arrays live in the arena. O(pipeline (ops + micro-batches)). */
smp_status smp__step_floor_make(const smp__configs *configs, const smp__config *config,
                                smp_arena *arena, smp__step_floor *out);

#endif
