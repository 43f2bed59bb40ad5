/* What one rank does for a checkpoint that is being saved. Rank 0 makes the file under a temporary
 * name that no other job has, every rank opens it and writes its share of the pieces at the offsets
 * that the model gives them. Every byte has one writer.
 * Where devices have parts of a weight, its pieces come together while the state is copied: what a
 * rank writes is the same whether others compute with it or not. */
#include "exec/save/checkpoint_part.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exec/checkpoint/checkpoint_file.h"
#include "exec/state/device_wait.h"
#include "exec/save/regroup.h"
#include "exec/state/shards.h"
#include "graph/math/half.h"

static void temporary_path(const smp *s, char path[SMP__CHECKPOINT_PATH_BYTES])
{
    smp__checkpoint_part_path(path, s->saving->directory, s->saving->job, s->saving->says.step);
}

/* What this rank writes of a weight that is not split: of the own part, which every group of shards
 * has, and every device, its share of the pieces. Those of small weights fall to them in turn. */
static smp__range shared_range(const smp *s, int32_t index)
{
    const int tensor = s->comm->tensor_size;
    const int sharers = s->comm->ddp_size / s->comm->shard_size * tensor;
    const int own_turn = s->comm->replica / s->comm->shard_size * tensor + s->comm->tensor_rank;
    const int64_t turn = (own_turn + (int64_t)index) % sharers;
    const smp__range own = smp__own_range(s, index);
    const int64_t pieces = smp__checkpoint_pieces(own.end - own.begin);
    const int64_t begin = own.begin + pieces * turn / sharers * SMP_PIECE_ELEMENTS,
                  end = own.begin + pieces * (turn + 1) / sharers * SMP_PIECE_ELEMENTS;
    return begin < end ? (smp__range){begin, end < own.end ? end : own.end} : (smp__range){0, 0};
}

/* What this rank writes of a weight, in elements of the whole one. */
static smp__range saved_range(const smp *s, int32_t index)
{
    if (!s->memory->param[index].owner)
        return (smp__range){0, 0};
    return smp__is_split(s, index) ? smp__dealt_range(s, index, true) : shared_range(s, index);
}

/* The values of a weight, then the states of the optimizer: of an idle one zeroes, as of a weight
 * that was never updated, so that whoever trains it later has where to begin. */
static int64_t part_bytes(const smp *s)
{
    int64_t elements = 0;
    for (int32_t i = 0; i < s->memory->n_param; i++) {
        const smp__range range = saved_range(s, i);
        elements += range.end - range.begin;
    }
    return elements * (1 + smp__job_states(s)) * (int64_t)sizeof(float);
}

static smp_status collect(smp__regroup *r, int32_t index, int k, int64_t begin, float *values)
{
    for (int64_t round = 0; round < smp__regroup_rounds(r, index); round++) {
        const smp__range window = smp__regroup_window(r, index, round);
        float *at = window.begin < window.end ? values + (window.begin - begin) : values;
        SMP_TRY(smp__regroup_collect(r, index, k, round, at));
    }
    return SMP_OK;
}

static smp_status copy_weight(smp *s, smp__regroup *r, int32_t index, char **at)
{
    const smp__range range = saved_range(s, index);
    const int64_t bytes = (range.end - range.begin) * (int64_t)sizeof(float);
    for (int k = 0; k <= smp__job_states(s); k++, *at += bytes) {
        if (smp__is_split(s, index))
            SMP_TRY(collect(r, index, k, range.begin, (float *)(void *)*at));
        else if (k > 0 && smp__is_idle(s, index))
            memset(*at, 0, (size_t)bytes);
        else if (bytes > 0 && r->status == SMP_OK)
            r->status = smp__saved_out(s, index, k, range.begin, range.end - range.begin,
                                       (float *)(void *)*at);
    }
    return SMP_OK;
}

static smp_status copy_weights(smp *s, smp__regroup *r)
{
    char *at = s->saving->staging;
    for (int32_t i = 0; i < s->memory->n_param; i++)
        if (s->memory->param[i].owner)
            SMP_TRY(copy_weight(s, r, i, &at));
    s->saving->part = s->saving->staging;
    return r->status;
}

