/* A directory of checkpoints belongs to one job at a time: the file `.lock` in it says to which. A
 * program may hold a lock of another name beside it. */
#ifndef SMP_EXEC_CHECKPOINT_FOLDER_LOCK_H
#define SMP_EXEC_CHECKPOINT_FOLDER_LOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "graph/base/status.h"

typedef struct smp__folder_lock smp__folder_lock;

enum { SMP__LOCK_ID_BYTES = 17 }; /* 16 digits: a job's number, which no other has */
enum { SMP__LOCK_LEASE_S = 60, SMP__LOCK_RENEW_S = 10 };

#define SMP__SAVE_LOCK ".lock"

/* Takes the directory. SMP_ERR_INPUT: another job has it, or it cannot be written to. A holder on
 * this machine may be about to end with the job that it was of: it is given patience_s. */
smp_status smp__folder_lock_take(const char *directory, double patience_s, smp__folder_lock **out);
/* The same by a lock of another name, static, of at most 32 bytes. *left_s, of a failure: seconds
 * in which the lock of another machine runs out if it is not renewed; 0: its holder runs on this
 * one; -1: nobody holds it. */
smp_status smp__folder_lock_take_as(const char *directory, const char *name, double patience_s,
                                    double *left_s, smp__folder_lock **out);
/* The first for a job of this process, which may have several: they have the lock of a directory
 * together, renewed every period_s, until each has released it. */
smp_status smp__folder_lock_join(const char *directory, double patience_s, double period_s,
                                 smp__folder_lock **out);
/* Renews it every period_s from now on, by a thread. Without one each check does. */
void smp__folder_lock_keep(smp__folder_lock *lock, double period_s);
/* Call it before something is written. SMP_ERR_INPUT: the directory is another job's by now. */
smp_status smp__folder_lock_check(const smp__folder_lock *lock);
const char *smp__folder_lock_id(const smp__folder_lock *lock);
/* Is it that of this directory, by whatever name? Accepts NULL. */
bool smp__folder_lock_is_of(const smp__folder_lock *lock, const char *directory);
/* Gives the directory back, unless it is another job's by now, or other jobs of this process have
 * it too. Accepts NULL. */
void smp__folder_lock_release(smp__folder_lock *lock);
/* The same for a handler of signals: the process ends. Accepts NULL. */
void smp__folder_lock_drop(const smp__folder_lock *lock);

/* When a process of this machine began, in ticks since the boot; 0: not known. *over: it has ended,
 * and waits for its parent. */
uint64_t smp__process_start(int64_t pid, bool *over);

#endif
