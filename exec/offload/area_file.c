/* A file without a name, gone with the process. Its blocks are reserved when it is opened: a disk
 * that is full is told before the first step. What the host works on where it lies is mapped, the
 * rest is read and written, so that it takes none of the process's own memory. */
#define _GNU_SOURCE /* mkostemp */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "exec/offload/offload_area.h"
#include "graph/base/text.h"

typedef struct far_file {
    int fd;
    int64_t bytes;
    char *base; /* NULL: not mapped */
    char folder[];
} far_file;

static bool file_suits(const smp_offload_area_options *options)
{
    return options->device->host_memory && options->folder;
}

static void file_close(void *context)
{
    far_file *f = context;
    if (f->base)
        munmap(f->base, (size_t)f->bytes);
    if (f->fd >= 0)
        close(f->fd);
    free(f);
}

static smp_status open_unlinked(far_file *f)
{
    static const char name[] = "/smp-offload-XXXXXX";
    const size_t bytes = strlen(f->folder) + sizeof name;
    char *path = malloc(bytes);
    if (!path)
        return smp_fail_memory(bytes);
    snprintf(path, bytes, "%s%s", f->folder, name);
    f->fd = mkostemp(path, O_CLOEXEC);
    smp_status status = SMP_OK;
    if (f->fd < 0)
        status = smp_fail(SMP_ERR_INPUT, "offload to '%s': no file can be made there: %s",
                          f->folder, strerror(errno));
    else
        unlink(path);
    free(path);
    return status;
}

static smp_status file_open(const smp_offload_area_options *options, void **context)
{
    const size_t length = strlen(options->folder) + 1;
    far_file *f = malloc(sizeof *f + length);
    char text[32];
    if (!f)
        return smp_fail_memory(sizeof *f + length);
    *f = (far_file){.fd = -1, .bytes = options->bytes > 0 ? options->bytes : 1};
    memcpy(f->folder, options->folder, length);
    *context = f;
    SMP_TRY(open_unlinked(f));
    int error;
    do
        error = posix_fallocate(f->fd, 0, (off_t)f->bytes);
    while (error == EINTR);
    if (error == 0)
        return SMP_OK;
    return smp_fail(SMP_ERR_FAILED, "offload to '%s': %s cannot be reserved there: %s", f->folder,
                    smp_format_bytes(text, sizeof text, f->bytes), strerror(error));
}

static smp_status file_base(void *context, char **base)
{
    far_file *f = context;
    if (!f->base) {
        void *at = mmap(NULL, (size_t)f->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, f->fd, 0);
        if (at == MAP_FAILED)
            return smp_fail(SMP_ERR_FAILED, "offload to '%s': the file cannot be mapped: %s",
                            f->folder, strerror(errno));
        f->base = at;
    }
    *base = f->base;
    return SMP_OK;
}

/* n: what the call returned. */
static smp_status bad_move(const far_file *f, smp_copy_direction way, int64_t at, int64_t bytes,
                           ssize_t n)
{
    const int error = errno;
    return smp_fail(SMP_ERR_FAILED, "offload to '%s': %s %lld bytes at %lld of its file: %s",
                    f->folder, way == SMP_COPY_TO_HOST ? "writing" : "reading", (long long)bytes,
                    (long long)at, n < 0 ? strerror(error) : "it ends before them");
}

static smp_status file_move(void *context, smp_copy_direction way, void *values, int64_t at,
                            int64_t bytes)
{
    const far_file *f = context;
    for (int64_t done = 0; done < bytes;) {
        char *from = (char *)values + done;
        const size_t left = (size_t)(bytes - done);
        const ssize_t n = way == SMP_COPY_TO_HOST ? pwrite(f->fd, from, left, (off_t)(at + done))
                                                  : pread(f->fd, from, left, (off_t)(at + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return bad_move(f, way, at, bytes, n);
        done += n;
    }
    return SMP_OK;
}

const smp_offload_area_kind smp__area_file = {
    .name = "file",
    .suits = file_suits,
    .open = file_open,
    .close = file_close,
    .base = file_base,
    .move = file_move,
};