smp_status smp__part_copy(smp *s)
{
    struct smp__saving *v = s->saving;
    const size_t size = (size_t)part_bytes(s) + 1;
    smp__regroup r = {0};
    smp_status status = SMP_OK;
    if (!v->staging && !(v->staging = malloc(size)))
        status = smp_fail_memory(size);
    if (status == SMP_OK && s->comm->tensor_size > 1)
        status = smp__regroup_open(s, true, &r);
    if (s->comm->tensor_most > 1) /* nobody exchanges parts unless all do */
        status = smp__comm_agree(s->comm, status);
    if (status == SMP_OK)
        status = copy_weights(s, &r);
    smp__regroup_close(&r);
    return status;
}

/* Where a range of values of the file comes from: an array, or states in bf16, which are widened a
 * window at a time. */
typedef struct source {
    const float *values;
    const uint16_t *narrow; /* NULL: none */
    float *window;          /* [WINDOW] */
} source;

enum { WINDOW = 16 * SMP_PIECE_ELEMENTS, AT_ONCE = 256 * SMP_PIECE_ELEMENTS };

/* n of them to the offsets of values and hashes in the file. hash: [pieces of n]. */
static smp_status write_values(source from, int64_t n, int64_t values_at, int64_t hashes_at,
                               uint64_t *hash, int fd, const char *path)
{
    const int64_t most = from.narrow ? WINDOW : AT_ONCE;
    for (int64_t at = 0, m; at < n; at += m) {
        m = n - at < most ? n - at : most;
        const float *values = from.narrow ? from.window : from.values + at;
        if (from.narrow)
            smp__from_bf16(from.window, from.narrow + at, m);
        smp__checkpoint_hash(values, m, hash + at / SMP_PIECE_ELEMENTS);
        SMP_TRY(smp__checkpoint_transfer(fd, (void *)values, m * (int64_t)sizeof(float),
                                         values_at + 4 * at, true, path));
        smp__progress_note();
    }
    return smp__checkpoint_transfer(fd, hash, smp__checkpoint_pieces(n) * (int64_t)sizeof(uint64_t),
                                    hashes_at, true, path);
}

/* Values and states of a range of one weight, and the hashes of its pieces. *part moves on after
 * them. */
static smp_status write_range(const smp *s, int32_t index, smp__range range, const char **part,
                              int fd, int64_t base, const char *path)
{
    const smp_graph *whole = smp_graph_whole(s->graph);
    const int32_t param = s->graph->param[s->memory->param[index].param].number;
    const int states = smp__job_states(s);
    const int64_t n = range.end - range.begin;
    const size_t hashes_bytes = (size_t)smp__checkpoint_pieces(n) * sizeof(uint64_t);
    const bool widens = !*part && smp__saved_dtype(s, 1) == SMP_BF16;
    uint64_t *hash = malloc(hashes_bytes + 1);
    float *window = widens ? malloc(WINDOW * sizeof *window) : NULL;
    smp_status status =
        hash && (window || !widens) ? SMP_OK : smp_fail_memory(hashes_bytes + WINDOW * 4);
    for (int k = 0; k <= states && status == SMP_OK; k++) {
        source from = {.window = window};
        if (*part)
            from.values = (const float *)(const void *)*part;
        else if (smp__saved_dtype(s, k) == SMP_BF16)
            from.narrow = smp__saved_at(s, index, k, range.begin);
        else
            from.values = smp__saved_at(s, index, k, range.begin);
        status = write_values(
            from, n, base + smp__checkpoint_values_at(whole, param, states, k) + 4 * range.begin,
            base + smp__checkpoint_hashes_at(whole, param, states, k) +
                range.begin / SMP_PIECE_ELEMENTS * (int64_t)sizeof(uint64_t),
            hash, fd, path);
        if (*part)
            *part += n * (int64_t)sizeof(float);
    }
    free(window);
    free(hash);
    return status;
}

