/* Which forward calls of a stage are worth repeating, and which a mask really repeats. A mask is
 * [n_op] of the graph, true: what the op makes may be let go after the forward action and made
 * again in the backward action (schedule/memory/layout.h). */
#ifndef SMP_SCHEDULE_MEMORY_RECOMPUTE_CHOICE_H
#define SMP_SCHEDULE_MEMORY_RECOMPUTE_CHOICE_H

#include "partition/problem/flow.h"

/* The ops of the stage whose forward runs again under a mask (NULL: none): named by it, or one of a
 * pair that it names, and their values needed. What they take is what recomputing costs. Writes
 * repeats[op] [n_op] for the ops of the stage alone; repeats may be recompute. As a mask it
 * repeats itself. O(ops + edges). */
smp_status smp_recompute_repeats(const smp_graph *graph, const smp_flow *flow, int stage,
                                 const bool *recompute, bool *repeats);

/* Chooses what the stage repeats so that it keeps at least bytes_to_save less of every micro-batch
 * between its forward and its backward action (stash blocks, and borders that the backward reads),
 * for little forward time: forward_us [n_op]. Where that cannot be, what saves most. Naming all ops
 * of the stage counts among the choices, and is what it gives if nothing else saves as much. Writes
 * mask[op] [n_op] for the ops of the stage alone; but for all of them it is what it repeats. *saved
 * (may be NULL): bytes. O((ops + edges) log ops). */
smp_status smp_recompute_choose(const smp_graph *graph, const smp_flow *flow, int stage,
                                const double *forward_us, double bytes_to_save, bool *mask,
                                int64_t *saved);

#endif
