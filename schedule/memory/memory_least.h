/* What ranks reserve at least, whatever the partition and whatever recomputes: sums that the memory
 * planner (memory.h) never comes below. What bounds on partitions that fit are made of. */
#ifndef SMP_SCHEDULE_MEMORY_MEMORY_LEAST_H
#define SMP_SCHEDULE_MEMORY_MEMORY_LEAST_H

#include "partition/prove/priced.h"
#include "schedule/rules/schedule.h"

/* Fills all but recompute_us, live, late and limit; arrays live in the arena. batch: samples of a
 * micro-batch. O(ops + edges). */
smp_status smp_memory_least(const smp_graph *graph, int64_t batch, smp_sharding sharding,
                            smp_arena *arena, smp__least_memory *out);

/* [chunks], micro-batches of each chunk at one action of the rank, that where they are most: live
 * from F to B or I, late from there to W. Zero of inference. O(actions). */
smp_status smp_memory_live(const smp_schedule_kind *kind, const smp_schedule_shape *shape, int rank,
                           int *live, int *late);

#endif
