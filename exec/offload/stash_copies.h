/* Stashes that are offloaded: what S and L do, and who waits for them. */
#ifndef SMP_EXEC_OFFLOAD_STASH_COPIES_H
#define SMP_EXEC_OFFLOAD_STASH_COPIES_H

#include "exec/offload/offload_area.h"
#include "exec/state/handle.h"

/* Slots of the rank's host area, which its device is opened for; 0: nothing is offloaded. */
int smp__stash_copies_slots(const smp *s);

/* Reserves the rank's host area, if it has one. Not collective. */
smp_status smp__stash_copies_open(smp *s);
/* The memory and threads of a job that failed, whose copies may never end, are left as they are. */
void smp__stash_copies_close(smp *s);

/* S or L of (chunk, micro-batch): begins, when the device gets here. */
smp_status smp__stash_copies_begin(smp *s, int chunk, int microbatch, smp_copy_direction way);
/* Before the action at a position: the stores whose memory is used again from there on. Where the
 * device does everything at once the host waits, with the watchdog, and who fails is S or L. */
smp_status smp__stash_copies_stored(smp *s, int64_t position);
/* Before B or I: what it reads is back. Nothing if it has not been away. */
smp_status smp__stash_copies_loaded(smp *s, int chunk, int microbatch);
/* The same begun and waited for, of what is offloaded: for runs that are no step. */
smp_status smp__stash_copies_at_once(smp *s, int chunk, int microbatch, smp_copy_direction way);

/* Behind the last action, when the device is idle: when copies ended, for a trace. */
void smp__stash_copies_note_ends(smp *s);
/* The latest of the copies that the action at a position of the last step had to wait for, from
 * trace_begin_s on; 0: there was none. */
double smp__stash_copies_ready_us(const smp *s, int64_t position);

#endif
