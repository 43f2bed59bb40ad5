/* What a step takes at least, whatever the partition (schedule/planner/step_bound.c). */
#ifndef SMP_SCHEDULE_PLANNER_STEP_BOUND_H
#define SMP_SCHEDULE_PLANNER_STEP_BOUND_H

#include "schedule/planner/configs.h"

/* Of the candidate's devices, micro-batches and chunks: *rule_us with the order of its schedule,
 * *any_us with any order of actions. Both hold for every partition that respects pins and what is
 * kept together. Messages count where they occupy ranks, and in the first what a path waits for at least;
 * recomputation where it is no choice. */
smp_status smp__step_bound(const smp__configs *configs, const smp__config *config, double *rule_us,
                           double *any_us);

/* What ranks may be charged for messages that occupy them (schedule/planner/step_messages.c). */
typedef struct smp__sure_charges {
    bool some;       /* messages occupy ranks; else they count for nothing */
    bool all;        /* every tensor that an op reads has its gradient sent */
    int64_t *way_ns; /* [n_op] for what the problem charges their outputs for one way */
} smp__sure_charges;

/* Lives in the arena. */
smp_status smp__charge_surely(const smp__configs *configs, const smp__config *config,
                              smp_arena *arena, smp__sure_charges *out);

/* How often a message stands between the first and the last backward of any rank, at least: the mean of
 * forward and back. 0 where it is not known. */
smp_status smp__sure_messages(const smp__config *config, const smp_schedule_shape *shape,
                              smp_arena *arena, double *times);

#endif
