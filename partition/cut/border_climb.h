/* Better borders for a sequence where its own measure is not exact. */
#ifndef SMP_PARTITION_CUT_BORDER_CLIMB_H
#define SMP_PARTITION_CUT_BORDER_CLIMB_H

#include "partition/cut/sequence.h"
#include "partition/problem/evaluate.h"

/* a before b: one that fits first, then the smaller bottleneck, then the smaller total. */
bool smp__score_better(const smp__score *a, const smp__score *b);

/* Moves borders of a split as long as the exact evaluation gets better and *work, which it adds to,
 * stays below `limit`. op_stage: [n_op] scratch. */
void smp__climb_borders(smp__evaluator *evaluator, const smp__sequence *sequence, int32_t *border,
                        int32_t *op_stage, int64_t limit, int64_t *work);

#endif
