/* Checkpoints: one file per saved step, "checkpoint-0000000020.smp", in a directory that all ranks
 * see. Layout: a header (checkpoint_file.c), then for every weight of the model in its order the
 * values and each optimizer state, all as native floats, and a hash of them. Nothing in it depends
 * on the plan.
 *
 * The file is written under a temporary name by the owners of the weights, each at its own offset,
 * synced, and renamed when every rank is done: a file with the final name is complete. Loading takes
 * what was saved last; if that is damaged, what was saved before it, and says so. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exec/state/checkpoint_file.h"
#include "exec/state/checkpoint_folder.h"
#include "exec/state/device_wait.h"
#include "exec/state/weights.h"

enum { HASH_BYTES = 8, PATH_BYTES = SMP__CHECKPOINT_PATH_BYTES };

/* Where a weight begins in a file with so many states of the optimizer for each. */
static int64_t param_offset(const smp *s, int32_t param, int states)
{
    int64_t elements = 0;
    for (int32_t i = 0; i < param; i++)
        elements += s->graph->param[i].elements;
    return SMP__CHECKPOINT_HEADER_BYTES + elements * (1 + states) * (int64_t)sizeof(float) +
           (int64_t)param * HASH_BYTES;
}

/* One array of the arena to or from the file, and into the hash; NULL: read for the hash alone. */
static smp_status transfer_array(smp *s, char *array, int64_t bytes, int fd, int64_t offset,
                                 bool writing, const char *path, uint64_t *hash)
{
    const void *values = array;
    void *copy = NULL;
    smp_status status = SMP_OK;
    if (writing) {
        SMP_TRY(smp__copy_view(s, array, bytes, &values, &copy));
        status = smp__checkpoint_transfer(fd, (void *)values, bytes, offset, true, path);
    } else if (array && s->device->host_memory) {
        status = smp__checkpoint_transfer(fd, array, bytes, offset, false, path);
    } else {
        values = copy = malloc((size_t)bytes + 1);
        status = copy ? smp__checkpoint_transfer(fd, copy, bytes, offset, false, path)
                      : smp_fail_memory((size_t)bytes);
        if (status == SMP_OK && array)
            status = smp__copy_in(s, array, copy, bytes);
    }
    if (status == SMP_OK)
        *hash = smp_hash(*hash, values, (size_t)bytes);
    free(copy);
    return status;
}

/* Values, states and hash of one weight. A job for inference has no place for the states. */
static smp_status transfer_weight(smp *s, const smp_memory_param *param, int states, int fd,
                                  bool writing, const char *path)
{
    int64_t bytes = s->graph->param[param->param].elements * (int64_t)sizeof(float);
    int64_t offset = param_offset(s, param->param, states);
    uint64_t hash = 0, stored = 0;
    for (int k = 0; k <= states; k++, offset += bytes) {
        char *array = k == 0                    ? s->arena + param->weight
                      : k <= smp__job_states(s) ? s->arena + param->state[k - 1]
                                                : NULL;
        SMP_TRY(transfer_array(s, array, bytes, fd, offset, writing, path, &hash));
    }
    if (writing)
        return smp__checkpoint_transfer(fd, &hash, HASH_BYTES, offset, true, path);
    SMP_TRY(smp__checkpoint_transfer(fd, &stored, HASH_BYTES, offset, false, path));
    if (stored != hash)
        return smp_fail(SMP_ERR_INPUT, "%s: weight '%s' is damaged", path,
                        s->graph->param[param->param].name);
    return SMP_OK;
}

/* Of all weights held here those that this rank owns. */
static smp_status write_weights(smp *s, int fd, const char *path)
{
    for (int32_t i = 0; i < s->memory->n_param; i++) {
        const smp_memory_param *param = &s->memory->param[i];
        if (param->owner && s->comm.replica == 0)
            SMP_TRY(transfer_weight(s, param, smp__job_states(s), fd, true, path));
    }
    return SMP_OK;
}

static smp_status read_weights(smp *s, int states, int fd, const char *path)
{
    for (int32_t i = 0; i < s->memory->n_param; i++)
        SMP_TRY(transfer_weight(s, &s->memory->param[i], states, fd, false, path));
    return smp__weights_round(s);
}

/* Network file systems report at the close what they could not write. */
static smp_status close_written(int fd, const char *path, smp_status status)
{
    if (close(fd) != 0 && status == SMP_OK)
        status = smp_fail(SMP_ERR_FAILED, "%s: cannot close: %s", path, strerror(errno));
    return status;
}

