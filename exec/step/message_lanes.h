/* The lanes of this rank: which lane a message takes. */
#ifndef SMP_EXEC_STEP_MESSAGE_LANES_H
#define SMP_EXEC_STEP_MESSAGE_LANES_H

#include "exec/state/handle.h"

/* Those of this rank. */
struct smp__lanes {
    int n;
    smp_lane lane[]; /* by rising id */
};

/* Fills in the lanes that the transport is to open, and s->lanes; before it is opened. */
smp_status smp__messages_lanes(smp *s, smp_transport_options *options);

/* Index in s->lanes of a transfer that is a message of this rank, to its `end`th receiver
 * (smp__comm_ends; 0 of what comes in), or of the accumulator that goes from a stage to a rank. */
int smp__lane_of_transfer(const smp *s, int32_t transfer, int end);
int smp__lane_of_tie(const smp *s, int from_stage, int to_rank);

#endif
