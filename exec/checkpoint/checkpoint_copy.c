/* Copies of checkpoints; see the header. What is copied is not looked at: who loads it finds what
 * is damaged, and takes the one before. */
#include "exec/checkpoint/checkpoint_copy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exec/checkpoint/checkpoint_file.h"
#include "exec/checkpoint/folder_lock.h"
#include "exec/checkpoint/kept_folder.h"

enum { BLOCK = 1 << 20, TEXT_BYTES = SMP__CHECKPOINT_HEADER_BYTES - 8 };

static const double patience_s = 5.0; /* with a job that is about to end */

/* The highest step; 0: none. */
static smp_status find_last(const char *directory, int64_t *step)
{
    smp__saved *list = NULL;
    int n = 0;
    *step = 0;
    SMP_TRY(smp__checkpoint_list(directory, &list, &n));
    for (int i = 0; i < n; i++)
        *step = list[i].saved != INT64_MAX && list[i].step > *step ? list[i].step : *step;
    free(list);
    return SMP_OK;
}

/* The name that the header gives the model: its last line. */
static smp_status read_model(int fd, const smp__checkpoint_header *header, const char *path,
                             char model[SMP__CHECKPOINT_HEADER_BYTES])
{
    char text[SMP__CHECKPOINT_HEADER_BYTES];
    SMP_TRY(smp__checkpoint_transfer(fd, text, TEXT_BYTES, header->at, false, path));
    text[TEXT_BYTES] = '\0';
    const char *line = NULL;
    for (const char *at = text; (at = strstr(at, "\nmodel ")); at++)
        line = at + strlen("\nmodel ");
    if (!line)
        return smp_fail(SMP_ERR_INPUT, "%s: the header names no model", path);
    snprintf(model, SMP__CHECKPOINT_HEADER_BYTES, "%.*s", (int)strcspn(line, "\n"), line);
    return SMP_OK;
}

static smp_status copy_bytes(int from, const char *from_path, int to, const char *to_path,
                             int64_t bytes)
{
    char *block = malloc(BLOCK);
    smp_status status = block ? SMP_OK : smp_fail_memory(BLOCK);
    for (int64_t at = 0; status == SMP_OK && at < bytes; at += BLOCK) {
        const int64_t n = bytes - at < BLOCK ? bytes - at : BLOCK;
        status = smp__checkpoint_transfer(from, block, n, at, false, from_path);
        if (status == SMP_OK)
            status = smp__checkpoint_transfer(to, block, n, at, true, to_path);
    }
    free(block);
    return status;
}

/* The file under its temporary name: the same but for the number of its save. */
static smp_status write_copy(int from, const char *from_path, int64_t bytes, const char *directory,
                             const char *part)
{
    smp__checkpoint_header header = {0};
    char model[SMP__CHECKPOINT_HEADER_BYTES];
    SMP_TRY(smp__checkpoint_header_read(from, from_path, &header));
    SMP_TRY(read_model(from, &header, from_path, model));
    SMP_TRY(smp__checkpoint_next(directory, &header.saved));
    unlink(part);
    const int to = smp_file_create(AT_FDCWD, part);
    if (to < 0)
        return smp_fail(SMP_ERR_FAILED, "%s: cannot create: %s", part, strerror(errno));
    smp_status status = copy_bytes(from, from_path, to, part, bytes);
    if (status == SMP_OK)
        status = smp__checkpoint_header_write(to, &header, model, part);
    if (status == SMP_OK)
        status = smp__checkpoint_sync(to, part);
    close(to);
    return status;
}

static smp_status copy(const char *from, const char *to, int64_t step, const char *id)
{
    char source[SMP__CHECKPOINT_PATH_BYTES], part[SMP__CHECKPOINT_PATH_BYTES],
        name[SMP__CHECKPOINT_PATH_BYTES];
    int64_t bytes = 0;
    int fd = -1;
    smp__checkpoint_path(source, from, step);
    smp__checkpoint_path(name, to, step);
    smp__checkpoint_part_path(part, to, id, step);
    SMP_TRY(smp_file_open(source, &fd, &bytes));
    smp_status status = write_copy(fd, source, bytes, to, part);
    if (status == SMP_OK && rename(part, name) != 0)
        status = smp_fail(SMP_ERR_FAILED, "%s: cannot be renamed: %s", part, strerror(errno));
    if (status == SMP_OK)
        status = smp__checkpoint_folder_sync(to);
    else
        unlink(part);
    close(fd);
    return status;
}

smp_status smp__checkpoint_copy_last(const char *from, const char *to, int64_t *step)
{
    smp__folder_lock *lock = NULL;
    bool later = false;
    int64_t last = 0;
    *step = 0;
    SMP_TRY(smp__kept_is_later(from, to, &later));
    if (later)
        SMP_TRY(find_last(from, &last));
    if (last == 0)
        return SMP_OK;
    SMP_TRY(smp__folder_lock_take(to, patience_s, &lock));
    const smp_status status = copy(from, to, last, smp__folder_lock_id(lock));
    smp__folder_lock_release(lock);
    if (status == SMP_OK)
        *step = last;
    return status;
}
