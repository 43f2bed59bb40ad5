/* Does a step finish if no message is buffered? Shared by the verifier's files. */
#ifndef SMP_SCHEDULE_VERIFY_RENDEZVOUS_H
#define SMP_SCHEDULE_VERIFY_RENDEZVOUS_H

#include "schedule/lower/crossing.h"

/* Positions in a rank's program of the actions of one (stage, micro-batch); -1: not there. */
typedef struct smp__positions {
    int64_t at[SMP_ACTION_LOAD + 1]; /* by action kind */
} smp__positions;

/* Runs the programs to a fixpoint, each `>` holding its rank up until the neighbouring stage's
 * rank has reached its `<`, each `<` until all its senders have reached their `>`; sends that jump
 * over stages are waited for before the stage's backward of the micro-batch (F) and before O or at
 * the end (B, and F without a backward). SMP_ERR_INPUT with the ranks that wait for each other.
 *
 * position: [n_stage * microbatches], complete and in range: each message has its `>` and `<`.
 * O(n) for n actions, times the ranks that wait for one rank at the same time. */
smp_status smp__rendezvous_check(const smp__crossing *crossing, const smp_program *program,
                                 const smp__positions *position, int microbatches);

#endif
