/* Whose a directory is, and a save that is still under way when something else needs its end. */
#ifndef SMP_EXEC_STATE_CHECKPOINT_SAVE_H
#define SMP_EXEC_STATE_CHECKPOINT_SAVE_H

#include "smp.h"

/* The directory becomes this job's, if it is not: rank 0's business, until smp__save_close or a
 * save elsewhere. SMP_ERR_INPUT: another job's. */
smp_status smp__save_lock(smp *s, const char *path);
/* Waits until it is durable, if there is one. Collective. */
smp_status smp__save_complete(smp *s);
/* At the end of a job: completes it or, if the job has failed, waits for the thread that writes: no
 * longer than the time-out, since the disk may be what has failed. */
smp_status smp__save_close(smp *s);

#endif
