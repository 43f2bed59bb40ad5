/* Lowering: from the compute order of each rank and the flow between stages to complete programs.
 *
 * All events get one global order, that of a simulation in unit times (F 1, B 2, I 1, W 1,
 * transfers immediate, every stage waits for its neighbour); a rank's program is that order
 * restricted to the rank. A send to the neighbouring stage (F: the next one, B: the one before)
 * and its receive are one event: a program made so cannot deadlock even if every such send holds
 * its rank up until the receive is reached, since the first event not yet done is always possible.
 * One `>` also carries the tensors that jump over stages; their receivers may come far later, so
 * those are waited for later (see memory.h). >B follows B or I. R.c follows the last B or W of
 * chunk c, and the send of that B; O comes last. Transfers between two chunks of one rank need no
 * action. */
#ifndef SMP_SCHEDULE_LOWER_LOWER_H
#define SMP_SCHEDULE_LOWER_LOWER_H

#include "partition/problem/flow.h"
#include "schedule/rules/schedule.h"

/* programs: [pipeline], filled; freed by the caller with smp_program_free. SMP_ERR_FAILED if the
 * compute orders themselves deadlock, naming rank and action. */
smp_status smp_lower(const smp_schedule_kind *kind, const smp_schedule_shape *shape,
                     const smp_flow *flow, smp_program *programs);

/* The same for orders that somebody else made. orders: [pipeline] compute actions; stage_rank:
 * [flow->n_stage], `chunks` stages on each rank. */
smp_status smp_lower_orders(const smp_schedule_shape *shape, const int *stage_rank,
                            const smp_flow *flow, const smp_program *orders, smp_program *programs);

#endif