/* What is kept for a weight is written with its first element. */
static smp_status write_weights(const smp *s, int fd, const smp__checkpoint_header *header,
                                const char *path)
{
    const smp_graph *whole = smp_graph_whole(s->graph);
    const char *part = s->saving->part;
    for (int32_t i = 0; i < s->memory->n_param; i++) {
        const smp__range range = saved_range(s, i);
        const int32_t number = s->graph->param[s->memory->param[i].param].number;
        if (range.begin < range.end)
            SMP_TRY(write_range(s, i, range, &part, fd, header->at, path));
        if (range.begin == 0 && range.end > 0 && header->keeps)
            SMP_TRY(
                smp__checkpoint_kept_write(fd, header, whole, number, s->saving->kept[i], path));
    }
    return SMP_OK;
}

static smp_status write_header(const smp *s, int fd, const smp_text *head,
                               smp__checkpoint_header header, const char *path)
{
    header.fingerprint = s->graph->weights_fingerprint;
    snprintf(header.optimizer, sizeof(header.optimizer), "%s", s->optimizer->name);
    SMP_TRY(smp__checkpoint_next(s->saving->directory, &header.saved));
    const smp_graph *whole = smp_graph_whole(s->graph);
    if (head->data)
        SMP_TRY(smp__checkpoint_transfer(fd, head->data, header.at, 0, true, path));
    SMP_TRY(smp__checkpoint_header_write(fd, &header, whole->name, path));
    if (ftruncate(fd, header.at + smp__checkpoint_length(whole, header.states, header.keeps)) != 0)
        return smp_fail(SMP_ERR_FAILED, "%s: cannot extend: %s", path, strerror(errno));
    return SMP_OK;
}

void smp__part_create(smp *s)
{
    char path[SMP__CHECKPOINT_PATH_BYTES];
    temporary_path(s, path);
    unlink(path); /* of a save of this step that failed */
    s->saving->file = smp_file_create(AT_FDCWD, path);
    s->saving->file_error = s->saving->file < 0 ? errno : 0;
}

static smp_status open_part(const smp *s, const char *path, int *fd)
{
    const bool makes = s->comm->world_rank == 0;
    *fd = makes ? s->saving->file : open(path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    if (*fd >= 0)
        return SMP_OK;
    return smp_fail(SMP_ERR_FAILED, "%s: cannot %s: %s", path, makes ? "create" : "open",
                    strerror(makes ? s->saving->file_error : errno));
}

smp_status smp__part_write(const smp *s)
{
    char path[SMP__CHECKPOINT_PATH_BYTES];
    smp_text head = {0};
    temporary_path(s, path);
    smp__checkpoint_header header = s->saving->says;
    header.states = smp__job_states(s);
    header.keeps = smp__job_keeps(s);
    int fd;
    SMP_TRY(open_part(s, path, &fd));
    smp_status status =
        smp__checkpoint_head(smp_graph_whole(s->graph), header.states, header.keeps, path, &head);
    header.at = (int64_t)head.length;
    if (status == SMP_OK && s->comm->world_rank == 0)
        status = write_header(s, fd, &head, header, path);
    if (status == SMP_OK)
        status = write_weights(s, fd, &header, path);
    if (status == SMP_OK)
        status = smp__checkpoint_sync(fd, path);
    smp_text_free(&head);
    if (close(fd) != 0 && status == SMP_OK) /* network file systems report here what they lost */
        status = smp_fail(SMP_ERR_FAILED, "%s: cannot close: %s", path, strerror(errno));
    return status;
}

smp_status smp__part_name(const smp *s)
{
    char temporary[SMP__CHECKPOINT_PATH_BYTES], path[SMP__CHECKPOINT_PATH_BYTES];
    const char *directory = s->saving->directory;
    temporary_path(s, temporary);
    smp__checkpoint_path(path, directory, s->saving->says.step);
    SMP_TRY(smp__folder_lock_check(s->saving->lock));
    if (rename(temporary, path) != 0)
        return smp_fail(SMP_ERR_FAILED, "%s: cannot rename: %s", temporary, strerror(errno));
    SMP_TRY(smp__checkpoint_folder_sync(directory)); /* the rename itself must survive too */
    return smp__checkpoint_prune(directory, s->options->runtime.keep_checkpoints);
}

void smp__part_abandon(const smp *s)
{
    char path[SMP__CHECKPOINT_PATH_BYTES];
    temporary_path(s, path);
    unlink(path);
}
