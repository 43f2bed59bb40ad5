/* A save that is still under way when something else needs its end. */
#ifndef SMP_EXEC_STATE_CHECKPOINT_SAVE_H
#define SMP_EXEC_STATE_CHECKPOINT_SAVE_H

#include "smp.h"

/* Waits until it is durable, if there is one. Collective. */
smp_status smp__save_complete(smp *s);
/* At the end of a job: completes it or, if the job has failed, waits for the thread that writes: no
 * longer than the time-out, since the disk may be what has failed. */
smp_status smp__save_close(smp *s);

#endif
