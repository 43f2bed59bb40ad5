/* Locks of a directory of checkpoints.
 *
 * One is written under a name of its own and linked to that of the lock, which succeeds once, on
 * network file systems, too. On the holder's machine it counts as long as its process is there:
 * number and start time, in the same name space of the same boot. Elsewhere it is a lease: the
 * holder renews the time of the file, and who finds it older than SMP__LOCK_LEASE_S, by the clock
 * of the file system, takes it. A lock that counts no more is renamed, looked at again, and only
 * then removed: of two jobs that found it at once the second may have got the new lock of the
 * first, and puts it back. A holder therefore looks, before it writes, whether the lock is still
 * its own. */
#include "exec/checkpoint/folder_lock.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "exec/transport/own_core.h"
#include "graph/base/clock.h"
#include "graph/base/text.h"

enum { TEXT_BYTES = 1024, NAME_BYTES = 64, ATTEMPTS = 100, LOOKS = 5 };
static const double nap_s = 0.1;

/* Who holds a lock. What this machine does not tell is "-" or 0. */
typedef struct holder {
    char host[256], boot[64], space[64], job[SMP__LOCK_ID_BYTES];
    int64_t pid;
    uint64_t start; /* of the process, in ticks since the boot */
} holder;

struct smp__folder_lock {
    char *path;       /* as given */
    const char *name; /* of the lock in it */
    int directory;    /* which it was, wherever the program has gone since */
    int file;         /* the lock, under whatever name; its time is the lease */
    holder own;
    char text[TEXT_BYTES];
    bool kept; /* by `thread`: */
    pthread_t thread;
    pthread_mutex_t guard; /* of `ends` */
    pthread_cond_t changed;
    double period_s;
    bool ends;
    int joined; /* jobs of this process that have it, all but the first */
    struct smp__folder_lock *next;
};

/* Those that jobs of this process have joined. */
static smp__folder_lock *held;
static pthread_mutex_t held_guard = PTHREAD_MUTEX_INITIALIZER;

/* A lock as it was found. */
typedef struct sight {
    char text[TEXT_BYTES];
    struct stat info;
    bool known; /* it can be read, */
    holder by;
} sight;

static void nap(double seconds)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)(seconds * 1e9)}, NULL);
}

/* All of a small file that is no link, NUL-terminated. An errno, or 0. */
static int read_small(int directory, const char *name, char text[TEXT_BYTES], struct stat *info)
{
    const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    const int file = openat(directory, name, flags);
    int64_t used = 0;
    ssize_t n = file < 0 || fstat(file, info) != 0 ? -1 : 1;
    while (n > 0 && used < TEXT_BYTES - 1) {
        n = read(file, text + used, (size_t)(TEXT_BYTES - 1 - used));
        used += n > 0 ? n : 0;
        n = n < 0 && errno == EINTR ? 1 : n;
    }
    const int error = n < 0 ? errno : 0;
    text[used] = '\0';
    if (file >= 0)
        close(file);
    return error;
}

uint64_t smp__process_start(int64_t pid, bool *over)
{
    char name[NAME_BYTES], text[TEXT_BYTES], state = '?';
    struct stat info;
    uint64_t start = 0;
    snprintf(name, sizeof name, "/proc/%" PRId64 "/stat", pid);
    const char *at = read_small(AT_FDCWD, name, text, &info) == 0 ? strrchr(text, ')') : NULL;
    if (!at || sscanf(at,
                      ") %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                      "%*s %*s %" SCNu64,
                      &state, &start) != 2)
        start = 0;
    *over = state == 'Z' || state == 'X';
    return start;
}

/* One word, or "-". */
static void set_word(char *word, size_t size, const char *from)
{
    size_t n = 0;
    while (n + 1 < size &&
           (isalnum((unsigned char)from[n]) || (from[n] && strchr(".-_:[]", from[n]))))
        n++;
    snprintf(word, size, "%.*s", n > 0 ? (int)n : 1, n > 0 ? from : "-");
}

static smp_status describe_self(holder *own)
{
    char host[256] = "", boot[TEXT_BYTES] = "", space[64] = "";
    struct stat info;
    uint64_t id;
    bool over;
    if (getrandom(&id, sizeof id, 0) != sizeof id)
        return smp_fail(SMP_ERR_FAILED, "no random number: %s", strerror(errno));
    gethostname(host, sizeof host - 1);
    if (read_small(AT_FDCWD, "/proc/sys/kernel/random/boot_id", boot, &info) != 0)
        boot[0] = '\0';
    if (readlink("/proc/self/ns/pid", space, sizeof space - 1) < 0)
        space[0] = '\0';
    set_word(own->host, sizeof own->host, host);
    set_word(own->boot, sizeof own->boot, boot);
    set_word(own->space, sizeof own->space, space);
    snprintf(own->job, sizeof own->job, "%016" PRIx64, id);
    own->pid = getpid();
    own->start = smp__process_start(own->pid, &over);
    return SMP_OK;
}

