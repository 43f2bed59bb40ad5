/* Preloaded into a program: a disk that fails, or takes its time, where a path ends as the
 * environment says. fsync appends the path to the file $SYNC_LOG; it fails (EIO) at $FAIL_SYNC; at
 * $HOLD_SYNC it waits until the file $HOLD_UNTIL is there, for a minute at most. Of a write or
 * pwrite at $FAIL_WRITE half the bytes are written, the next one finds the disk full; $FAIL_AFTER
 * bytes are written before that. A pread at $SLOW_READ takes 10 ms. The process is gone at the
 * $KILL_AT-th change of a name whose path has $KILL_IN in it, before it is done. With $BAD_RANK all
 * this is so on one rank. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tests/fd_path.h"

static const char *setting(const char *name)
{
    const char *bad = getenv("BAD_RANK"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    return bad && rank && strcmp(bad, rank) != 0 ? NULL : getenv(name);
}

static int is_at(const char *path, const char *name)
{
    const char *end = setting(name);
    return end && ends_in(path, end);
}

static void hold(const char *until)
{
    const struct timespec nap = {.tv_nsec = 10 * 1000 * 1000};
    for (int i = 0; i < 6000 && access(until, F_OK) != 0; i++)
        nanosleep(&nap, NULL);
}

int fsync(int fd)
{
    char path[4096];
    fd_path(fd, path);
    const char *log = setting("SYNC_LOG"), *until = setting("HOLD_UNTIL");
    FILE *file = log ? fopen(log, "a") : NULL;
    if (file) {
        fprintf(file, "%s\n", path);
        fclose(file);
    }
    if (until && is_at(path, "HOLD_SYNC"))
        hold(until);
    if (is_at(path, "FAIL_SYNC")) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_fsync, fd);
}

/* Is the disk full? Else *n becomes what of it still fits. */
static int is_full(int fd, size_t *n)
{
    static _Thread_local int full;
    static _Thread_local long long written;
    const char *after = setting("FAIL_AFTER");
    char path[4096];
    if (!setting("FAIL_WRITE"))
        return 0;
    fd_path(fd, path);
    if (!is_at(path, "FAIL_WRITE"))
        return 0;
    written += (long long)*n;
    if (after && written <= atoll(after))
        return 0;
    if (full) {
        errno = ENOSPC;
        return 1;
    }
    full = 1;
    *n /= 2;
    return 0;
}

ssize_t write(int fd, const void *bytes, size_t n)
{
    return is_full(fd, &n) ? -1 : syscall(SYS_write, fd, bytes, n);
}

ssize_t pwrite(int fd, const void *bytes, size_t n, off_t offset)
{
    return is_full(fd, &n) ? -1 : syscall(SYS_pwrite64, fd, bytes, n, offset);
}

ssize_t pread(int fd, void *bytes, size_t n, off_t offset)
{
    const struct timespec nap = {.tv_nsec = 10 * 1000 * 1000};
    char path[4096];
    if (setting("SLOW_READ")) {
        fd_path(fd, path);
        if (is_at(path, "SLOW_READ"))
            nanosleep(&nap, NULL);
    }
    return syscall(SYS_pread64, fd, bytes, n, offset);
}

static void perhaps_die(const char *path)
{
    static int calls;
    const char *in = setting("KILL_IN"), *at = setting("KILL_AT");
    if (in && at && strstr(path, in) && ++calls == atoi(at))
        _exit(9);
}

int rename(const char *from, const char *to)
{
    perhaps_die(to);
    return (int)syscall(SYS_rename, from, to);
}

int link(const char *from, const char *to)
{
    perhaps_die(to);
    return (int)syscall(SYS_link, from, to);
}

int unlink(const char *path)
{
    perhaps_die(path);
    return (int)syscall(SYS_unlink, path);
}
