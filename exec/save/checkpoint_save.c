/* Saving a checkpoint, after the next steps or at once. A save begins with a copy of every rank's
 * part in memory; what takes long, the disk, is the work of a thread on each rank. It goes through
 * two phases, each of which ends on all ranks together: every rank writes and syncs its part; rank
 * 0 gives the file its name. A phase ends where all ranks come by anyway, between two steps: they
 * look with one small reduction whether everybody's thread has ended. Threads call neither MPI nor
 * the device.
 *
 * A save at once is the same and, where the host can read the arena, without the copy: a rank whose
 * thread writes waits for it, and answers others. */
#include "exec/save/checkpoint_save.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/checkpoint/kept_folder.h"
#include "exec/save/checkpoint_keep.h"
#include "exec/save/checkpoint_part.h"
#include "exec/state/drift.h"
#include "exec/state/weights.h"
#include "exec/transport/own_core.h"

static void *work(void *job)
{
    smp *s = job;
    struct smp__saving *v = s->saving;
    v->status = v->phase == SMP__SAVE_WRITE ? smp__part_write(s) : smp__part_name(s);
    snprintf(v->message, sizeof(v->message), "%s", smp_last_error());
    atomic_store(&v->ended, true);
    return NULL;
}

/* Every rank has a share; the name is rank 0's, of whatever replica. */
static bool has_work(const smp *s, smp__save_phase phase)
{
    return phase == SMP__SAVE_WRITE || s->comm->world_rank == 0;
}

static void start_phase(smp *s, smp__save_phase phase)
{
    struct smp__saving *v = s->saving;
    const bool works = has_work(s, phase);
    v->phase = phase;
    atomic_store(&v->ended, !works);
    v->running = works && smp__own_core_start(&v->thread, work, s);
    if (works && !v->running)
        work(s); /* where there is no thread the job waits for the disk, and nobody is answered */
}

static void join(struct smp__saving *v)
{
    if (v->running)
        pthread_join(v->thread, NULL);
    v->running = false;
}

static smp_status test_own(void *job, bool *done)
{
    *done = atomic_load(&((smp *)job)->saving->ended);
    return SMP_OK;
}

static void describe_own(const void *job, char *buffer, size_t size)
{
    snprintf(buffer, size, "its part of a checkpoint to be written to %s",
             ((const smp *)job)->saving->directory);
}

static smp_status wait_own(smp *s, bool patient)
{
    return smp__comm_wait_until(s->comm, &(smp_wait){.patient = patient}, test_own, describe_own,
                                s);
}

/* All ranks have ended their work of the phase, or will soon. */
static smp_status end_phase(smp *s)
{
    struct smp__saving *v = s->saving;
    smp_status status = wait_own(s, true);
    if (status != SMP_OK)
        return smp__comm_notify(s->comm, status);
    join(v);
    if (v->status != SMP_OK)
        status = smp_fail(v->status, "%s", v->message);
    status = smp__comm_agree(s->comm, status);
    if (status == SMP_OK && v->phase == SMP__SAVE_WRITE) {
        start_phase(s, SMP__SAVE_NAME);
        return SMP_OK;
    }
    v->phase = SMP__SAVE_NONE;
    v->failed = status != SMP_OK;
    if (v->failed && s->comm->world_rank == 0)
        smp__part_abandon(s);
    if (!v->failed)
        v->complete_step = v->part.says.step;
    if (!v->failed)
        v->begun_step = 0;
    return status;
}

smp_status smp__save_complete(smp *s)
{
    smp_status status = SMP_OK;
    smp__place_doing(s->place, "saving a checkpoint");
    while (status == SMP_OK && s->saving->phase != SMP__SAVE_NONE)
        status = end_phase(s);
    return smp__job_leave(s, status);
}

smp_status smp_save_wait(smp *s)
{
    if (!s)
        return smp_fail(SMP_ERR_INPUT, "smp_save_wait: a NULL argument");
    SMP_TRY(smp__job_usable(s));
    return smp__save_complete(s);
}

smp_status smp_save_test(smp *s, int *done)
{
    if (!s || !done)
        return smp_fail(SMP_ERR_INPUT, "smp_save_test: a NULL argument");
    SMP_TRY(smp__job_usable(s));
    const struct smp__saving *v = s->saving;
    if (v->phase != SMP__SAVE_NONE) {
        int working = !atomic_load(&v->ended);
        SMP_TRY(smp__comm_max(s->comm, &working));
        if (!working)
            SMP_TRY(end_phase(s));
    }
    *done = v->phase == SMP__SAVE_NONE;
    return SMP_OK;
}

/* mpirun that is killed takes its ranks with it, a moment later. */
static const double dying_s = 2.0;