static bool parse_lock(const char *text, holder *by)
{
    char host[256], boot[64], space[64];
    int used = 0;
    if (sscanf(text,
               "SMP lock 1 host %255s boot %63s space %63s pid %" SCNd64 " start %" SCNu64
               " job %16[0-9a-f]%n",
               host, boot, space, &by->pid, &by->start, by->job, &used) != 6 ||
        strcmp(text + used, "\n") != 0 || by->pid < 1 || by->pid > INT32_MAX)
        return false;
    set_word(by->host, sizeof by->host, host);
    set_word(by->boot, sizeof by->boot, boot);
    set_word(by->space, sizeof by->space, space);
    return true;
}

/* An errno, or 0. */
static int look_at(const smp__folder_lock *l, const char *name, sight *out)
{
    const int error = read_small(l->directory, name, out->text, &out->info);
    out->known = error == 0 && parse_lock(out->text, &out->by);
    return error;
}

/* Can this process see the other one, if there is one? */
static bool is_here(const holder *a, const holder *b)
{
    return strcmp(a->boot, "-") != 0 && strcmp(a->host, b->host) == 0 &&
           strcmp(a->boot, b->boot) == 0 && strcmp(a->space, b->space) == 0;
}

static bool has_ended(const holder *by)
{
    bool over;
    if (kill((pid_t)by->pid, 0) != 0 && errno == ESRCH)
        return true;
    const uint64_t start = smp__process_start(by->pid, &over);
    return over || (start != 0 && by->start != 0 && start != by->start);
}

static double seconds_of(const struct stat *info)
{
    return (double)info->st_mtim.tv_sec + 1e-9 * (double)info->st_mtim.tv_nsec;
}

/* Since a lock was renewed, by the clock that stamps files there. */
static double age_of(const smp__folder_lock *l, const sight *found)
{
    struct stat now;
    if (futimens(l->file, NULL) != 0 || fstat(l->file, &now) != 0)
        return 0.0;
    return seconds_of(&now) - seconds_of(&found->info);
}

static smp_status cannot_lock(const smp__folder_lock *l, int error)
{
    return smp_fail(SMP_ERR_INPUT, "%s/%s: cannot lock the checkpoint directory: %s", l->path,
                    l->name, strerror(error));
}

static smp_status refuse(const smp__folder_lock *l, const sight *found, bool here, double left_s)
{
    char who[384] = "somebody", left[128] = "";
    if (found->known)
        snprintf(who, sizeof who, "process %" PRId64 " on host %s (job %s)", found->by.pid,
                 found->by.host, found->by.job);
    if (!here)
        snprintf(left, sizeof left, "; should that be dead, its lock ends in %.0f s", left_s);
    return smp_fail(SMP_ERR_INPUT,
                    "%s: another job saves there: %s holds %s%s; choose another directory, or end "
                    "that job",
                    l->path, who, l->name, left);
}

static bool is_same(const sight *a, const sight *b)
{
    return strcmp(a->text, b->text) == 0 && a->info.st_ino == b->info.st_ino &&
           seconds_of(&a->info) == seconds_of(&b->info);
}

/* Removes the lock if it is still `found`; `own`: whatever its time. */
static smp_status remove_lock(const smp__folder_lock *l, const sight *found, bool own)
{
    char aside[NAME_BYTES];
    sight moved;
    snprintf(aside, sizeof aside, "%s.%s.old", l->name, l->own.job);
    if (renameat(l->directory, l->name, l->directory, aside) != 0)
        return errno == ENOENT ? SMP_OK : cannot_lock(l, errno); /* somebody was faster */
    const bool readable = look_at(l, aside, &moved) == 0;
    if (!readable || !(own ? strcmp(moved.text, found->text) == 0 : is_same(&moved, found)))
        (void)linkat(l->directory, aside, l->directory, l->name, 0); /* or it is taken again */
    return unlinkat(l->directory, aside, 0) == 0 ? SMP_OK : cannot_lock(l, errno);
}

/* An errno, or 0. */
static int write_text(int file, const char *text)
{
    for (size_t left = strlen(text); left > 0;) {
        const ssize_t n = write(file, text, left);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : ENOSPC;
        text += n;
        left -= (size_t)n;
    }
    return 0;
}

/* Makes the lock where a file cannot have two names: others may see it before it is written. */
static int place_directly(smp__folder_lock *l)
{
    const int file = smp_file_create(l->directory, l->name);
    if (file < 0)
        return errno;
    close(l->file);
    l->file = file;
    const int error = write_text(file, l->text);
    if (error != 0)
        unlinkat(l->directory, l->name, 0);
    return error;
}

