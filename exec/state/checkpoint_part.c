/* What one rank does for a checkpoint that is being saved. Every rank opens the file under its
 * temporary name, whoever comes first makes it, and writes its share of the pieces at the offsets
 * that the model gives them. Every byte has one writer, so nothing of an older file can stay in it.
 */
#include "exec/state/checkpoint_part.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exec/state/checkpoint_file.h"
#include "exec/state/device_wait.h"
#include "exec/state/shards.h"

enum { TEMPORARY_BYTES = SMP__CHECKPOINT_PATH_BYTES + 8 };

static void temporary_path(const smp *s, char path[TEMPORARY_BYTES])
{
    smp__checkpoint_path(path, s->saving.directory, s->saving.step);
    strcat(path, SMP__CHECKPOINT_PART);
}

/* What this rank writes of a weight: of the own part, which every group has, its share of the
 * pieces. Those of small weights fall to the groups in turn. */
static smp__range saved_range(const smp *s, int32_t index)
{
    const int groups = s->comm.ddp_size / s->comm.shard_size;
    const int64_t turn = (s->comm.replica / s->comm.shard_size + index) % groups;
    const smp__range own = smp__own_range(s, index);
    const int64_t pieces = smp__checkpoint_pieces(own.end - own.begin);
    const int64_t begin = own.begin + pieces * turn / groups * SMP_PIECE_ELEMENTS,
                  end = own.begin + pieces * (turn + 1) / groups * SMP_PIECE_ELEMENTS;
    if (!s->memory->param[index].owner || begin >= end)
        return (smp__range){0, 0};
    return (smp__range){begin, end < own.end ? end : own.end};
}

/* The values of a weight, then the states of the optimizer. */
static int64_t part_bytes(const smp *s)
{
    int64_t elements = 0;
    for (int32_t i = 0; i < s->memory->n_param; i++) {
        const smp__range range = saved_range(s, i);
        elements += range.end - range.begin;
    }
    return elements * (1 + smp__job_states(s)) * (int64_t)sizeof(float);
}

smp_status smp__part_copy(smp *s)
{
    smp__saving *v = &s->saving;
    const size_t size = (size_t)part_bytes(s) + 1;
    if (!v->staging && !(v->staging = malloc(size)))
        return smp_fail_memory(size);
    char *at = v->staging;
    for (int32_t i = 0; i < s->memory->n_param; i++) {
        const smp__range range = saved_range(s, i);
        const int64_t bytes = (range.end - range.begin) * (int64_t)sizeof(float);
        for (int k = 0; bytes > 0 && k <= smp__job_states(s); k++, at += bytes)
            SMP_TRY(smp__copy_out(s, at, smp__saved_at(s, i, k, range.begin), bytes));
    }
    v->part = v->staging;
    return SMP_OK;
}

/* Values and states of a range of one weight, and the hashes of its pieces. *part moves on behind
 * them. */
static smp_status write_range(const smp *s, int32_t index, smp__range range, const char **part,
                              int fd, const char *path)
{
    const int32_t param = s->memory->param[index].param;
    const int states = smp__job_states(s);
    const int64_t n = range.end - range.begin, bytes = n * (int64_t)sizeof(float);
    const int64_t pieces = smp__checkpoint_pieces(n);
    const int64_t hashes_bytes = pieces * (int64_t)sizeof(uint64_t);
    uint64_t *hash = malloc((size_t)hashes_bytes + 1);
    smp_status status = hash ? SMP_OK : smp_fail_memory((size_t)hashes_bytes);
    for (int k = 0; k <= states && status == SMP_OK; k++) {
        const float *values =
            *part ? (const float *)(const void *)*part : smp__saved_at(s, index, k, range.begin);
        smp__checkpoint_hash(values, n, hash);
        status = smp__checkpoint_transfer(
            fd, (void *)values, bytes,
            smp__checkpoint_values_at(s->graph, param, states, k) + 4 * range.begin, true, path);
        if (status == SMP_OK)
            status = smp__checkpoint_transfer(
                fd, hash, hashes_bytes,
                smp__checkpoint_hashes_at(s->graph, param, states, k) +
                    range.begin / SMP_PIECE_ELEMENTS * (int64_t)sizeof(uint64_t),
                true, path);
        if (*part)
            *part += bytes;
    }
    free(hash);
    return status;
}

static smp_status write_weights(const smp *s, int fd, const char *path)
{
    const char *part = s->saving.part;
    for (int32_t i = 0; i < s->memory->n_param; i++) {
        const smp__range range = saved_range(s, i);
        if (range.begin < range.end)
            SMP_TRY(write_range(s, i, range, &part, fd, path));
    }
    return SMP_OK;
}

/* ... and the length, which a file that was left under this name may have had otherwise. */
static smp_status write_header(const smp *s, int fd, const char *path)
{
    smp__checkpoint_header header = {.fingerprint = s->graph->weights_fingerprint,
                                     .step = s->saving.step,
                                     .samples = s->saving.samples,
                                     .states = smp__job_states(s)};
    snprintf(header.optimizer, sizeof(header.optimizer), "%s", s->optimizer->name);
    SMP_TRY(smp__checkpoint_next(s->saving.directory, &header.saved));
    SMP_TRY(smp__checkpoint_header_write(fd, &header, s->graph->name, path));
    if (ftruncate(fd, smp__checkpoint_offset(s->graph, s->graph->n_param, header.states)) != 0)
        return smp_fail(SMP_ERR_FAILED, "%s: cannot extend: %s", path, strerror(errno));
    return SMP_OK;
}

smp_status smp__part_write(const smp *s)
{
    char path[TEMPORARY_BYTES];
    temporary_path(s, path);
    int fd = open(path, O_CREAT | O_WRONLY, 0666);
    if (fd < 0)
        return smp_fail(SMP_ERR_FAILED, "%s: cannot create: %s", path, strerror(errno));
    smp_status status = s->comm.world_rank == 0 ? write_header(s, fd, path) : SMP_OK;
    if (status == SMP_OK)
        status = write_weights(s, fd, path);
    if (status == SMP_OK)
        status = smp__checkpoint_sync(fd, path);
    if (close(fd) != 0 && status == SMP_OK) /* network file systems report here what they lost */
        status = smp_fail(SMP_ERR_FAILED, "%s: cannot close: %s", path, strerror(errno));
    return status;
}

smp_status smp__part_name(const smp *s)
{
    char temporary[TEMPORARY_BYTES], path[SMP__CHECKPOINT_PATH_BYTES];
    const char *directory = s->saving.directory;
    temporary_path(s, temporary);
    smp__checkpoint_path(path, directory, s->saving.step);
    if (rename(temporary, path) != 0)
        return smp_fail(SMP_ERR_FAILED, "%s: cannot rename: %s", temporary, strerror(errno));
    SMP_TRY(smp__checkpoint_folder_sync(directory)); /* the rename itself must survive too */
    return smp__checkpoint_prune(directory);
}

void smp__part_abandon(const smp *s)
{
    char path[TEMPORARY_BYTES];
    temporary_path(s, path);
    unlink(path);
}
