/* What one rank does for a checkpoint that is being saved. Every rank opens the file under its
 * temporary name, whoever comes first makes it, and writes what it owns at the offset that the
 * model gives it. Every byte has one writer, so nothing of an older file can stay in it. */
#include "exec/state/checkpoint_part.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exec/state/checkpoint_file.h"
#include "exec/state/device_wait.h"

enum { TEMPORARY_BYTES = SMP__CHECKPOINT_PATH_BYTES + 8 };

static void temporary_path(const smp *s, char path[TEMPORARY_BYTES])
{
    smp__checkpoint_path(path, s->saving.directory, s->saving.step);
    strcat(path, SMP__CHECKPOINT_PART);
}

static int64_t array_bytes(const smp *s, const smp_memory_param *param)
{
    return s->graph->param[param->param].elements * (int64_t)sizeof(float);
}

/* The values of a weight, then the states of the optimizer. */
static const char *array_of(const smp *s, const smp_memory_param *param, int k)
{
    return s->arena + (k == 0 ? param->weight : param->state[k - 1]);
}

static int64_t part_bytes(const smp *s)
{
    int64_t bytes = 0;
    for (int32_t i = 0; i < s->memory->n_param; i++)
        if (s->memory->param[i].owner)
            bytes += array_bytes(s, &s->memory->param[i]) * (1 + smp__job_states(s));
    return bytes;
}

smp_status smp__part_copy(smp *s)
{
    smp__saving *v = &s->saving;
    const size_t size = (size_t)part_bytes(s) + 1;
    if (!v->staging && !(v->staging = malloc(size)))
        return smp_fail_memory(size);
    char *at = v->staging;
    for (int32_t i = 0; i < s->memory->n_param; i++) {
        const smp_memory_param *param = &s->memory->param[i];
        const int64_t bytes = array_bytes(s, param);
        for (int k = 0; param->owner && k <= smp__job_states(s); k++, at += bytes)
            SMP_TRY(smp__copy_out(s, at, array_of(s, param, k), bytes));
    }
    v->part = v->staging;
    return SMP_OK;
}

/* Values, states and hash of one weight. *part moves on behind them. */
static smp_status write_weight(const smp *s, const smp_memory_param *param, const char **part,
                               int fd, const char *path)
{
    const int64_t bytes = array_bytes(s, param);
    int64_t offset = smp__checkpoint_offset(s->graph, param->param, smp__job_states(s));
    uint64_t hash = 0;
    for (int k = 0; k <= smp__job_states(s); k++, offset += bytes) {
        const char *values = *part ? *part : array_of(s, param, k);
        SMP_TRY(smp__checkpoint_transfer(fd, (void *)values, bytes, offset, true, path));
        hash = smp_hash(hash, values, (size_t)bytes);
        if (*part)
            *part += bytes;
    }
    return smp__checkpoint_transfer(fd, &hash, sizeof(hash), offset, true, path);
}

static smp_status write_weights(const smp *s, int fd, const char *path)
{
    const char *part = s->saving.part;
    for (int32_t i = 0; i < s->memory->n_param; i++)
        if (s->memory->param[i].owner)
            SMP_TRY(write_weight(s, &s->memory->param[i], &part, fd, path));
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
    smp_status status = s->comm.pipeline_rank == 0 ? write_header(s, fd, path) : SMP_OK;
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
