/* The lock of agents; see the header. The file names its holder by process and start time. */
#include "tools/elastic/hosts/agent_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "exec/checkpoint/folder_lock.h"
#include "graph/base/clock.h"
#include "tools/elastic/hosts/rank_watch.h"

enum { TEXT_BYTES = 64, LOOK_MS = 2 };
static const double ask_s = 1.0, kill_s = 3.0; /* for an agent to leave; to end */

static smp_status open_file(smp__agent_lock *lock)
{
    struct stat info;
    lock->file = open(lock->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (lock->file < 0)
        return smp_fail(SMP_ERR_INPUT, "%s: cannot be opened: %s", lock->path, strerror(errno));
    if (fstat(lock->file, &info) != 0 || !S_ISREG(info.st_mode) || info.st_nlink > 1 ||
        info.st_uid != geteuid() || (info.st_mode & 077) != 0)
        return smp_fail(SMP_ERR_INPUT, "%s: expected a file of this user alone", lock->path);
    return SMP_OK;
}

/* The last holder may have removed the file after it was opened here. */
static bool is_there(const smp__agent_lock *lock)
{
    struct stat held, there;
    return fstat(lock->file, &held) == 0 && lstat(lock->path, &there) == 0 &&
           held.st_ino == there.st_ino && held.st_dev == there.st_dev;
}

static int open_holder(const smp__agent_lock *lock)
{
    char text[TEXT_BYTES] = "";
    int64_t pid = 0;
    uint64_t start = 0;
    const ssize_t n = pread(lock->file, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    return sscanf(text, "%" SCNd64 " %" SCNu64, &pid, &start) == 2 && pid != getpid()
               ? smp__process_open(pid, start)
               : -1;
}

/* Asks the holder, once for each signal. */
static void ask(const smp__agent_lock *lock, int number)
{
    const int holder = open_holder(lock);
    if (holder < 0)
        return;
    smp__process_signal(holder, number);
    close(holder);
}

static smp_status note_holder(const smp__agent_lock *lock)
{
    char text[TEXT_BYTES];
    bool over;
    const int n = snprintf(text, sizeof text, "%d %" PRIu64 "\n", (int)getpid(),
                           smp__process_start(getpid(), &over));
    return ftruncate(lock->file, 0) == 0 && pwrite(lock->file, text, (size_t)n, 0) == n
               ? SMP_OK
               : smp_fail(SMP_ERR_FAILED, "%s: cannot be written: %s", lock->path, strerror(errno));
}

static smp_status wait_lock(smp__agent_lock *lock)
{
    const struct timespec pause = {.tv_nsec = LOOK_MS * 1000000L};
    const double begin_s = smp_clock_s();
    bool asked = false, killed = false;
    while (flock(lock->file, LOCK_EX | LOCK_NB) != 0) {
        const double waited_s = smp_clock_s() - begin_s;
        if (errno != EWOULDBLOCK && errno != EINTR)
            return smp_fail(SMP_ERR_INPUT, "%s: cannot be locked: %s", lock->path, strerror(errno));
        if (waited_s > kill_s)
            return smp_fail(SMP_ERR_FAILED, "%s: an earlier agent does not end", lock->path);
        if (!asked || (!killed && waited_s > ask_s)) {
            ask(lock, asked ? SIGKILL : SIGTERM);
            killed = asked;
            asked = true;
        }
        nanosleep(&pause, NULL);
    }
    return SMP_OK;
}

smp_status smp__agent_lock_take(const char *keep, smp__agent_lock *out)
{
    out->file = -1;
    if (snprintf(out->path, sizeof out->path, "%s-agent", keep) >= (int)sizeof out->path)
        return smp_fail(SMP_ERR_INPUT, "%s: the name is too long", keep);
    for (;;) {
        smp_status status = open_file(out);
        if (status == SMP_OK)
            status = wait_lock(out);
        if (status == SMP_OK && is_there(out))
            return note_holder(out);
        if (out->file >= 0)
            close(out->file);
        out->file = -1;
        SMP_TRY(status);
    }
}

void smp__agent_lock_drop(smp__agent_lock *lock)
{
    if (lock->file < 0)
        return;
    unlink(lock->path); /* while it is held: it is this one's */
    close(lock->file);
    lock->file = -1;
}
