/* The verifier: proves of every plan written or read that
 *  - each (micro-batch, stage) runs forward once, and backward once (B, or I then W) when training;
 *    in a chunk the weight gradients are accumulated in micro-batch order;
 *  - each action's inputs exist: a receive stands before its use, a send after what it sends;
 *  - sends and receives match one to one, and exist exactly where the flow needs them;
 *  - messages of one channel are taken in the order in which they are sent, as in-order transports
 *    (NCCL) need it. A channel: all messages between neighbouring stages from one rank to another;
 *    what jumps over stages has one for each transfer;
 *  - the step finishes even if every send waits for its receive (rendezvous): a `>` holds its rank
 *    up until the neighbouring stage reaches its `<`; what jumps over stages is waited for where
 *    memory.h says; a `<` holds its rank up until all its senders reach their `>`;
 *  - of what travels to host memory (smp_plan.travels) S follows F, L follows S after so many
 *    compute actions that its store is complete, and B or I follows L; what has no S stays;
 *  - R.c follows the chunk's last backward (B or W), O follows all R and stands last;
 *  - peak memory, on the device and the host, is what the plan says. */
#ifndef SMP_SCHEDULE_VERIFY_VERIFY_H
#define SMP_SCHEDULE_VERIFY_VERIFY_H

#include "schedule/plan/plan.h"

/* SMP_ERR_INPUT naming rank, position and action of the first violation. */
smp_status smp_verify_programs(const smp_plan *plan, const smp_flow *flow);

/* smp_plan_bind, smp_verify_programs and the peak of every rank. */
smp_status smp_verify(const smp_plan *plan, const smp_graph *graph);

#endif
