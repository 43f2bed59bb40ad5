/* Whose a directory is, and a save that is still under way when something else needs its end. */
#ifndef SMP_EXEC_SAVE_CHECKPOINT_SAVE_H
#define SMP_EXEC_SAVE_CHECKPOINT_SAVE_H

#include <stdbool.h>

#include "graph/base/status.h"
#include "smp.h"

/* Opens what a job needs for saving, once. */
smp_status smp__save_open(smp *s);

/* The save that was begun last, alike on all ranks. */
typedef struct smp__save_state {
    bool goes_on;   /* it is not complete */
    bool failed;    /* it did not become complete */
    bool evaluated; /* its state has an evaluation's loss */
    int64_t step;   /* of its state */
} smp__save_state;

smp__save_state smp__save_look(const smp *s);

/* The directory is nobody's any more, of a process that is about to end: a signal may call it. */
void smp__save_drop_lock(const smp *s);

/* The directory becomes this job's, if it is not: rank 0's business, until smp__save_close or a
 * save elsewhere. SMP_ERR_INPUT: another job's. */
smp_status smp__save_lock(smp *s, const char *path);
/* Waits until it is durable, if there is one. Collective. */
smp_status smp__save_complete(smp *s);
/* At the end of a job: completes it or, if the job has failed, waits for the thread that writes: no
 * longer than the time-out, since the disk may be what has failed. */
smp_status smp__save_close(smp *s);

#endif