static void unlock_directory(smp *s)
{
    smp__folder_lock *lock = s->saving->lock;
    s->saving->lock = NULL; /* a signal may look at it */
    smp__folder_lock_release(lock);
}

smp_status smp__save_lock(smp *s, const char *path)
{
    struct smp__saving *v = s->saving;
    if (smp__keep_folder(s))
        SMP_TRY(smp__kept_spares(smp__keep_folder(s), path));
    if (smp__folder_lock_is_of(v->lock, path))
        return smp__folder_lock_check(v->lock);
    unlock_directory(s);
    SMP_TRY(smp__folder_lock_join(path, dying_s, SMP__LOCK_RENEW_S, &v->lock));
    snprintf(v->job, sizeof v->job, "%s", smp__folder_lock_id(v->lock));
    return SMP_OK;
}

/* Rank 0 sees to the directory, so that all others find it. */
static smp_status prepare(smp *s, const char *path)
{
    struct smp__saving *v = s->saving;
    SMP_TRY(smp__part_take(s, &v->part));
    snprintf(v->directory, sizeof(v->directory), "%s", path);
    if (s->comm->world_rank != 0)
        return SMP_OK;
    SMP_TRY(smp__checkpoint_folder_make(path));
    SMP_TRY(smp__save_lock(s, path));
    return smp__checkpoint_next(path, &v->number);
}

/* States kept in memory may be wrong where replicas differ: nobody is to go on from them. */
static smp_status check_alike(smp *s)
{
    const smp_status status = smp_replicas_check(s);
    if (!smp__replicas_differ(s))
        return status;
    const smp_status discarded = smp__keep_discard(s);
    return status == SMP_OK ? discarded : status;
}

static smp_status start(smp *s, const char *path, bool behind)
{
    s->saving->failed = false;
    SMP_TRY(
        smp__comm_agree(s->comm, smp_fail_context(smp__weights_check(s), "%s: not saved", path)));
    SMP_TRY(check_alike(s));
    s->saving->behind = behind;
    SMP_TRY(smp__comm_agree(s->comm, prepare(s, path)));
    if (behind || smp__part_needs_copy(s))
        SMP_TRY(smp__comm_agree(s->comm, smp__part_copy(s, &s->saving->part)));
    if (s->comm->world_rank == 0)
        smp__part_create(s); /* before the others know its name */
    SMP_TRY(smp__comm_share(s->comm, s->saving->job, sizeof s->saving->job, 0));
    SMP_TRY(smp__comm_share(s->comm, &s->saving->number, sizeof s->saving->number, 0));
    s->saving->begun_step = s->saving->part.says.step;
    start_phase(s, SMP__SAVE_WRITE);
    return SMP_OK;
}

static smp_status begin(smp *s, const char *path, bool behind)
{
    SMP_TRY(smp__job_usable(s));
    SMP_TRY(smp__save_complete(s));
    smp__place_doing(s->place, "saving a checkpoint");
    return smp__job_leave(s, start(s, path, behind));
}

smp_status smp_save_begin(smp *s, const char *path)
{
    if (!s || !path)
        return smp_fail(SMP_ERR_INPUT, "smp_save_begin: a NULL argument");
    return begin(s, path, true);
}

smp_status smp_save(smp *s, const char *path)
{
    if (!s || !path)
        return smp_fail(SMP_ERR_INPUT, "smp_save: a NULL argument");
    SMP_TRY(begin(s, path, false));
    return smp__save_complete(s);
}

smp__save_state smp__save_look(const smp *s)
{
    const struct smp__saving *v = s->saving;
    return (smp__save_state){.goes_on = v->phase != SMP__SAVE_NONE,
                             .failed = v->failed,
                             .evaluated = v->part.says.evaluated,
                             .step = v->part.says.step};
}

void smp__save_drop_lock(const smp *s)
{
    if (s->saving)
        smp__folder_lock_drop(s->saving->lock);
}

smp_status smp__save_open(smp *s)
{
    s->saving = calloc(1, sizeof *s->saving);
    if (!s->saving)
        return smp_fail_memory(sizeof *s->saving);
    s->saving->complete_step = -1;
    return SMP_OK;
}

smp_status smp__save_close(smp *s)
{
    smp_status status = SMP_OK;
    if (!s->saving)
        return SMP_OK;
    if (!s->comm->failed)
        status = smp__save_complete(s);
    else if (s->saving->running)
        status = wait_own(s, false);
    const smp_status kept = smp__keep_close(s);
    status = status == SMP_OK ? kept : status;
    if (s->saving->keep || (s->saving->running && !atomic_load(&s->saving->ended)))
        return status; /* the disk hangs: its thread keeps what it reads */
    join(s->saving);
    unlock_directory(s);
    smp__part_free(&s->saving->part);
    free(s->saving);
    s->saving = NULL; /* a signal may look at it */
    return status;
}