/* EEXIST: there is one. Another errno, or 0. */
static int place_lock(smp__folder_lock *l, const char *beside)
{
    struct stat info;
    if (linkat(l->directory, beside, l->directory, l->name, 0) == 0)
        return 0;
    const int error = errno;
    if (fstat(l->file, &info) == 0 && info.st_nlink == 2)
        return 0; /* the answer of a network file system was lost, and its second one is wrong */
    return error == EPERM || error == EOPNOTSUPP || error == ENOSYS || error == EMLINK
               ? place_directly(l)
               : error;
}

/* One attempt. *placed: the directory is taken. *left_s: as of smp__folder_lock_take_as. */
static smp_status try_lock(smp__folder_lock *l, const char *beside, double until_s, double *left_s,
                           bool *placed)
{
    sight found = {0};
    int error = place_lock(l, beside);
    *placed = error == 0;
    if (error == EEXIST)
        error = look_at(l, l->name, &found);
    if (*placed || error == ENOENT)
        return SMP_OK;
    if (error != 0)
        return cannot_lock(l, error);
    const bool here = found.known && is_here(&found.by, &l->own);
    const double age_s = age_of(l, &found);
    if (here ? has_ended(&found.by) : age_s > SMP__LOCK_LEASE_S)
        return remove_lock(l, &found, false);
    if (!here || smp_clock_s() >= until_s) {
        *left_s = here ? 0.0 : SMP__LOCK_LEASE_S - (age_s > 0.0 ? age_s : 0.0);
        return refuse(l, &found, here, *left_s);
    }
    nap(nap_s);
    return SMP_OK;
}

/* What takers left that were killed while they took. */
static void remove_old(const smp__folder_lock *l)
{
    const size_t length = strlen(l->name);
    const int again = openat(l->directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = again >= 0 ? fdopendir(again) : NULL;
    if (again >= 0 && !d)
        close(again);
    for (struct dirent *entry; d && (entry = readdir(d));) {
        sight found;
        if (strncmp(entry->d_name, l->name, length) == 0 && entry->d_name[length] == '.' &&
            look_at(l, entry->d_name, &found) == 0 && age_of(l, &found) > SMP__LOCK_LEASE_S)
            unlinkat(l->directory, entry->d_name, 0);
    }
    if (d)
        closedir(d);
}

static smp_status take_lock(smp__folder_lock *l, double patience_s, double *left_s)
{
    const double until_s = smp_clock_s() + patience_s;
    char beside[NAME_BYTES];
    bool placed = false;
    snprintf(beside, sizeof beside, "%s.%s", l->name, l->own.job);
    l->file = smp_file_create(l->directory, beside);
    if (l->file < 0)
        return cannot_lock(l, errno);
    const int error = write_text(l->file, l->text);
    smp_status status = error == 0 ? SMP_OK : cannot_lock(l, error);
    for (int i = 0; status == SMP_OK && !placed; i++)
        status =
            i < ATTEMPTS ? try_lock(l, beside, until_s, left_s, &placed) : cannot_lock(l, EBUSY);
    unlinkat(l->directory, beside, 0);
    if (status == SMP_OK)
        remove_old(l);
    return status;
}

static void destroy(smp__folder_lock *l)
{
    if (l->file >= 0)
        close(l->file);
    if (l->directory >= 0)
        close(l->directory);
    free(l->path);
    free(l);
}

smp_status smp__folder_lock_take_as(const char *directory, const char *name, double patience_s,
                                    double *left_s, smp__folder_lock **out)
{
    smp__folder_lock *l = calloc(1, sizeof *l);
    *left_s = -1.0;
    if (!l || !(l->path = strdup(directory))) {
        free(l);
        return smp_fail_memory(sizeof *l);
    }
    l->name = name;
    l->file = -1;
    l->directory = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    smp_status status = l->directory >= 0 ? describe_self(&l->own) : cannot_lock(l, errno);
    snprintf(l->text, sizeof l->text,
             "SMP lock 1\nhost %s\nboot %s\nspace %s\npid %" PRId64 "\nstart %" PRIu64 "\njob %s\n",
             l->own.host, l->own.boot, l->own.space, l->own.pid, l->own.start, l->own.job);
    if (status == SMP_OK)
        status = take_lock(l, patience_s, left_s);
    if (status == SMP_OK)
        *out = l;
    else
        destroy(l);
    return status;
}

smp_status smp__folder_lock_take(const char *directory, double patience_s, smp__folder_lock **out)
{
    double left_s;
    return smp__folder_lock_take_as(directory, SMP__SAVE_LOCK, patience_s, &left_s, out);
}

static void *renew(void *lock)
{
    smp__folder_lock *l = lock;
    struct timespec next;
    clock_gettime(CLOCK_MONOTONIC, &next);
    pthread_mutex_lock(&l->guard);
    while (!l->ends) {
        const double at = (double)next.tv_nsec + 1e9 * l->period_s;
        next.tv_sec += (time_t)(at / 1e9);
        next.tv_nsec = (long)(at - 1e9 * (double)(time_t)(at / 1e9));
        while (!l->ends && pthread_cond_timedwait(&l->changed, &l->guard, &next) != ETIMEDOUT)
            ;
        futimens(l->file, NULL); /* of whom it is by now, who writes finds out */
    }
    pthread_mutex_unlock(&l->guard);
    return NULL;
}

void smp__folder_lock_keep(smp__folder_lock *l, double period_s)
{
    pthread_condattr_t monotonic;
    l->period_s = period_s;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&l->guard, NULL);
    pthread_cond_init(&l->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    l->kept = smp__own_core_start(&l->thread, renew, l);
    if (!l->kept) {
        pthread_cond_destroy(&l->changed);
        pthread_mutex_destroy(&l->guard);
    }
}

smp_status smp__folder_lock_check(const smp__folder_lock *l)
{
    sight found = {0};
    int error = ENOENT;
    for (int i = 0; i < LOOKS && error == ENOENT; i++) { /* it may be being put back */
        if (i > 0)
            nap(nap_s);
        error = look_at(l, l->name, &found);
    }
    if (error == 0 && strcmp(found.text, l->text) == 0) {
        futimens(l->file, NULL);
        return SMP_OK;
    }
    if (error == 0 && found.known)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: another job saves there by now: process %" PRId64
                        " on host %s (job %s) has taken %s, nothing is written",
                        l->path, found.by.pid, found.by.host, found.by.job, l->name);
    return smp_fail(SMP_ERR_INPUT, "%s: %s is no longer this job's (%s), nothing is written",
                    l->path, l->name, error != 0 ? strerror(error) : "it has other content");
}

