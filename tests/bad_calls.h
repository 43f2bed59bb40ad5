/* System calls of this program that fail or wait on demand. A rule counts the calls of one kind on
 * paths that end in a given text, and lets one fail. They stand before those of the C library, so
 * the executor, which is linked into a test, calls them too. Include it in one file of a
 * program. */
#ifndef SMP_TESTS_BAD_CALLS_H
#define SMP_TESTS_BAD_CALLS_H

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tests/fd_path.h"

typedef enum bad_call {
    BAD_NONE,
    BAD_FSYNC,
    BAD_PWRITE,
    BAD_SHORT_PWRITE, /* half the bytes of every call from there on, and no error */
    BAD_PREAD,
    BAD_FTRUNCATE,
    BAD_CLOSE,
    BAD_RENAME,
    BAD_UNLINK,
    BAD_THREAD /* pthread_create; of no path */
} bad_call;

static struct {
    bad_call call;
    const char *end; /* of the path */
    int after;       /* so many calls do as they should */
    int error;       /* errno of the one after them */
} bad_rule;

static atomic_int held;                    /* an fsync of a file "*.part" waits until it is 0 */
static atomic_int n_synced;                /* ... and counts itself when done */
static atomic_int n_joined;                /* threads joined less threads made */
static void (*bad_seen)(const char *path); /* called by every fsync of a file, on its thread */

static int bad_applies(bad_call call, const char *path)
{
    if (bad_rule.call != call || !ends_in(path, bad_rule.end) || bad_rule.after-- > 0)
        return 0;
    if (call != BAD_SHORT_PWRITE)
        bad_rule.call = BAD_NONE;
    errno = bad_rule.error;
    return 1;
}

int fsync(int fd)
{
    char path[4096];
    const struct timespec nap = {.tv_nsec = 1000 * 1000};
    fd_path(fd, path);
    if (bad_seen)
        bad_seen(path);
    if (ends_in(path, ".part")) {
        while (atomic_load(&held))
            nanosleep(&nap, NULL);
        atomic_fetch_add(&n_synced, 1);
    }
    return bad_applies(BAD_FSYNC, path) ? -1 : (int)syscall(SYS_fsync, fd);
}

ssize_t pwrite(int fd, const void *bytes, size_t n, off_t offset)
{
    char path[4096];
    if (bad_applies(BAD_PWRITE, fd_path(fd, path)))
        return bad_rule.error == 0 ? 0 : -1;
    if (bad_applies(BAD_SHORT_PWRITE, path))
        n = (n + 1) / 2;
    return syscall(SYS_pwrite64, fd, bytes, n, offset);
}

ssize_t pread(int fd, void *bytes, size_t n, off_t offset)
{
    char path[4096];
    if (bad_applies(BAD_PREAD, fd_path(fd, path)))
        return -1;
    return syscall(SYS_pread64, fd, bytes, n, offset);
}

int ftruncate(int fd, off_t length)
{
    char path[4096];
    if (bad_applies(BAD_FTRUNCATE, fd_path(fd, path)))
        return -1;
    return (int)syscall(SYS_ftruncate, fd, length);
}

int close(int fd)
{
    char path[4096];
    const int bad = bad_rule.call == BAD_CLOSE && bad_applies(BAD_CLOSE, fd_path(fd, path));
    const int result = (int)syscall(SYS_close, fd);
    if (bad)
        errno = bad_rule.error;
    return bad ? -1 : result;
}

int rename(const char *from, const char *to)
{
    return bad_applies(BAD_RENAME, to) ? -1 : (int)syscall(SYS_rename, from, to);
}

int unlink(const char *path)
{
    return bad_applies(BAD_UNLINK, path) ? -1 : (int)syscall(SYS_unlink, path);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*work)(void *),
                   void *context)
{
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = NULL;
    if (bad_applies(BAD_THREAD, ""))
        return EAGAIN;
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    atomic_fetch_sub(&n_joined, 1);
    return real(thread, attributes, work, context);
}

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
#define BAD_ALLOCATIONS

/* The C library's own allocator, under the names that remain when the public ones are replaced. */
void *__libc_malloc(size_t bytes);
void *__libc_realloc(void *block, size_t bytes);

static size_t refused_bytes; /* an allocation of so many fails; 0: none */

__attribute__((visibility("default"))) void *malloc(size_t bytes)
{
    return bytes > 0 && bytes == refused_bytes ? NULL : __libc_malloc(bytes);
}

__attribute__((visibility("default"))) void *realloc(void *block, size_t bytes)
{
    return bytes > 0 && bytes == refused_bytes ? NULL : __libc_realloc(block, bytes);
}

#endif

int pthread_join(pthread_t thread, void **result)
{
    int (*real)(pthread_t, void **) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_join");
    atomic_fetch_add(&n_joined, 1);
    return real(thread, result);
}

#endif
