/* Do messages arrive in the order in which they are sent? Shared by the verifier's files. */
#ifndef SMP_SCHEDULE_VERIFY_VERIFY_CHANNELS_H
#define SMP_SCHEDULE_VERIFY_VERIFY_CHANNELS_H

#include "schedule/verify/rendezvous.h"

/* A send that the receiver takes before one that was sent earlier. Positions in the programs. */
typedef struct smp__overtaking {
    int sender, receiver;
    int64_t send_at;    /* the later send */
    int64_t receive_at; /* and its receive, which stands before that of the earlier one: */
    int64_t blocked_at;
} smp__overtaking;

/* Channels are first in, first out, as NCCL's are: one for all messages to neighbouring stages from
 * a rank to another, and one for each transfer that jumps over stages. `found` is set if a
 * channel's receives stand in another order than its sends. position: as for smp__rendezvous_check.
 * O(actions + transfers * microbatches). */
smp_status smp__channels_check(const smp__crossing *crossing, const smp_program *program,
                               const smp__positions *position, int microbatches, bool *found,
                               smp__overtaking *out);

#endif
