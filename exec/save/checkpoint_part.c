/* One rank's part of a checkpoint, and what it does for a save to disk. Rank 0 makes the file under
 * a temporary name that no other job has, every rank opens it and writes its share of the pieces at
 * the offsets that the model gives them. Every byte has one writer.
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
#include "exec/state/progress.h"
#include "exec/state/shards.h"
#include "exec/state/weights_state.h"
#include "graph/math/half.h"
#include "graph/math/hash_lanes.h"

static void temporary_path(const smp *s, char path[SMP__CHECKPOINT_PATH_BYTES])
{
    smp__checkpoint_part_path(path, s->saving->directory, s->saving->job,
                              s->saving->part.says.step);
}

/* What this rank writes of a weight that is not split: of the own part, which every group of shards
 * has, and every device, its share of the pieces. Those of small weights fall to them in turn. */
static smp__range shared_range(const smp *s, smp__sharers sharers, int32_t index)
{
    const int64_t turn = (sharers.turn + (int64_t)index) % sharers.n;
    const smp__range own = smp__own_range(s, index);
    const int64_t pieces = smp__checkpoint_pieces(own.end - own.begin);
    const int64_t begin = own.begin + pieces * turn / sharers.n * SMP_PIECE_ELEMENTS,
                  end = own.begin + pieces * (turn + 1) / sharers.n * SMP_PIECE_ELEMENTS;
    return begin < end ? (smp__range){begin, end < own.end ? end : own.end} : (smp__range){0, 0};
}

static smp__sharers sharers_of(const smp *s, const smp__part *p)
{
    return p->sharers.n > 0 ? p->sharers : smp__sharers_all(s);
}

/* What this rank writes of a weight, in elements of the whole one. */
static smp__range saved_range(const smp *s, const smp__part *p, int32_t index)
{
    const smp__sharers sharers = sharers_of(s, p);
    if (!s->memory->param[index].owner)
        return (smp__range){0, 0};
    return smp__is_split(s, index) ? smp__dealt_range(s, index, sharers.copies)
                                   : shared_range(s, sharers, index);
}

/* The values of a weight, then the states of the optimizer: of an idle one zeroes, as of a weight
 * that was never updated, so that whoever trains it later has where to begin. */
