/* Lowering: from the compute order of each rank and the flow between stages to complete programs.
 *
 * All events (compute actions, and each send together with its receive) get one global order, that of a
 * simulation in unit times (F 1, B 2, I 1, W 1, transfers immediate); a rank's program is that
 * order restricted to the rank. A program made so cannot deadlock even if every send waits for its
 * receive: the first event not yet done is always possible. R.c follows the last backward of chunk
 * c; O comes last. Transfers between two chunks of one rank need no action. */
#ifndef SMP_SCHEDULE_LOWER_H
#define SMP_SCHEDULE_LOWER_H

#include "schedule/flow.h"
#include "schedule/schedule.h"

/* programs: [pipeline], filled; freed by the caller with smp_program_free. SMP_ERR_FAILED if the
 * compute orders themselves deadlock, naming rank and action. */
smp_status smp_lower(const smp_schedule_kind *kind, const smp_schedule_shape *shape,
                     const smp_flow *flow, smp_program *programs);

#endif
