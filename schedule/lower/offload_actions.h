/* The actions of stashes that travel, put into programs that do without them. */
#ifndef SMP_SCHEDULE_LOWER_OFFLOAD_ACTIONS_H
#define SMP_SCHEDULE_LOWER_OFFLOAD_ACTIONS_H

#include "schedule/rules/schedule.h"

/* Sm.c stands right after Fm.c. What it moves has left before the (horizon + 1)-th compute action
 * after it begins: smp_offload_stored_by. Lm.c stands right before the compute action that is
 * `horizon` of them ahead of Bm.c or Im.c. Where that is no later than smp_offload_stored_by, so
 * that the memory would be free for no action, there is neither. stage_of_chunk: [chunks] of this
 * rank. Replaces the actions of `program`. SMP_OK without training or offloading: nothing changes.
 * O(actions). */
smp_status smp_offload_actions(const smp_schedule_shape *shape, const int *stage_of_chunk,
                               smp_program *program);

/* Position of the compute action before which the store at a position is complete; O, or the end of
 * the program, where there are fewer. O(horizon) compute actions. */
int64_t smp_offload_stored_by(const smp_program *program, int64_t store, int horizon);

/* Does anything of the stage travel? */
static inline bool smp_offloads(const smp_offloading *offloading, int stage)
{
    return offloading->stage && offloading->stage[stage];
}

#endif