static int64_t part_bytes(const smp *s, const smp__part *p)
{
    int64_t elements = 0;
    for (int32_t i = 0; i < s->memory->n_param; i++) {
        const smp__range range = saved_range(s, p, i);
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

static smp_status copy_weight(smp *s, smp__regroup *r, const smp__part *p, int32_t index, char **at)
{
    const smp__range range = saved_range(s, p, index);
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

static smp_status copy_weights(smp *s, smp__regroup *r, smp__part *p)
{
    char *at = p->staging;
    for (int32_t i = 0; i < s->memory->n_param; i++)
        if (s->memory->param[i].owner)
            SMP_TRY(copy_weight(s, r, p, i, &at));
    p->copy = p->staging;
    return r->status;
}

bool smp__part_needs_copy(const smp *s)
{
    return !s->device->host_memory || s->comm->tensor_most > 1;
}

smp_status smp__part_reserve(const smp *s, smp__part *p)
{
    const size_t size = (size_t)part_bytes(s, p) + 1;
    return p->staging || (p->staging = malloc(size)) ? SMP_OK : smp_fail_memory(size);
}

smp_status smp__part_copy(smp *s, smp__part *p)
{
    smp__regroup r = {0};
    smp_status status = smp__part_reserve(s, p);
    if (status == SMP_OK && s->comm->tensor_size > 1)
        status = smp__regroup_open(s, sharers_of(s, p).copies, true, &r);
    if (s->comm->tensor_most > 1) /* nobody exchanges parts unless all do */
        status = smp__comm_agree(s->comm, status);
    if (status == SMP_OK)
        status = copy_weights(s, &r, p);
    smp__regroup_close(&r);
    return status;
}

/* What is kept for whole weights, which may change while it is written. */
static smp_status take_kept(const smp *s, smp__part *p)
{
    const size_t bytes = (size_t)s->memory->n_param * sizeof(double);
    if (!s->weights->trust.kept)
        return SMP_OK;
    if (!p->kept && !(p->kept = malloc(bytes + 1)))
        return smp_fail_memory(bytes);
    memcpy(p->kept, s->weights->trust.kept, bytes);
    return SMP_OK;
}

/* The program's own state, likewise. */
static smp_status take_own(const smp *s, smp__part *p)
{
    const size_t bytes = (size_t)p->says.own_bytes;
    if (bytes == 0)
        return SMP_OK;
    if (!p->own && !(p->own = malloc(bytes)))
        return smp_fail_memory(bytes);
    memcpy(p->own, s->options->runtime.own_state, bytes);
    return SMP_OK;
}

smp_status smp__part_take(smp *s, smp__part *p)
{
    smp__checkpoint_header *says = &p->says;
    p->copy = NULL;
    smp__progress_save(s->progress, s->step, says);
    says->states = smp__job_states(s);
    says->keeps = smp__job_keeps(s);
    says->own_bytes = s->options->runtime.own_bytes;
    says->fingerprint = s->graph->weights_fingerprint;
    snprintf(says->optimizer, sizeof says->optimizer, "%s", s->optimizer->name);
    if (!p->headed)
        SMP_TRY(smp__checkpoint_head(smp_graph_whole(s->graph), says, "a checkpoint", &p->head));
    p->headed = true;
    says->at = (int64_t)p->head.length;
    p->heads = (p->sharers.n > 0 ? s->comm->node_rank : s->comm->world_rank) == 0;
    SMP_TRY(take_own(s, p));
    return take_kept(s, p);
}

int64_t smp__part_file_bytes(const smp *s, const smp__part *p)
{
    return p->says.at + smp__checkpoint_length(smp_graph_whole(s->graph), &p->says);
}

void smp__part_free(smp__part *p)
{
    smp_text_free(&p->head);
    free(p->staging);
    free(p->kept);
    free(p->own);
    *p = (smp__part){0};
}

/* Where a range of values of the file comes from: an array; or states in bf16, which are widened a
 * window at a time; or neither, which is zeroes. */
typedef struct source {
    const float *values;
    const uint16_t *narrow;
    float *window; /* [WINDOW] zeroes, unless there is something to widen */
} source;

/* Hashed and written at once: it fits a cache, and as many hashes are made side by side. */
enum { WINDOW = SMP_HASH_ARRAYS * SMP_PIECE_ELEMENTS };

static smp_status put_values(smp__sink to, const float *values, int64_t bytes, int64_t at)
{
    if (!to.map)
        return smp__checkpoint_transfer(to.file, (void *)values, bytes, at, true, to.path);
    memcpy(to.map + at, values, (size_t)bytes);
    return SMP_OK;
}

/* n of them to the offsets of values and hashes in the file. hash: [pieces of n]. */
static smp_status write_values(source from, int64_t n, int64_t values_at, int64_t hashes_at,
                               uint64_t *hash, smp__sink to)
{
    for (int64_t at = 0, m; at < n; at += m) {
        m = n - at < WINDOW ? n - at : WINDOW;
        const float *values = from.values ? from.values + at : from.window;
        if (from.narrow)
            smp__from_bf16(from.window, from.narrow + at, m);
        smp__checkpoint_hash(values, m, hash + at / SMP_PIECE_ELEMENTS);
        SMP_TRY(put_values(to, values, m * (int64_t)sizeof(float), values_at + 4 * at));
        smp__progress_note();
    }
    return smp__checkpoint_transfer(to.file, hash,
                                    smp__checkpoint_pieces(n) * (int64_t)sizeof(uint64_t),
                                    hashes_at, true, to.path);
}

/* Values (k 0) or a state of a weight: of the copy, which has it all, or where they stand. */
static source source_of(const smp *s, int32_t index, int k, int64_t begin, const char *copy,
                        float *window)
{
    source from = {.window = window};
    if (copy)
        from.values = (const float *)(const void *)copy;
    else if (k > 0 && smp__is_idle(s, index))
        memset(window, 0, WINDOW * sizeof *window);
    else if (smp__saved_dtype(s, k) == SMP_BF16)
        from.narrow = smp__saved_at(s, index, k, begin);
    else
        from.values = smp__saved_at(s, index, k, begin);
    return from;
}

/* Values and states of a range of one weight, and the hashes of its pieces. *copy moves on after
 * them. */
static smp_status write_range(const smp *s, int32_t index, smp__range range, const char **copy,
                              smp__sink to, int64_t base)
{
    const smp_graph *whole = smp_graph_whole(s->graph);
    const int32_t param = s->graph->param[s->memory->param[index].param].number;
    const int states = smp__job_states(s);
    const int64_t n = range.end - range.begin;
    const size_t hashes_bytes = (size_t)smp__checkpoint_pieces(n) * sizeof(uint64_t);
    const bool widens = !*copy && (smp__is_idle(s, index) || smp__saved_dtype(s, 1) == SMP_BF16);
    uint64_t *hash = malloc(hashes_bytes + 1);
    float *window = widens ? malloc(WINDOW * sizeof *window) : NULL;
    smp_status status =
        hash && (window || !widens) ? SMP_OK : smp_fail_memory(hashes_bytes + WINDOW * 4);
    for (int k = 0; k <= states && status == SMP_OK; k++) {
        status = write_values(source_of(s, index, k, range.begin, *copy, window), n,
                              base + smp__checkpoint_values_at(whole, param, states, k) +
                                  4 * range.begin,
                              base + smp__checkpoint_hashes_at(whole, param, states, k) +
                                  range.begin / SMP_PIECE_ELEMENTS * (int64_t)sizeof(uint64_t),
                              hash, to);
        if (*copy)
            *copy += n * (int64_t)sizeof(float);
    }
    free(window);
    free(hash);
    return status;
}

/* What is kept for a weight is written with its first element. */
static smp_status write_weights(const smp *s, const smp__part *p, smp__sink to)
{
    const smp_graph *whole = smp_graph_whole(s->graph);
    const char *copy = p->copy;
    for (int32_t i = 0; i < s->memory->n_param; i++) {
        const smp__range range = saved_range(s, p, i);
        const int32_t number = s->graph->param[s->memory->param[i].param].number;
        if (range.begin < range.end)
            SMP_TRY(write_range(s, i, range, &copy, to, p->says.at));
        if (range.begin == 0 && range.end > 0 && p->says.keeps)
            SMP_TRY(
                smp__checkpoint_kept_write(to.file, &p->says, whole, number, p->kept[i], to.path));
    }
    return SMP_OK;
}

static int32_t number_of(const smp *s, int32_t index)
{
    return s->graph->param[s->memory->param[index].param].number;
}

static smp_status add_range(const smp *s, const smp__part *p, int32_t index, int k,
                            smp__range range, smp__spans *out)
{
    const smp_graph *whole = smp_graph_whole(s->graph);
    const int32_t param = number_of(s, index);
    const int states = p->says.states;
    return smp__checkpoint_add_range(
        p->says.at + smp__checkpoint_values_at(whole, param, states, k),
        p->says.at + smp__checkpoint_hashes_at(whole, param, states, k), range.begin, range.end,
        out);
}

static smp_status add_kept(const smp *s, const smp__part *p, int32_t index, smp__spans *out)
{
    return smp__checkpoint_add_kept(&p->says, smp_graph_whole(s->graph), number_of(s, index), out);
}

static int64_t head_bytes(const smp__part *p)
{
    return p->says.at + SMP__CHECKPOINT_HEADER_BYTES;
}

smp_status smp__part_spans(const smp *s, const smp__part *p, smp__spans *out)
{
    SMP_TRY(smp__spans_add(out, 0, p->heads ? head_bytes(p) : 0));
    for (int32_t i = 0; i < s->memory->n_param; i++) {
        const smp__range range = saved_range(s, p, i);
        for (int k = 0; k <= p->says.states; k++)
            SMP_TRY(add_range(s, p, i, k, range, out));
        if (range.begin == 0 && range.end > 0)
            SMP_TRY(add_kept(s, p, i, out));
    }
    if (p->heads)
        SMP_TRY(smp__checkpoint_add_own(&p->says, smp_graph_whole(s->graph), out));
    smp__spans_join(out);
    return SMP_OK;
}

smp_status smp__part_read_spans(const smp *s, const smp__part *p, smp__spans *out)
{
    SMP_TRY(smp__spans_add(out, 0, head_bytes(p)));
    for (int32_t i = 0; i < s->memory->n_param; i++) {
        for (int k = 0; k <= p->says.states; k++) {
            smp__range range = k == 0 ? smp__held_range(s, i) : smp__own_range(s, i);
            if (smp__is_split(s, i))
                range = smp__dealt_range(s, i, (smp__copies){0, 1});
            if (k == 0 || !smp__is_idle(s, i))
                SMP_TRY(add_range(s, p, i, k, range, out));
        }
        SMP_TRY(add_kept(s, p, i, out));
    }
    SMP_TRY(smp__checkpoint_add_own(&p->says, smp_graph_whole(s->graph), out));
    smp__spans_join(out);
    return SMP_OK;
}

smp_status smp__part_put(const smp *s, const smp__part *p, int64_t saved, smp__sink to)
{
    const smp_graph *whole = smp_graph_whole(s->graph);
    smp__checkpoint_header header = p->says;
    header.saved = saved;
    if (p->heads && p->head.data)
        SMP_TRY(smp__checkpoint_transfer(to.file, p->head.data, header.at, 0, true, to.path));
    if (p->heads)
        SMP_TRY(smp__checkpoint_header_write(to.file, &header, whole->name, to.path));
    if (p->heads)
        SMP_TRY(smp__checkpoint_own_write(to.file, &header, whole, p->own, to.path));
    return write_weights(s, p, to);
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
    const smp__part *p = &s->saving->part;
    char path[SMP__CHECKPOINT_PATH_BYTES];
    int fd;
    temporary_path(s, path);
    SMP_TRY(open_part(s, path, &fd));
    smp_status status = SMP_OK;
    if (s->comm->world_rank == 0 && ftruncate(fd, smp__part_file_bytes(s, p)) != 0)
        status = smp_fail(SMP_ERR_FAILED, "%s: cannot extend: %s", path, strerror(errno));
    if (status == SMP_OK)
        status = smp__part_put(s, p, s->saving->number, (smp__sink){fd, NULL, path});
    if (status == SMP_OK)
        status = smp__checkpoint_sync(fd, path);
    if (close(fd) != 0 && status == SMP_OK) /* network file systems report here what they lost */
        status = smp_fail(SMP_ERR_FAILED, "%s: cannot close: %s", path, strerror(errno));
    return status;
}

smp_status smp__part_name(const smp *s)
{
    char temporary[SMP__CHECKPOINT_PATH_BYTES], path[SMP__CHECKPOINT_PATH_BYTES];
    const char *directory = s->saving->directory;
    temporary_path(s, temporary);
    smp__checkpoint_path(path, directory, s->saving->part.says.step);
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
