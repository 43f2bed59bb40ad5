/* Files: reading one whole with a size limit, and writing, at once or in parts, so that a reader
 * sees the old content or the new one, never a part. */
#include "graph/base/text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "graph/base/arena.h"

static const char *kind_of(mode_t mode)
{
    return S_ISDIR(mode) ? "a directory" : S_ISFIFO(mode) ? "a pipe" : "a device or socket";
}

smp_status smp_file_open(const char *path, int *fd, int64_t *bytes)
{
    struct stat info;
    /* Not blocking: opening a pipe would wait for a writer for ever. */
    const int file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (file < 0)
        return smp_fail(errno == ENOMEM ? SMP_ERR_NO_MEMORY : SMP_ERR_INPUT, "%s: cannot open: %s",
                        path, strerror(errno));
    smp_status status = SMP_OK;
    if (fstat(file, &info) != 0)
        status = smp_fail(SMP_ERR_INPUT, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        status = smp_fail(SMP_ERR_INPUT, "%s: got %s, expected a regular file", path,
                          kind_of(info.st_mode));
    if (status != SMP_OK) {
        close(file);
        return status;
    }
    *fd = file;
    *bytes = info.st_size;
    return SMP_OK;
}

int smp_file_create(int directory, const char *path)
{
    return openat(directory, path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
}

/* The size is a hint: some files of the system say 0, and a file may grow while it is read. */
static size_t size_hint(int64_t size, size_t max_bytes)
{
    return ((uint64_t)size < max_bytes ? (size_t)size : max_bytes) + 2;
}

smp_status smp_file_read(const char *path, size_t max_bytes, char **data, size_t *bytes)
{
    char *buffer = NULL;
    size_t capacity = 0, used = 0;
    int64_t size;
    int file;
    SMP_TRY(smp_file_open(path, &file, &size));
    smp_status status = smp_array_reserve(&buffer, &capacity, 1, size_hint(size, max_bytes));
    while (status == SMP_OK) {
        const ssize_t n = read(file, buffer + used, capacity - used - 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            status = smp_fail(SMP_ERR_INPUT, "%s: cannot read: %s", path, strerror(errno));
        if (n <= 0)
            break;
        used += (size_t)n;
        if (used > max_bytes)
            status =
                smp_fail(SMP_ERR_INPUT, "%s: larger than the limit of %zu bytes", path, max_bytes);
        else if (used + 1 == capacity)
            status = smp_array_reserve(&buffer, &capacity, 1, capacity + 1);
    }
    close(file);
    if (status != SMP_OK) {
        free(buffer);
        return status;
    }
    buffer[used] = '\0';
    *data = buffer;
    *bytes = used;
    return SMP_OK;
}

struct smp_writer {
    int file;        /* -1: finished */
    char *path;      /* as given, for messages */
    char *target;    /* what the file is going to be; NULL: written to in place */
    char *temporary; /* where it is until then */
};

static smp_status cannot_write(const smp_writer *w)
{
    return smp_fail(SMP_ERR_FAILED, "%s: cannot write: %s", w->path, strerror(errno));
}

/* The number of the process that a temporary file is of, "WHAT.PID-ATTEMPT.tmp"; 0: it is none. */
static long owner_of(const char *name, const char *what)
{
    const size_t length = strlen(what);
    long pid = 0;
    int attempt, used = 0;
    if (strncmp(name, what, length) != 0 ||
        sscanf(name + length, ".%ld-%d.tmp%n", &pid, &attempt, &used) != 2 || used == 0 ||
        name[length + (size_t)used] != '\0')
        return 0;
    return pid;
}

/* Removes files of a process that is gone, on whatever machine: who writes has it locked. */
static void remove_dead(int directory, const char *name, long pid)
{
    if (pid <= 0 || kill((pid_t)pid, 0) == 0 || errno != ESRCH)
        return;
    const int file = openat(directory, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file >= 0 && flock(file, LOCK_EX | LOCK_NB) == 0)
        unlinkat(directory, name, 0);
    if (file >= 0)
        close(file);
}

void smp_writer_sweep(const char *path)
{
    const char *slash = strrchr(path, '/'), *what = slash ? slash + 1 : path;
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) + 1 : 1,
             slash ? path : ".");
    DIR *d = opendir(folder);
    for (struct dirent *entry; d && (entry = readdir(d));)
        remove_dead(dirfd(d), entry->d_name, owner_of(entry->d_name, what));
    if (d)
        closedir(d);
}

/* Creates a file that no sweep removes, while it is open. -1: try another name. */
static int create_locked(const char *path)
{
    struct stat info;
    const int file = smp_file_create(AT_FDCWD, path);
    if (file < 0)
        return -1;
    const bool taken = flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (!taken && fstat(file, &info) == 0 && info.st_nlink > 0)
        return file;
    close(file);
    errno = EEXIST;
    return -1;
}

/* Opens a new file beside `target`. */
static int open_beside(smp_writer *w)
{
    const size_t size = strlen(w->target) + 48;
    w->temporary = malloc(size);
    int file = -1;
    if (!w->temporary)
        return file;
    smp_writer_sweep(w->target);
    for (int attempt = 0; attempt < 100; attempt++) {
        snprintf(w->temporary, size, "%s.%ld-%d.tmp", w->target, (long)getpid(), attempt);
        file = create_locked(w->temporary);
        if (file >= 0 || errno != EEXIST)
            break;
    }
    return file;
}

static smp_status open_file(smp_writer *w)
{
    struct stat info;
    const bool exists = stat(w->path, &info) == 0;
    if (exists && S_ISDIR(info.st_mode))
        return smp_fail(SMP_ERR_FAILED, "%s: cannot write: it is a directory", w->path);
    if (exists && !S_ISREG(info.st_mode)) { /* a pipe, terminal or device cannot be replaced */
        w->file = open(w->path, O_WRONLY | O_CLOEXEC);
        return w->file >= 0 ? SMP_OK
                            : smp_fail(SMP_ERR_FAILED, "%s: cannot open for writing: %s", w->path,
                                       strerror(errno));
    }
    /* A link keeps pointing where it points; its target is replaced. */
    w->target = exists ? realpath(w->path, NULL) : NULL;
    if (exists && !w->target && errno == ENOMEM)
        return smp_fail_memory(PATH_MAX);
    if (!w->target && !(w->target = strdup(w->path)))
        return smp_fail_memory(strlen(w->path) + 1);
    w->file = open_beside(w);
    if (w->file >= 0)
        return SMP_OK;
    return smp_fail(w->temporary ? SMP_ERR_FAILED : SMP_ERR_NO_MEMORY, "%s: cannot create: %s",
                    w->path, strerror(errno));
}

static void destroy(smp_writer *w)
{
    free(w->path);
    free(w->target);
    free(w->temporary);
    free(w);
}

smp_status smp_writer_open(const char *path, smp_writer **out)
{
    smp_writer *w = calloc(1, sizeof(*w));
    if (!w || !(w->path = strdup(path))) {
        free(w);
        return smp_fail_memory(sizeof(*w));
    }
    smp_status status = open_file(w);
    if (status == SMP_OK)
        *out = w;
    else
        destroy(w);
    return status;
}

smp_status smp_writer_add(smp_writer *w, const void *data, size_t bytes)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t n = write(w->file, at, bytes < (1u << 30) ? bytes : (1u << 30));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return cannot_write(w);
        at += n;
        bytes -= (size_t)n;
    }
    return SMP_OK;
}

/* On the disk before the name changes: after a power cut the new name has the new content. */
smp_status smp_writer_finish(smp_writer *w)
{
    smp_status status = SMP_OK;
    if (w->temporary && fsync(w->file) != 0 && errno != EINVAL)
        status = cannot_write(w);
    if (close(w->file) != 0 && status == SMP_OK)
        status = cannot_write(w);
    w->file = -1;
    return status;
}

smp_status smp_writer_close(smp_writer *w, smp_status status)
{
    if (status == SMP_OK && w->file >= 0)
        status = smp_writer_finish(w);
    if (w->file >= 0)
        close(w->file);
    if (status == SMP_OK && w->temporary && rename(w->temporary, w->target) != 0)
        status = smp_fail(SMP_ERR_FAILED, "%s: cannot replace: %s", w->path, strerror(errno));
    if (status != SMP_OK && w->temporary)
        unlink(w->temporary);
    destroy(w);
    return status;
}

smp_status smp_file_write(const char *path, const char *data, size_t bytes)
{
    smp_writer *w = NULL;
    SMP_TRY(smp_writer_open(path, &w));
    return smp_writer_close(w, smp_writer_add(w, data, bytes));
}
