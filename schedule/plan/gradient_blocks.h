/* The tree in which weight gradients are added. The micro-batches of all replicas, in their order,
 * are cut into N blocks of equally many. A block is folded in order; then blocks are added in
 * pairs, the sums in pairs and so on, where one that is left over goes up as it is. A replica has a
 * whole number of neighbouring blocks, which make one node of that tree, so the bits do not depend
 * on how many replicas there are. The idea is that of EasyScale (Li et al., SC 2023), whose
 * thread-local gradients are likewise added in an order that the number of GPUs does not change. */
#ifndef SMP_SCHEDULE_PLAN_GRADIENT_BLOCKS_H
#define SMP_SCHEDULE_PLAN_GRADIENT_BLOCKS_H

#include "graph/base/status.h"

enum { SMP_MAX_GRADIENT_BLOCKS = 1 << 20 };

/* Can `blocks` blocks be shared out to the replicas? SMP_ERR_INPUT with the reason. blocks: a
 * multiple of ddp by a power of two, or any with one replica, of whole micro-batches. */
smp_status smp_gradient_blocks_check(int blocks, int ddp, int microbatches);

/* Accumulators that a replica needs beside the one of the block in progress: log2 of its blocks,
 * rounded up. */
int smp_gradient_levels(int blocks_of_replica);

#endif
