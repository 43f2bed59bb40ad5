/* Loading a checkpoint: what was saved last; if that is damaged, what was saved before it, and it
 * says so. Every rank reads what it holds; every decision is agreed upon, so that all take the same
 * file. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exec/state/checkpoint_file.h"
#include "exec/state/checkpoint_folder.h"
#include "exec/state/checkpoint_save.h"
#include "exec/state/device_wait.h"
#include "exec/state/weights.h"

/* One array of the arena from the file, and into the hash; NULL: into the hash alone. */
static smp_status read_array(smp *s, char *array, int64_t bytes, int fd, int64_t offset,
                             const char *path, uint64_t *hash)
{
    const bool direct = array && s->device->host_memory;
    char *copy = direct ? NULL : malloc((size_t)bytes + 1);
    if (!direct && !copy)
        return smp_fail_memory((size_t)bytes);
    char *values = direct ? array : copy;
    smp_status status = smp__checkpoint_transfer(fd, values, bytes, offset, false, path);
    if (status == SMP_OK && array && copy)
        status = smp__copy_in(s, array, copy, bytes);
    if (status == SMP_OK)
        *hash = smp_hash(*hash, values, (size_t)bytes);
    free(copy);
    return status;
}

/* Values, states and hash of one weight. A job for inference has no place for the states. */
static smp_status read_weight(smp *s, const smp_memory_param *param, int states, int fd,
                              const char *path)
{
    int64_t bytes = s->graph->param[param->param].elements * (int64_t)sizeof(float);
    int64_t offset = smp__checkpoint_offset(s->graph, param->param, states);
    uint64_t hash = 0, stored = 0;
    for (int k = 0; k <= states; k++, offset += bytes) {
        char *array = k == 0                    ? s->arena + param->weight
                      : k <= smp__job_states(s) ? s->arena + param->state[k - 1]
                                                : NULL;
        SMP_TRY(read_array(s, array, bytes, fd, offset, path, &hash));
    }
    SMP_TRY(smp__checkpoint_transfer(fd, &stored, sizeof(stored), offset, false, path));
    if (stored != hash)
        return smp_fail(SMP_ERR_INPUT, "%s: weight '%s' is damaged", path,
                        s->graph->param[param->param].name);
    return SMP_OK;
}

static smp_status read_weights(smp *s, int states, int fd, const char *path)
{
    for (int32_t i = 0; i < s->memory->n_param; i++)
        SMP_TRY(read_weight(s, &s->memory->param[i], states, fd, path));
    return smp__weights_round(s);
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
    int64_t bytes = smp__checkpoint_offset(s->graph, s->graph->n_param, states),
            length = lseek(fd, 0, SEEK_END);
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

static smp_status load_newest(smp *s, const char *directory, const smp__saved *list, int n)
{
    bool whole = false;
    for (int i = 0; !whole; i++) {
        int64_t step = i < n ? list[i].step : -1;
        SMP_TRY(smp__comm_share(&s->comm, &step, sizeof(step), 0));
        if (step < 0)
            return smp_fail(SMP_ERR_INPUT, "%s: holds no checkpoint%s%s", directory,
                            s->load_note[0] ? " that can be read: " : "", s->load_note);
        char path[SMP__CHECKPOINT_PATH_BYTES];
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
    SMP_TRY(smp__save_complete(s));
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
    return smp__job_leave(s, status);
}

const char *smp_load_note(const smp *s)
{
    return s ? s->load_note : "";
}