static smp_status create_file(smp *s, const char *directory, const char *path)
{
    smp__checkpoint_header header = {.fingerprint = s->graph->weights_fingerprint,
                                     .step = s->step,
                                     .samples = s->samples,
                                     .states = smp__job_states(s)};
    snprintf(header.optimizer, sizeof(header.optimizer), "%s", s->optimizer->name);
    SMP_TRY(smp__checkpoint_folder_make(directory));
    SMP_TRY(smp__checkpoint_next(directory, &header.saved));
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0666);
    if (fd < 0)
        return smp_fail(SMP_ERR_FAILED, "%s: cannot create: %s", path, strerror(errno));
    smp_status status = smp__checkpoint_header_write(fd, &header, s->graph->name, path);
    if (status == SMP_OK && ftruncate(fd, param_offset(s, s->graph->n_param, header.states)) != 0)
        status = smp_fail(SMP_ERR_FAILED, "%s: cannot extend: %s", path, strerror(errno));
    return close_written(fd, path, status);
}

/* Rank 0 syncs whatever it owns: the header is its own. */
static smp_status write_own(smp *s, const char *path)
{
    int fd = open(path, O_WRONLY);
    if (fd < 0)
        return smp_fail(SMP_ERR_FAILED, "%s: cannot open: %s", path, strerror(errno));
    smp_status status = write_weights(s, fd, path);
    if (status == SMP_OK)
        status = smp__checkpoint_sync(fd, path);
    return close_written(fd, path, status);
}

static smp_status finish_file(const char *directory, const char *temporary, const char *path)
{
    if (rename(temporary, path) != 0)
        return smp_fail(SMP_ERR_FAILED, "%s: cannot rename: %s", temporary, strerror(errno));
    SMP_TRY(smp__checkpoint_folder_sync(directory)); /* the rename itself must survive too */
    return smp__checkpoint_prune(directory);
}

smp_status smp_save(smp *s, const char *path)
{
    if (!s || !path)
        return smp_fail(SMP_ERR_INPUT, "smp_save: a NULL argument");
    SMP_TRY(smp__job_usable(s));
    SMP_TRY(
        smp__comm_agree(&s->comm, smp_fail_context(smp__weights_check(s), "%s: not saved", path)));
    char final[PATH_BYTES], temporary[PATH_BYTES + 8];
    smp__checkpoint_path(final, path, s->step);
    snprintf(temporary, sizeof(temporary), "%s.part", final);
    bool first = s->comm.world_rank == 0;
    s->doing = "saving a checkpoint";
    smp_status status = smp__comm_agree(&s->comm, first ? create_file(s, path, temporary) : SMP_OK);
    bool writes = first || s->comm.replica == 0;
    if (status == SMP_OK)
        status = smp__comm_agree(&s->comm, writes ? write_own(s, temporary) : SMP_OK);
    if (status == SMP_OK)
        status = smp__comm_agree(&s->comm, first ? finish_file(path, temporary, final) : SMP_OK);
    if (status != SMP_OK && first)
        unlink(temporary);
    if (status != SMP_ERR_PEER) /* after that it is the place of the failure */
        s->doing = smp__between_steps;
    return status;
}

/* The header against the name of its file and the job. */
static smp_status check_header(const smp *s, const smp__checkpoint_header *header, int64_t step,
                               const char *path)
{
    if (header->version > SMP__CHECKPOINT_VERSION)
        return smp_fail(SMP_ERR_INPUT, "%s: is of version %d, this program reads 1 to %d", path,
                        header->version, SMP__CHECKPOINT_VERSION);
    if (header->step != step)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: holds step %" PRId64 ": it has another checkpoint's name", path,
                        header->step);
    if (header->fingerprint != s->graph->weights_fingerprint)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: is of another model (fingerprint %016" PRIx64
                        ", this model has %016" PRIx64 ")",
                        path, header->fingerprint, s->graph->weights_fingerprint);
    if (s->graph->training && (strcmp(header->optimizer, s->optimizer->name) != 0 ||
                               header->states != smp__job_states(s)))
        return smp_fail(SMP_ERR_INPUT, "%s: has the state of optimizer %s, not of %s", path,
                        header->optimizer, s->optimizer->name);
    return SMP_OK;
}

