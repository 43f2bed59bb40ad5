/* The state of a job in memory that outlives its processes (runtime.keep_every, keep_in). */
#ifndef SMP_EXEC_SAVE_CHECKPOINT_KEEP_H
#define SMP_EXEC_SAVE_CHECKPOINT_KEEP_H

#include <stdbool.h>

#include "graph/base/text.h"
#include "smp.h"

/* Where no state is kept, all of this does nothing. */

/* The folder becomes this job's, and ranks beat from now on. Before the job is built. Collective.
 * Each machine has its own. SMP_ERR_INPUT: another job has it, or it is not the user's own. */
smp_status smp__keep_enter(smp *s);
/* The job is built: what it needs is reserved. Collective. SMP_ERR_FAILED: there is no room. */
smp_status smp__keep_open(smp *s);
/* Removes the folder if the state of the last step is saved on the disk, or none is kept.
 * Collective unless the job has failed; then it waits for the thread that reads the weights, as
 * smp__save_close does. */
smp_status smp__keep_close(smp *s);

/* Before a step. SMP_ERR_INPUT: the program has not told of the one before (smp_elastic_step), or
 * is under a supervisor and tells of none: that would take it for one that hangs. */
smp_status smp__keep_check_told(const smp *s);
/* A step is done: if its state is one to keep, a thread begins to write it; where the program tells
 * of its steps, in smp__keep_deferred, once after each: its own state is of the step then. */
smp_status smp__keep_step(smp *s, const smp_step_result *done);
smp_status smp__keep_deferred(smp *s);
/* Before weights or states change: waits until this rank's thread has read them. */
smp_status smp__keep_wait(smp *s);
/* Between actions of a step: what this rank's thread has written goes to the other machine that is
 * to have it. Waits for nothing. */
smp_status smp__keep_look(smp *s);
/* At the end of a step, after smp__keep_wait on all ranks: waits until it is there. */
smp_status smp__keep_deliver(smp *s);
/* Likewise, all ranks, and what was begun is complete, and has its name. Collective. */
smp_status smp__keep_settle(smp *s);
/* What this rank adds to a sum over all at the end of a step or an evaluation: 0 unless its part is
 * not yet written. If all together have 0, what was begun before is complete, and gets its name. */
double smp__keep_lacks(const smp *s);
void smp__keep_agree(smp *s, double lacks);
/* The weights are about to become those of another step: after smp__keep_settle, on all ranks. */
void smp__keep_rewind(smp *s);
/* Nothing of what is kept is to be gone on from: replicas differ. What was begun gets no name, and
 * is waited for. Collective. */
smp_status smp__keep_discard(smp *s);

/* The folder, or NULL. */
const char *smp__keep_folder(const smp *s);
/* ... where it may hold what an earlier job has kept: until this one begins to write. */
const char *smp__keep_source(const smp *s);
/* Has a state a name in the folder of any machine? Collective. */
smp_status smp__keep_has_state(smp *s, bool *has);
/* Bytes of states that machines had from others to load them, all together. Collective. */
smp_status smp__keep_fetched(smp *s, double *bytes);
/* Was the state loaded last kept there? */
bool smp__keep_was_loaded(const smp *s);
/* A state is loaded, one kept there or another. Names of later steps go: they are of a branch that
 * is left. On all ranks. */
void smp__keep_loaded(smp *s, bool kept);
/* "3 x 130 MB in DIR", or nothing. */
void smp__keep_describe(const smp *s, smp_text *text);
/* Why states get no names any more, on rank 0 and on the first rank of that machine; or "". */
const char *smp__keep_note(const smp *s);

#endif
