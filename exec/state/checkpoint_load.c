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
#include "exec/state/shards.h"
#include "exec/state/weights.h"

/* What is read at once, and checked. */
enum { PIECES_AT_ONCE = 256, AT_ONCE = PIECES_AT_ONCE * SMP_PIECE_ELEMENTS };

/* A checkpoint being read. */
typedef struct reading {
    int fd;
    const char *path;
    int states;
    char *copy; /* AT_ONCE floats on their way to a device; NULL with host memory */
} reading;

/* A range of an array of the file, to its place here; it begins with a whole piece. n: at most
 * AT_ONCE. Takes no memory: with half of the weights read nothing may be wanting. */
static smp_status read_pieces(const reading *r, char *array, int64_t n, int64_t offset,
                              int64_t hashes_at, bool *whole)
{
    const int fd = r->fd;
    const char *path = r->path;
    const size_t pieces = (size_t)smp__checkpoint_pieces(n);
    const int64_t bytes = n * (int64_t)sizeof(float);
    uint64_t stored[2 * PIECES_AT_ONCE];
    smp_status status = smp__checkpoint_transfer(fd, stored, (int64_t)(pieces * sizeof *stored),
                                                 hashes_at, false, path);
    if (status == SMP_OK)
        status = smp__checkpoint_transfer(fd, array, bytes, offset, false, path);
    if (status == SMP_OK)
        smp__checkpoint_hash((const float *)(const void *)array, n, stored + pieces);
    *whole = status == SMP_OK && memcmp(stored, stored + pieces, pieces * sizeof *stored) == 0;
    return status;
}

/* Values (k 0) or a state of one weight, as far as this rank has them: a device's through memory of
 * the host, a bounded part at a time. */
static smp_status read_array(smp *s, const reading *r, int32_t index, int k, smp__range here)
{
    const int32_t param = s->memory->param[index].param;
    const int64_t offset = smp__checkpoint_values_at(s->graph, param, r->states, k),
                  hashes_at = smp__checkpoint_hashes_at(s->graph, param, r->states, k);
    smp_status status = SMP_OK;
    bool whole = true;
    for (int64_t at = here.begin; at < here.end && status == SMP_OK && whole; at += AT_ONCE) {
        const int64_t n = here.end - at < AT_ONCE ? here.end - at : AT_ONCE;
        char *array = (char *)smp__saved_at(s, index, k, at);
        status =
            read_pieces(r, r->copy ? r->copy : array, n, offset + 4 * at,
                        hashes_at + at / SMP_PIECE_ELEMENTS * (int64_t)sizeof(uint64_t), &whole);
        if (status == SMP_OK && r->copy)
            status = smp__copy_in(s, array, r->copy, n * (int64_t)sizeof(float));
    }
    if (status == SMP_OK && !whole)
        return smp_fail(SMP_ERR_INPUT, "%s: weight '%s' is damaged", r->path,
                        s->graph->param[param].name);
    return status;
}

/* A job for inference has no place for the states. */
static smp_status read_weights(smp *s, const reading *r)
{
    for (int32_t i = 0; i < s->memory->n_param; i++) {
        const int64_t n = s->graph->param[s->memory->param[i].param].elements;
        const smp__range own = smp__own_range(s, i);
        SMP_TRY(read_array(s, r, i, 0, smp__weights_in_parts(s) ? own : (smp__range){0, n}));
        for (int k = 1; k <= r->states && k <= smp__job_states(s); k++)
            SMP_TRY(read_array(s, r, i, k, own));
    }
    s->stale = false;
    return smp__weights_round(s);
}

/* The header against the name of its file and the job. */
static smp_status check_header(const smp *s, const smp__checkpoint_header *header, int64_t step,
                               const char *path)
{
    if (header->version != SMP__CHECKPOINT_VERSION)
        return smp_fail(SMP_ERR_INPUT, "%s: is of version %d, this program reads version %d", path,
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

/* All ranks have the memory that they need, or none reads. */
static smp_status read_all(smp *s, reading *r)
{
    smp_status status = SMP_OK;
    if (!s->device->host_memory && !(r->copy = malloc(AT_ONCE * sizeof(float))))
        status = smp_fail_memory(AT_ONCE * sizeof(float));
    status = smp__comm_agree(&s->comm, status);
    if (status == SMP_OK) {
        status = smp__comm_agree(&s->comm, read_weights(s, r));
        s->broken = status != SMP_OK; /* some weights are new, some old */
    }
    free(r->copy);
    return status;
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
    if (status == SMP_OK)
        status = read_all(s, &(reading){.fd = fd, .path = path, .states = header.states});
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