static smp_status check_length(const smp *s, int states, int fd, const char *path)
{
    int64_t bytes = param_offset(s, s->graph->n_param, states), length = lseek(fd, 0, SEEK_END);
    if (length != bytes)
        return smp_fail(SMP_ERR_INPUT, "%s: has %" PRId64 " bytes, expected %" PRId64, path, length,
                        bytes);
    return SMP_OK;
}

/* What is wrong with a file stands in the note, and the next one is tried. */
static smp_status pass_over(smp *s)
{
    size_t length = strlen(s->load_note);
    snprintf(s->load_note + length, sizeof(s->load_note) - length, "%s%s", length > 0 ? "; " : "",
             smp_last_error());
    return SMP_OK;
}

/* Sets *whole unless the file is damaged. Every step of it is agreed upon, so that all ranks take
 * the same file. */
static smp_status load_open(smp *s, int fd, const char *path, int64_t step, bool *whole)
{
    smp__checkpoint_header header = {0};
    smp_status status = smp__comm_agree(&s->comm, smp__checkpoint_header_read(fd, path, &header));
    if (status == SMP_ERR_INPUT)
        return pass_over(s);
    SMP_TRY(status);
    SMP_TRY(smp__comm_agree(&s->comm, check_header(s, &header, step, path)));
    status = smp__comm_agree(&s->comm, check_length(s, header.states, fd, path));
    if (status == SMP_OK) {
        status = smp__comm_agree(&s->comm, read_weights(s, header.states, fd, path));
        s->broken = status != SMP_OK; /* some weights are new, some old */
    }
    if (status == SMP_ERR_INPUT)
        return pass_over(s);
    SMP_TRY(status);
    if (s->graph->training) { /* one for inference counts its own */
        s->step = step;
        s->samples = header.samples;
    }
    *whole = true;
    return SMP_OK;
}

static smp_status load_file(smp *s, const char *path, int64_t step, bool *whole)
{
    int fd = open(path, O_RDONLY);
    smp_status status = SMP_OK;
    if (fd < 0)
        status = smp_fail(SMP_ERR_FAILED, "%s: cannot open: %s", path, strerror(errno));
    status = smp__comm_agree(&s->comm, status);
    if (status == SMP_OK)
        status = load_open(s, fd, path, step, whole);
    if (fd >= 0)
        close(fd);
    return status;
}

/* Rank 0's number on every rank. */
static smp_status share(smp *s, int64_t *number)
{
    s->result[0] = s->comm.world_rank == 0 ? (double)*number : 0.0; /* below 2^53: exact */
    SMP_TRY(smp__comm_sum(&s->comm, s->result, 1));
    *number = (int64_t)s->result[0];
    return SMP_OK;
}

static smp_status load_newest(smp *s, const char *directory, const smp__saved *list, int n)
{
    bool whole = false;
    for (int i = 0; !whole; i++) {
        int64_t step = i < n ? list[i].step : -1;
        SMP_TRY(share(s, &step));
        if (step < 0)
            return smp_fail(SMP_ERR_INPUT, "%s: holds no checkpoint%s%s", directory,
                            s->load_note[0] ? " that can be read: " : "", s->load_note);
        char path[PATH_BYTES];
        smp__checkpoint_path(path, directory, step);
        SMP_TRY(load_file(s, path, step, &whole));
        size_t length = strlen(s->load_note);
        if (whole && length > 0)
            snprintf(s->load_note + length, sizeof(s->load_note) - length,
                     "; took the one before, %s", path);
    }
    return SMP_OK;
}

smp_status smp_load(smp *s, const char *path)
{
    if (!s || !path)
        return smp_fail(SMP_ERR_INPUT, "smp_load: a NULL argument");
    SMP_TRY(smp__job_usable(s));
    s->load_note[0] = '\0';
    smp__saved *list = NULL; /* rank 0's: it chooses, so that all ranks read the same file */
    int n = 0;
    smp_status status = SMP_OK;
    s->doing = "loading a checkpoint";
    if (s->comm.world_rank == 0)
        status = smp__checkpoint_list(path, &list, &n);
    status = smp__comm_agree(&s->comm, status);
    if (status == SMP_OK)
        status = load_newest(s, path, list, n);
    free(list);
    if (status != SMP_ERR_PEER) /* after that it is the place of the failure */
        s->doing = smp__between_steps;
    return status;
}

const char *smp_load_note(const smp *s)
{
    return s ? s->load_note : "";
}
