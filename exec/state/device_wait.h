/* The host waits for the device, and what it copies from and to it. */
#ifndef SMP_EXEC_STATE_DEVICE_WAIT_H
#define SMP_EXEC_STATE_DEVICE_WAIT_H

#include "exec/state/handle.h"

/* How far the device has got with what it was told. `begin`: of a step or an evaluation. */
smp_status smp__device_queue_open(smp *s);
void smp__device_queue_close(smp *s);
void smp__device_queue_begin(smp *s);
/* Actions of the step that are enqueued: that in progress has this index. */
int64_t smp__device_position(const smp *s);

/* With the watchdog: a device that gets nowhere is SMP_ERR_PEER, naming the first action that it
 * has not done. */
smp_status smp__device_idle(smp *s);
/* If the device itself has failed: the rank's place becomes the action that it was at. */
void smp__device_blame(smp *s);
/* Called after every operator: keeps the host within some hundred kernels of the device, since a
 * launch into a full queue would block where nobody watches. */
smp_status smp__device_pace(smp *s);
/* Stamps that the device needs, besides `marks` that smp__stamp_mark sets. */
int smp__device_stamps(const smp *s, int marks);
/* Notes where the device begins (with record_trace, or where work is timed) or ends the action in
 * progress. */
smp_status smp__stamp_begin(smp *s);
smp_status smp__stamp_end(smp *s);

/* From here on a device that is behind the host times its work, for ranks to compare: a stamp more
 * for each action that computes, two for each wait within. Not in a job of one rank, nor where the
 * plan predicts nothing. */
void smp__device_time_work(smp *s);
/* Within an action: the device waits for its group from here, or it is over. */
smp_status smp__stamp_wait(smp *s, bool over);
/* While the device is idle, before the weights are updated: how long the update of the step before
 * took. */
void smp__device_note_update(smp *s);
/* What the actions of the step took on the device that compute, with that update; they are done.
 * Waits are not in it, nor copies and sums beside them. 0: it is not timed. */
double smp__device_work_us(smp *s);
/* Notes where the device is, under a number that is used again in every step, and when it was
 * there. */
smp_status smp__stamp_mark(smp *s, int mark);
smp_status smp__mark_time(const smp *s, int mark, double *time_s);
/* Fills in the times of the record. Waits for the device. */
smp_status smp__trace_collect(smp *s);
/* Between host memory and device memory, or the host area, in pieces; return when done. */
smp_status smp__copy_in(smp *s, void *target, const void *values, int64_t bytes);
smp_status smp__copy_out(smp *s, void *values, const void *source, int64_t bytes);
/* What stands at `source` in the arena, for the host to read: *values; *copy is to be freed. */
smp_status smp__copy_view(smp *s, const void *source, int64_t bytes, const void **values,
                          void **copy);

#endif
