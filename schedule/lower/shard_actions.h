/* The actions of sharded states, put into programs that do without them. */
#ifndef SMP_SCHEDULE_LOWER_SHARD_ACTIONS_H
#define SMP_SCHEDULE_LOWER_SHARD_ACTIONS_H

#include "schedule/rules/schedule.h"

/* Weights that are only missing since the last update (what: optimizer, gradients) are gathered
 * once: G.c of all chunks before the first action, in the order in which they are used. Sharded
 * weights are gathered for each run of a chunk, compute actions with no other chunk's between them:
 * `prefetch` runs ahead, so that the messages overlap with these runs' computing, and dropped after
 * it, unless they would have to be asked for again by the next run. A.c stands before the next R,
 * or before O.
 * Replaces the actions of `program`. SMP_OK without sharding: nothing changes. */
smp_status smp_shard_actions(const smp_schedule_shape *shape, smp_program *program);
/* How often a rank gathers a chunk's weights in a step: by its compute actions. O(actions). */
smp_status smp_shard_gathers(const smp_program *order, int chunks, int prefetch, int64_t *n);

#endif