const char *smp__folder_lock_id(const smp__folder_lock *l)
{
    return l->own.job;
}

bool smp__folder_lock_is_of(const smp__folder_lock *l, const char *directory)
{
    struct stat own, there;
    return l && fstat(l->directory, &own) == 0 && stat(directory, &there) == 0 &&
           own.st_dev == there.st_dev && own.st_ino == there.st_ino;
}

static void stop_thread(smp__folder_lock *l)
{
    if (!l->kept)
        return;
    pthread_mutex_lock(&l->guard);
    l->ends = true;
    pthread_cond_signal(&l->changed);
    pthread_mutex_unlock(&l->guard);
    pthread_join(l->thread, NULL);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->guard);
}

/* Under held_guard. */
static smp_status join_held(const char *directory, double patience_s, double period_s,
                            smp__folder_lock **out)
{
    smp__folder_lock *l = held;
    while (l && !smp__folder_lock_is_of(l, directory))
        l = l->next;
    if (l) {
        SMP_TRY(smp__folder_lock_check(l));
        l->joined++;
        *out = l;
        return SMP_OK;
    }
    SMP_TRY(smp__folder_lock_take(directory, patience_s, &l));
    smp__folder_lock_keep(l, period_s);
    l->next = held;
    *out = held = l;
    return SMP_OK;
}

smp_status smp__folder_lock_join(const char *directory, double patience_s, double period_s,
                                 smp__folder_lock **out)
{
    pthread_mutex_lock(&held_guard);
    const smp_status status = join_held(directory, patience_s, period_s, out);
    pthread_mutex_unlock(&held_guard);
    return status;
}

/* Is it the last job's of this process? Then it is no longer among those held. */
static bool leave_held(smp__folder_lock *l)
{
    pthread_mutex_lock(&held_guard);
    const bool last = l->joined == 0;
    if (!last)
        l->joined--;
    for (smp__folder_lock **at = &held; last && *at; at = &(*at)->next)
        if (*at == l) {
            *at = l->next;
            break;
        }
    pthread_mutex_unlock(&held_guard);
    return last;
}

void smp__folder_lock_release(smp__folder_lock *l)
{
    sight found;
    if (!l || !leave_held(l))
        return;
    stop_thread(l);
    if (look_at(l, l->name, &found) == 0 && strcmp(found.text, l->text) == 0)
        (void)remove_lock(l, &found, true); /* what stays counts no more when the process ends */
    destroy(l);
}

void smp__folder_lock_drop(const smp__folder_lock *l)
{
    struct stat own, there;
    if (l && fstat(l->file, &own) == 0 &&
        fstatat(l->directory, l->name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
        own.st_dev == there.st_dev && own.st_ino == there.st_ino)
        unlinkat(l->directory, l->name, 0);
}
