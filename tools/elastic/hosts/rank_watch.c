/* Ranks of a host; see the header. A process is known by its number and the time it began at, so
 * that no other one that got the number later is taken for it. */
#include "tools/elastic/hosts/rank_watch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

bool smp__process_ends(int process, double patience_s)
{
    struct pollfd wait = {.fd = process, .events = POLLIN};
    return poll(&wait, 1, (int)(1e3 * patience_s)) == 1;
}

void smp__process_signal(int process, int number)
{
    (void)syscall(SYS_pidfd_send_signal, process, number, NULL, 0); /* it may be gone already */
}

int smp__process_open(int64_t pid, uint64_t start_ticks)
{
    bool over = false;
    if (pid < 1 || pid > INT32_MAX)
        return -1;
    const int process = open_process((int)pid);
    if (process >= 0 && (smp__process_start(pid, &over) != start_ticks || over)) {
        close(process);
        return -1;
    }
    return process;
}

static int find_process(const smp__beat *beat)
{
    return smp__process_open(beat->pid, (uint64_t)beat->start_ticks);
}

static smp_status end_orphan(int directory, const char *name)
{
    smp__beat beat;
    const int process = smp__beat_read(directory, name, &beat) ? find_process(&beat) : -1;
    smp_status status = SMP_OK;
    if (process >= 0) {
        smp__process_signal(process, SIGKILL);
        if (!smp__process_ends(process, orphan_s))
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

smp_status smp__rank_watch_check(void)
{
    const int own = open_process(getpid());
    if (own < 0)
        return smp_fail(SMP_ERR_FAILED, "pidfd_open: %s: --elastic needs Linux 5.3 or later",
                        strerror(errno));
    close(own);
    return SMP_OK;
}

/* The folder, if it is this user's alone: what others wrote there would name processes to be
 * killed. -1: it is not, or not yet there. */
static int open_own(const char *folder)
{
    struct stat info;
    const int directory = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (directory < 0 ||
        (fstat(directory, &info) == 0 && info.st_uid == geteuid() && (info.st_mode & 077) == 0))
        return directory;
    close(directory);
    return -1;
}

smp_status smp__rank_watch_end_orphans(const char *folder)
{
    const int directory = open_own(folder);
    DIR *all = directory >= 0 ? fdopendir(directory) : NULL;
    smp_status status = SMP_OK;
    if (!all && directory >= 0)
        close(directory);
    if (!all) /* nothing has been kept yet */
        return SMP_OK;
    for (const struct dirent *entry; status == SMP_OK && (entry = readdir(all));)
        if (strncmp(entry->d_name, SMP__BEAT_NAME, strlen(SMP__BEAT_NAME)) == 0)
            status = end_orphan(dirfd(all), entry->d_name);
    closedir(all);
    return status;
}

smp_status smp__rank_watch_open(const char *folder, int n, smp__rank_watch *out)
{
    smp__watched *rank = calloc((size_t)n, sizeof *rank);
    if (!rank)
        return smp_fail_memory((size_t)n * sizeof *rank);
    for (int i = 0; i < n; i++)
        rank[i] = (smp__watched){.process = -1};
    *out = (smp__rank_watch){.folder = folder, .directory = -1, .n = n, .rank = rank};
    return SMP_OK;
}

void smp__rank_watch_close(smp__rank_watch *watch)
{
    for (int i = 0; i < watch->n; i++)
        if (watch->rank[i].process >= 0)
            close(watch->rank[i].process);
    if (watch->directory >= 0)
        close(watch->directory);
    free(watch->rank);
    *watch = (smp__rank_watch){.directory = -1};
}

static void take_beat(smp__watched *rank, const smp__beat *beat, double elapsed_s)
{
    const bool found = rank->pid == 0;
    if (found) {
        rank->pid = (int)beat->pid;
        rank->process = find_process(beat);
        rank->gone = rank->process < 0;
    }
    rank->quiet_s = found || beat->beat != rank->beat ? 0.0 : rank->quiet_s + elapsed_s;
    rank->beat = beat->beat;
    rank->step = beat->step;
}

void smp__rank_watch_look(smp__rank_watch *watch, double elapsed_s)
{
    if (watch->directory < 0 && watch->folder) /* ranks are to be watched */
        watch->directory = open_own(watch->folder);
    for (int i = 0; i < watch->n && watch->directory >= 0; i++) {
        char name[NAME_BYTES];
        smp__beat beat;
        snprintf(name, sizeof name, SMP__BEAT_NAME "%d", i);
        if (smp__beat_read(watch->directory, name, &beat) && beat.world_rank == i &&
            beat.world_size == watch->n &&
            (watch->rank[i].pid == 0 || watch->rank[i].pid == beat.pid))
            take_beat(&watch->rank[i], &beat, elapsed_s);
    }
}

int smp__rank_watch_put_polls(const smp__rank_watch *watch, struct pollfd *polls)
{
    int n = 0;
    for (int i = 0; i < watch->n; i++)
        if (watch->rank[i].process >= 0)
            polls[n++] = (struct pollfd){.fd = watch->rank[i].process, .events = POLLIN};
    return n;
}

bool smp__rank_watch_take_polls(smp__rank_watch *watch, const struct pollfd *polls, int n)
{
    bool gone = false;
    for (int i = 0, k = 0; i < watch->n && k < n; i++) {
        smp__watched *rank = &watch->rank[i];
        if (rank->process != polls[k].fd)
            continue;
        if (polls[k++].revents == 0)
            continue;
        close(rank->process);
        rank->process = -1;
        rank->gone = gone = true;
    }
    return gone;
}

void smp__rank_watch_kill_one(smp__rank_watch *watch, int rank)
{
    if (watch->rank[rank].process >= 0)
        smp__process_signal(watch->rank[rank].process, SIGKILL);
}

void smp__rank_watch_kill(smp__rank_watch *watch)
{
    for (int i = 0; i < watch->n; i++)
        smp__rank_watch_kill_one(watch, i);
}
