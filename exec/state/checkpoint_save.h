/* A save that is still under way when something else needs its end. */
#ifndef SMP_EXEC_STATE_CHECKPOINT_SAVE_H
#define SMP_EXEC_STATE_CHECKPOINT_SAVE_H

#include "smp.h"

/* Waits until it is durable, if there is one. Collective. */
smp_status smp__save_complete(smp *s);
/* At the end of a job: completes it, unless the job has failed, and waits for the thread that
 * writes in any case. */
smp_status smp__save_close(smp *s);

#endif
