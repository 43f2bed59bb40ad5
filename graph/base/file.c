/* Whole files: reading with a size limit, and writing so that a reader sees the old content or the
 * new one, never a part. */
#include "graph/base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "graph/base/arena.h"

/* The size is a hint only: pipes have none, and a file may grow while it is read. */
static size_t size_hint(FILE *file, size_t max_bytes)
{
    struct stat info;
    if (fstat(fileno(file), &info) != 0 || !S_ISREG(info.st_mode) || info.st_size < 0)
        return 65536;
    size_t size = (size_t)info.st_size;
    return (size < max_bytes ? size : max_bytes) + 2;
}

smp_status smp_file_read(const char *path, size_t max_bytes, char **data, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return smp_fail(errno == ENOMEM ? SMP_ERR_NO_MEMORY : SMP_ERR_INPUT, "%s: cannot open: %s",
                        path, strerror(errno));
    char *buffer = NULL;
    size_t capacity = 0;
    size_t used = 0;
    smp_status status = smp_array_reserve(&buffer, &capacity, 1, size_hint(file, max_bytes));
    while (status == SMP_OK) {
        size_t n = fread(buffer + used, 1, capacity - used - 1, file);
        used += n;
        if (used > max_bytes) {
            status =
                smp_fail(SMP_ERR_INPUT, "%s: larger than the limit of %zu bytes", path, max_bytes);
        } else if (ferror(file)) {
            status = smp_fail(SMP_ERR_INPUT, "%s: cannot read: %s", path, strerror(errno));
        } else if (used + 1 < capacity) {
            break; /* end of file */
        } else {
            status = smp_array_reserve(&buffer, &capacity, 1, capacity + 1);
        }
    }
    fclose(file);
    if (status != SMP_OK) {
        free(buffer);
        return status;
    }
    buffer[used] = '\0';
    *data = buffer;
    *bytes = used;
    return SMP_OK;
}

static smp_status write_all(int file, const char *path, const char *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(file, data, bytes < (1u << 30) ? bytes : (1u << 30));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return smp_fail(SMP_ERR_FAILED, "%s: cannot write: %s", path, strerror(errno));
        data += n;
        bytes -= (size_t)n;
    }
    return SMP_OK;
}

/* A pipe, terminal or device cannot be replaced, only written to. */
static smp_status write_in_place(const char *path, const char *data, size_t bytes)
{
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0)
        return smp_fail(SMP_ERR_FAILED, "%s: cannot open for writing: %s", path, strerror(errno));
    smp_status status = write_all(file, path, data, bytes);
    if (close(file) != 0 && status == SMP_OK)
        status = smp_fail(SMP_ERR_FAILED, "%s: cannot write: %s", path, strerror(errno));
    return status;
}

/* Opens a new file beside `path`; `name` gets its malloc'ed name. */
static int open_beside(const char *path, char **name)
{
    size_t size = strlen(path) + 48;
    char *text = malloc(size);
    if (!text) {
        errno = ENOMEM;
        return -1;
    }
    int file = -1;
    for (int attempt = 0; attempt < 100; attempt++) {
        snprintf(text, size, "%s.%ld-%d.tmp", path, (long)getpid(), attempt);
        file = open(text, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (file >= 0 || errno != EEXIST)
            break;
    }
    if (file < 0) {
        int reason = errno;
        free(text);
        errno = reason;
        return -1;
    }
    *name = text;
    return file;
}

static smp_status write_and_rename(const char *path, const char *data, size_t bytes)
{
    char *name = NULL;
    int file = open_beside(path, &name);
    if (file < 0)
        return smp_fail(errno == ENOMEM ? SMP_ERR_NO_MEMORY : SMP_ERR_FAILED,
                        "%s: cannot create: %s", path, strerror(errno));
    smp_status status = write_all(file, path, data, bytes);
    /* On the disk before the name changes: after a power cut the new name has the new content. */
    if (status == SMP_OK && fsync(file) != 0 && errno != EINVAL)
        status = smp_fail(SMP_ERR_FAILED, "%s: cannot write: %s", path, strerror(errno));
    if (close(file) != 0 && status == SMP_OK)
        status = smp_fail(SMP_ERR_FAILED, "%s: cannot write: %s", path, strerror(errno));
    if (status == SMP_OK && rename(name, path) != 0)
        status = smp_fail(SMP_ERR_FAILED, "%s: cannot replace: %s", path, strerror(errno));
    if (status != SMP_OK)
        unlink(name);
    free(name);
    return status;
}

smp_status smp_file_write(const char *path, const char *data, size_t bytes)
{
    struct stat info;
    bool exists = stat(path, &info) == 0;
    if (exists && S_ISDIR(info.st_mode))
        return smp_fail(SMP_ERR_FAILED, "%s: cannot write: it is a directory", path);
    if (exists && !S_ISREG(info.st_mode))
        return write_in_place(path, data, bytes);
    /* A link keeps pointing where it points; its target is replaced. */
    char *target = exists ? realpath(path, NULL) : NULL;
    if (exists && !target && errno == ENOMEM)
        return smp_fail_memory(PATH_MAX);
    smp_status status = write_and_rename(target ? target : path, data, bytes);
    free(target);
    return status;
}
