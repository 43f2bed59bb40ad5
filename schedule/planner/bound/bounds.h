/* What a configuration costs at least. */
#ifndef SMP_SCHEDULE_PLANNER_BOUND_BOUNDS_H
#define SMP_SCHEDULE_PLANNER_BOUND_BOUNDS_H

#include "schedule/planner/space/configs.h"
#include "schedule/order_bound/path_bound.h"
#include "schedule/order_bound/segment.h"

/* Bounds (config_bounds.c). No step of any partition, of this partition, takes
 * less. */
smp_status smp__totals_make(const smp_search_request *request, const smp_costs *costs,
                            smp__totals *out);
/* After its last backward a rank updates its weights, and before that reduces their gradients where
 * it has a single stage: microseconds per byte of weight, at least. */
double smp__config_tail_us(const smp__configs *configs, const smp__config *config);
/* update_us: [n_op], that of an op's weights; a shared one counts where it is used first: some
 * stage holds it. */
void smp__config_updates(const smp__configs *configs, const smp__config *config, double *update_us);
/* Ranks of all replicas that can compute at a time, where those of a node share its cores. */
smp_status smp__config_cores(const smp__configs *configs, const smp__config *config,
                             smp_arena *scratch, int *n);
double smp__config_least_us_of_any(const smp__configs *configs, const smp__config *config);
smp_status smp__config_least_us(const smp__configs *configs, const smp__config *config,
                                const smp_partition *partition, double *least_us);
/* Bytes that the fullest rank keeps for ever, at least; of any partition, of this one. */
double smp__config_least_bytes_of_any(const smp__configs *configs, const smp__config *config);
double smp__config_least_bytes(const smp__config *config, const smp_partition *partition);
/* What all ranks must keep over all memory there is, or one op over that of the largest device:
 * above 1 no partition fits. */
double smp__config_overload(const smp__configs *configs, const smp__config *config);

/* What a step takes at least, whatever the partition (step_bound.c). Of the candidate's devices,
 * micro-batches and chunks: *rule_us with the order of its schedule, *any_us with any order of
 * actions. Both hold for every partition that respects pins and what is kept together. Messages
 * count where they occupy ranks, and in the first what a path waits for at least; recomputation
 * that is a choice counts in neither. step_us: of a plan; no more is tried than to come near it.
 * *found: stage, [n_op] or NULL, is a partition that may take less, by all that the bound counts;
 * it need not respect pins and what is kept together. */
smp_status smp__step_bound(const smp__configs *configs, const smp__config *config, double step_us,
                           double *rule_us, double *any_us, int32_t *stage, bool *found);

/* The same op by op: on any rank a step takes at least what one of its ops has as chain_us, and so
 * many times what all of its ops take. */
typedef struct smp__step_floor {
    const double *chain_us;    /* [n_op] */
    const smp__op_times *op;   /* [n_op] on device 0 */
    const smp__segment *times; /* [pipeline] of those, with the slowdown of the rank */
} smp__step_floor;

/* The floor under the rule of the configuration; arrays live in the arena. O(pipeline (ops +
 * micro-batches)). */
smp_status smp__step_floor_make(const smp__configs *configs, const smp__config *config,
                                smp_arena *arena, smp__step_floor *out);

#endif
