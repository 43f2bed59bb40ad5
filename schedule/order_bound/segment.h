/* What the order of a rule leaves a rank to do between its first backward and its last (inference:
 * forward); what bounds on steps are made of. */
#ifndef SMP_SCHEDULE_ORDER_BOUND_SEGMENT_H
#define SMP_SCHEDULE_ORDER_BOUND_SEGMENT_H

#include "graph/base/arena.h"
#include "schedule/rules/schedule.h"

/* What the rank's chunk with the fewest of each has; with one chunk, without the micro-batch of a
 * chain that leads through the rank. */
typedef struct smp__segment {
    double forwards, inputs, weights;
} smp__segment;

/* *splits is set where some backward is I and W. */
smp_status smp__segment_count(const smp_schedule_kind *kind, const smp_schedule_shape *shape,
                              int rank, smp__segment *out, bool *splits);

/* How often a message stands there, at least, on any rank: the mean of forward and back, where each
 * rank holds one stage and a gradient goes back from every stage that reads a tensor; else 0. */
smp_status smp__segment_messages(const smp_schedule_kind *kind, const smp_schedule_shape *shape,
                                 smp_arena *arena, double *times);

#endif
