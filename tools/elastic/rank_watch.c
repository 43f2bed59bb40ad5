/* The ranks of a job; see the header. A process is known by its number and the time it began at, so
 * that no other one that got the number later is taken for it. */
#include "tools/elastic/rank_watch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "exec/checkpoint/folder_lock.h"
#include "exec/checkpoint/heartbeat.h"

enum { NAME_BYTES = 32 };
static const double orphan_s = 10.0; /* for a process that is killed to end */

static int open_process(int pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

static bool ends(int process, int patience_ms)
{
    struct pollfd wait = {.fd = process, .events = POLLIN};
    return poll(&wait, 1, patience_ms) == 1;
}

static void kill_process(int process)
{
    (void)syscall(SYS_pidfd_send_signal, process, SIGKILL, NULL, 0); /* it may be gone already */
}

/* A descriptor of the process that beats; -1: it is gone. */
static int find_process(const smp__beat *beat)
{
    bool over = false;
    if (beat->pid < 1 || beat->pid > INT32_MAX)
        return -1;
    const int process = open_process((int)beat->pid);
    if (process >= 0 &&
        (smp__process_start(beat->pid, &over) != (uint64_t)beat->start_ticks || over)) {
        close(process);
        return -1;
    }
    return process;
}

static smp_status end_orphan(int directory, const char *name)
{
    smp__beat beat;
    const int process = smp__beat_read(directory, name, &beat) ? find_process(&beat) : -1;
    smp_status status = SMP_OK;
    if (process >= 0) {
        kill_process(process);
        if (!ends(process, (int)(1e3 * orphan_s)))
            status = smp_fail(SMP_ERR_FAILED,
                              "process %" PRId64 ", rank %d of an earlier job, is killed and has "
                              "not ended within %g s",
                              beat.pid, (int)beat.world_rank, orphan_s);
        close(process);
    }
    if (status == SMP_OK)
        unlinkat(directory, name, 0);
    return status;
}

smp_status smp__ranks_check(void)
{
    const int own = open_process(getpid());
    if (own < 0)
        return smp_fail(SMP_ERR_FAILED, "pidfd_open: %s: --elastic needs Linux 5.3 or later",
                        strerror(errno));
    close(own);
    return SMP_OK;
}

smp_status smp__ranks_end_orphans(const char *folder)
{
    DIR *all = opendir(folder);
    smp_status status = SMP_OK;
    if (!all) /* nothing has been kept yet */
        return SMP_OK;
    for (const struct dirent *entry; status == SMP_OK && (entry = readdir(all));)
        if (strncmp(entry->d_name, SMP__BEAT_NAME, strlen(SMP__BEAT_NAME)) == 0)
            status = end_orphan(dirfd(all), entry->d_name);
    closedir(all);
    return status;
}

smp_status smp__ranks_open(const char *folder, int n, smp__ranks *out)
{
    smp__rank *rank = calloc((size_t)n, sizeof *rank);
    if (!rank)
        return smp_fail_memory((size_t)n * sizeof *rank);
    for (int i = 0; i < n; i++)
        rank[i] = (smp__rank){.process = -1};
    *out = (smp__ranks){.folder = folder, .directory = -1, .n = n, .rank = rank, .first_gone = -1};
    return SMP_OK;
}

void smp__ranks_close(smp__ranks *ranks)
{
    for (int i = 0; i < ranks->n; i++)
        if (ranks->rank[i].process >= 0)
            close(ranks->rank[i].process);
    if (ranks->directory >= 0)
        close(ranks->directory);
    free(ranks->rank);
    *ranks = (smp__ranks){.directory = -1, .first_gone = -1};
}

static void note_gone(smp__ranks *ranks, int i)
{
    ranks->rank[i].gone = true;
    ranks->first_gone = ranks->first_gone < 0 ? i : ranks->first_gone;
}

static void take_beat(smp__ranks *ranks, int i, const smp__beat *beat, double elapsed_s)
{
    smp__rank *rank = &ranks->rank[i];
    const bool found = rank->pid == 0;
    if (found) {
        rank->pid = (int)beat->pid;
        rank->process = find_process(beat);
        ranks->n_known++;
    }
    rank->quiet_s = found || beat->beat != rank->beat ? 0.0 : rank->quiet_s + elapsed_s;
    rank->beat = beat->beat;
    rank->step = beat->step;
    if (found && rank->process < 0)
        note_gone(ranks, i);
}

void smp__ranks_look(smp__ranks *ranks, double elapsed_s)
{
    if (ranks->directory < 0)
        ranks->directory = open(ranks->folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    for (int i = 0; i < ranks->n && ranks->directory >= 0; i++) {
        char name[NAME_BYTES];
        smp__beat beat;
        snprintf(name, sizeof name, SMP__BEAT_NAME "%d", i);
        if (smp__beat_read(ranks->directory, name, &beat) && beat.world_rank == i &&
            beat.world_size == ranks->n &&
            (ranks->rank[i].pid == 0 || ranks->rank[i].pid == beat.pid))
            take_beat(ranks, i, &beat, elapsed_s);
    }
}

int smp__ranks_quiet(const smp__ranks *ranks, double limit_s)
{
    for (int i = 0; i < ranks->n && limit_s > 0.0; i++)
        if (ranks->rank[i].process >= 0 && ranks->rank[i].quiet_s > limit_s)
            return i;
    return -1;
}

int smp__ranks_put_polls(const smp__ranks *ranks, struct pollfd *polls)
{
    int n = 0;
    for (int i = 0; i < ranks->n; i++)
        if (ranks->rank[i].process >= 0)
            polls[n++] = (struct pollfd){.fd = ranks->rank[i].process, .events = POLLIN};
    return n;
}

void smp__ranks_take_polls(smp__ranks *ranks, const struct pollfd *polls, int n)
{
    for (int i = 0, k = 0; i < ranks->n && k < n; i++) {
        smp__rank *rank = &ranks->rank[i];
        if (rank->process != polls[k].fd)
            continue;
        if (polls[k++].revents == 0)
            continue;
        close(rank->process);
        rank->process = -1;
        note_gone(ranks, i);
    }
}

void smp__ranks_kill_one(smp__ranks *ranks, int i)
{
    if (ranks->rank[i].process >= 0)
        kill_process(ranks->rank[i].process);
}

void smp__ranks_kill(smp__ranks *ranks)
{
    for (int i = 0; i < ranks->n; i++)
        smp__ranks_kill_one(ranks, i);
}

bool smp__ranks_gone(const smp__ranks *ranks)
{
    for (int i = 0; i < ranks->n; i++)
        if (ranks->rank[i].process >= 0)
            return false;
    return true;
}

int64_t smp__ranks_step(const smp__ranks *ranks)
{
    int64_t most = 0;
    for (int i = 0; i < ranks->n; i++)
        most = ranks->rank[i].step > most ? ranks->rank[i].step : most;
    return most;
}
