/* Loading a checkpoint: what was saved last, or what a job before this one has kept in memory and
 * begun after that; if that is damaged, the one before, and it says so. Every rank
 * reads what it holds, or, of what several devices have in parts, its share of the pieces, which
 * they then give each other. Every decision is agreed upon, so that all take the same file. */
#include "exec/save/checkpoint_load.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exec/checkpoint/checkpoint_file.h"
#include "exec/checkpoint/checkpoint_folder.h"
#include "exec/save/checkpoint_keep.h"
#include "exec/save/checkpoint_part.h"
#include "exec/save/checkpoint_save.h"
#include "exec/save/kept_fetch.h"
#include "exec/save/kept_verify.h"
#include "exec/state/device_wait.h"
#include "exec/state/progress.h"
#include "exec/save/regroup.h"
#include "exec/state/shards.h"
#include "exec/state/updates.h"
#include "exec/state/weights.h"
#include "exec/state/weights_state.h"
#include "graph/base/text.h"

/* What is read at once, and checked; of what is rounded into host memory less. */
enum { PIECES_AT_ONCE = 256, AT_ONCE = PIECES_AT_ONCE * SMP_PIECE_ELEMENTS };
enum { ROUNDED_AT_ONCE = 16 * SMP_PIECE_ELEMENTS };
_Static_assert((int)SMP__WINDOW_ELEMENTS <= (int)AT_ONCE, "a window is read at once");

/* A checkpoint being read. */
typedef struct reading {
    int fd;
    const char *path;
    const smp__checkpoint_header *header;
    int64_t base; /* bytes before the header */
    int states;
    int64_t at_once;
    char *copy; /* [at_once] floats on their way to a device, or to states in bf16; or NULL */
    char *own;  /* the program's own state; or NULL */
    smp__regroup parts; /* ... or to several */
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

static smp_status damaged(const smp *s, const reading *r, int32_t index)
{
    return smp_fail(SMP_ERR_INPUT, "%s: weight '%s' is damaged", r->path,
                    s->graph->param[s->memory->param[index].param].name);
}

/* Values (k 0) or a state of one weight, as far as this rank has them: a device's through memory of
 * the host, a bounded part at a time. */
static smp_status read_array(smp *s, const reading *r, int32_t index, int k, smp__range here)
{
    const smp_graph *whole = smp_graph_whole(s->graph);
    const int32_t param = s->graph->param[s->memory->param[index].param].number;
    const int64_t offset = r->base + smp__checkpoint_values_at(whole, param, r->states, k),
                  hashes_at = r->base + smp__checkpoint_hashes_at(whole, param, r->states, k);
    smp_status status = SMP_OK;
    bool whole_pieces = true;
    for (int64_t at = here.begin; at < here.end && status == SMP_OK && whole_pieces;
         at += r->at_once) {
        const int64_t n = here.end - at < r->at_once ? here.end - at : r->at_once;
        char *array = smp__saved_at(s, index, k, at);
        status = read_pieces(r, r->copy ? r->copy : array, n, offset + 4 * at,
                             hashes_at + at / SMP_PIECE_ELEMENTS * (int64_t)sizeof(uint64_t),
                             &whole_pieces);
        if (status == SMP_OK && r->copy)
            status = smp__saved_in(s, index, k, at, n, (float *)(void *)r->copy);
        if (status == SMP_OK)
            status = smp__comm_answer(s->comm);
    }
    return status == SMP_OK && !whole_pieces ? damaged(s, r, index) : status;
}

/* A window of a weight that is split, in whatever order the ranks come: to r->copy. */
static smp_status read_window(smp *s, const reading *r, int32_t index, int k, smp__range window)
{
    const smp_graph *whole = smp_graph_whole(s->graph);
    const int32_t param = s->graph->param[s->memory->param[index].param].number;
    bool whole_pieces = true;
    if (window.begin == window.end)
        return SMP_OK;
    SMP_TRY(read_pieces(r, r->copy, window.end - window.begin,
                        r->base + smp__checkpoint_values_at(whole, param, r->states, k) +
                            4 * window.begin,
                        r->base + smp__checkpoint_hashes_at(whole, param, r->states, k) +
                            window.begin / SMP_PIECE_ELEMENTS * (int64_t)sizeof(uint64_t),
                        &whole_pieces));
    return whole_pieces ? SMP_OK : damaged(s, r, index);
}

/* Reads for all of this weight's ranks, which go on together whatever fails on one. */
static smp_status read_split(smp *s, reading *r, int32_t index, int k)
{
    smp__regroup *parts = &r->parts;
    for (int64_t round = 0; round < smp__regroup_rounds(parts, index); round++) {
        if (parts->status == SMP_OK)
            parts->status = read_window(s, r, index, k, smp__regroup_window(parts, index, round));
        SMP_TRY(smp__regroup_spread(parts, index, k, round, (float *)(void *)r->copy));
    }
    return SMP_OK;
}

static smp_status read_weight(smp *s, reading *r, int32_t index, int k)
{
    if (k > 0 && smp__is_idle(s, index))
        return SMP_OK;
    if (smp__is_split(s, index))
        return read_split(s, r, index, k);
    if (r->parts.status == SMP_OK)
        r->parts.status = read_array(s, r, index, k,
                                     k == 0 ? smp__held_range(s, index) : smp__own_range(s, index));
    return SMP_OK;
}

static smp_status read_kept(smp *s, reading *r)
{
    const smp_graph *whole = smp_graph_whole(s->graph);
    for (int32_t i = 0; s->weights->trust.kept && i < s->memory->n_param; i++)
        if (r->parts.status == SMP_OK)
            r->parts.status = smp__checkpoint_kept_read(
                r->fd, r->header, whole, s->graph->param[s->memory->param[i].param].number,
                &s->weights->trust.kept[i], r->path);
    return r->parts.status;
}

static smp_status read_own(smp *s, reading *r)
{
    if (r->own && r->parts.status == SMP_OK)
        r->parts.status =
            smp__checkpoint_own_read(r->fd, r->header, smp_graph_whole(s->graph), r->own, r->path);
    return r->parts.status;
}

/* A job for inference has no place for the states, nor have weights that are idle. */
static smp_status read_weights(smp *s, reading *r)
{
    for (int32_t i = 0; i < s->memory->n_param; i++)
        for (int k = 0; k <= r->states && k <= smp__job_states(s); k++)
            SMP_TRY(read_weight(s, r, i, k));
    SMP_TRY(read_kept(s, r));
    SMP_TRY(read_own(s, r));
    s->weights->stale = false;
    return smp__weights_round(s);
}

/* The header against the name of its file and the job. */
static smp_status check_header(const smp *s, const smp__checkpoint_header *header, int64_t step,
                               const char *path)
{
    if (header->version < SMP__CHECKPOINT_OLDEST || header->version > SMP__CHECKPOINT_VERSION)
        return smp_fail(SMP_ERR_INPUT, "%s: is of version %d, this program reads versions %d to %d",
                        path, header->version, SMP__CHECKPOINT_OLDEST, SMP__CHECKPOINT_VERSION);
    if (header->step != step)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: holds step %" PRId64 ": it has another checkpoint's name", path,
                        header->step);
    if (header->fingerprint != s->graph->weights_fingerprint)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: is of another model (fingerprint %016" PRIx64
                        ", this model has %016" PRIx64 ")",
                        path, header->fingerprint, s->graph->weights_fingerprint);
    if (s->graph->training &&
        (strcmp(header->optimizer, s->optimizer->name) != 0 ||
         header->states != smp__job_states(s) || header->keeps != smp__job_keeps(s)))
        return smp_fail(SMP_ERR_INPUT, "%s: has the state of optimizer %s, not of %s", path,
                        header->optimizer, s->optimizer->name);
    if (s->options->runtime.own_bytes > 0 && header->own_bytes > 0 &&
        header->own_bytes != s->options->runtime.own_bytes)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: has %" PRId64
                        " bytes of a program's own state, this program has %" PRId64,
                        path, header->own_bytes, s->options->runtime.own_bytes);
    return SMP_OK;
}

/* What is wrong with a file stands in the note, and the next one is tried. */
static smp_status pass_over(smp *s)
{
    char *note = smp__progress_load_note(s->progress);
    const size_t length = strlen(note);
    snprintf(note + length, SMP__LOAD_NOTE_BYTES - length, "%s%s", length > 0 ? "; " : "",
             smp_last_error());
    return SMP_OK;
}

static smp_status take_memory(smp *s, reading *r)
{
    const bool split = s->comm->tensor_size > 1;
    const bool rounds = s->graph->target.bf16_states, host = s->device->host_memory;
    r->at_once = rounds && host && !split ? ROUNDED_AT_ONCE : AT_ONCE;
    const size_t bytes = (size_t)r->at_once * sizeof(float);
    if ((split || !host || rounds) && !(r->copy = malloc(bytes)))
        return smp_fail_memory(bytes);
    const int64_t own_bytes = s->options->runtime.own_bytes > 0 ? r->header->own_bytes : 0;
    if (own_bytes > 0 && !(r->own = malloc((size_t)own_bytes)))
        return smp_fail_memory((size_t)own_bytes);
    return split ? smp__regroup_open(s, (smp__copies){0, 1}, false, &r->parts) : SMP_OK;
}

/* All ranks have the memory that they need, or none reads. */
static smp_status read_all(smp *s, reading *r)
{
    smp_status status = smp__comm_agree(s->comm, take_memory(s, r));
    if (status == SMP_OK) {
        status = smp__comm_agree(s->comm, read_weights(s, r));
        s->broken = status != SMP_OK; /* some weights are new, some old */
    }
    if (status == SMP_OK && r->own)
        memcpy(s->options->runtime.own_state, r->own, (size_t)r->header->own_bytes);
    smp__regroup_close(&r->parts);
    free(r->own);
    free(r->copy);
    return status;
}

/* What has come of trying a state. */
typedef struct outcome {
    bool whole;          /* it is loaded; else it is damaged */
    bool mended;         /* ... with what another machine has of it */
    int64_t own_dropped; /* bytes of a program's own state in it, where this program has none */
} outcome;

/* Every step of it is agreed upon, so that all ranks take the same file. */
static smp_status load_open(smp *s, int fd, const char *path, int64_t step, outcome *out)
{
    smp__checkpoint_header header = {0};
    smp_status status = smp__comm_agree(s->comm, smp__checkpoint_header_read(fd, path, &header));
    if (status == SMP_ERR_INPUT)
        return pass_over(s);
    SMP_TRY(status);
    SMP_TRY(smp__comm_agree(s->comm, check_header(s, &header, step, path)));
    status = smp__comm_agree(s->comm,
                             smp__checkpoint_check(fd, smp_graph_whole(s->graph), &header, path));
    if (status == SMP_OK)
        status = read_all(s, &(reading){.fd = fd,
                                        .path = path,
                                        .header = &header,
                                        .base = header.at,
                                        .states = header.states});
    if (status == SMP_ERR_INPUT)
        return pass_over(s);
    SMP_TRY(status);
    if (s->graph->training) { /* one for inference counts its own */
        s->step = step;
        smp__progress_load(s->progress, &header);
        out->own_dropped = s->options->runtime.own_bytes > 0 ? 0 : header.own_bytes;
    }
    out->whole = true;
    return SMP_OK;
}

static smp_status load_file(smp *s, const char *path, int64_t step, outcome *out)
{
    int fd = -1;
    int64_t bytes;
    smp_status status = smp__comm_agree(s->comm, smp_file_open(path, &fd, &bytes));
    if (status == SMP_OK)
        status = load_open(s, fd, path, step, out);
    if (fd >= 0)
        close(fd);
    return status;
}

/* Checkpoints in the order in which they are tried: rank 0's. What is kept in memory has the number
 * of the save that it follows; of a branch that is left it may be higher than of a later one, which
 * is tried before it. A save that is later was made by the same job of a step that this
 * one does not pass, or by a job that has left the branch of what is in memory. */
typedef struct candidates {
    smp__saved *saved;
    smp__kept_list kept; /* of all ranks */
    int n_saved;
    int at_saved, at_kept; /* the next ones */
} candidates;

typedef struct candidate {
    int64_t step;   /* -1: there is none */
    int64_t number; /* of the last save on the disk */
    int64_t kept;   /* which of the states in memory; -1: it is on the disk */
} candidate;

static candidate next_candidate(candidates *c)
{
    const smp__saved *saved = c->at_saved < c->n_saved ? &c->saved[c->at_saved] : NULL;
    const smp__kept_state *kept =
        c->at_kept < c->kept.n_chosen ? &c->kept.state[c->kept.chosen[c->at_kept]] : NULL;
    if (kept && (!saved || smp__kept_is_after(kept, saved->saved, saved->step)))
        return (candidate){.step = kept->step, .kept = c->at_kept++};
    c->at_saved += saved != NULL;
    return (candidate){.step = saved ? saved->step : -1, .kept = -1};
}

/* What this machine lacks of a state in memory comes first. */
static smp_status load_kept(smp *s, const char *path, const smp__kept_list *list, int i,
                            outcome *out)
{
    const int64_t step = list->state[list->chosen[i]].step;
    const smp_status status = smp__kept_fetch(s, list, i);
    if (status == SMP_ERR_INPUT)
        return pass_over(s);
    SMP_TRY(status);
    return load_file(s, path, step, out);
}

/* If something of it is damaged, it is read once more, with what other machines have of that. The
 * list is another one then, of which those are left that were not tried. */
static smp_status try_kept(smp *s, const char *path, candidates *c, int i, outcome *out)
{
    SMP_TRY(load_kept(s, path, &c->kept, i, out));
    if (out->whole)
        return SMP_OK;
    SMP_TRY(smp__kept_verify(s, &c->kept, &i));
    c->at_kept = i >= 0 ? i + 1 : c->at_kept - 1;
    if (i < 0)
        return SMP_OK;
    SMP_TRY(load_kept(s, path, &c->kept, i, out));
    out->mended = out->whole;
    return SMP_OK;
}

static void note_loaded(smp *s, bool kept)
{
    s->saving->complete_step = kept ? -1 : s->step;
    smp__keep_loaded(s, kept);
}

/* What was passed over before it, and what of it is not loaded. */
static void note_outcome(smp *s, const char *path, const outcome *out)
{
    char *note = smp__progress_load_note(s->progress);
    size_t length = strlen(note);
    if (length > 0)
        snprintf(note + length, SMP__LOAD_NOTE_BYTES - length, "; took %s, %s",
                 out->mended ? "another machine's copy" : "the one before", path);
    length = strlen(note);
    if (out->own_dropped > 0)
        snprintf(note + length, SMP__LOAD_NOTE_BYTES - length,
                 "%s%s: its %" PRId64 " bytes of a program's own state are not loaded: this "
                 "program has none, nor have the states that it saves",
                 length > 0 ? "; " : "", path, out->own_dropped);
}

static smp_status load_newest(smp *s, const char *directory, candidates *c)
{
    const char *note = smp__progress_load_note(s->progress);
    outcome out = {0};
    while (!out.whole) {
        candidate next = next_candidate(c);
        next.number = s->saving->number;
        SMP_TRY(smp__comm_share(s->comm, &next, sizeof(next), 0));
        s->saving->number = next.number;
        s->saving->begun_step = 0;
        if (next.step < 0)
            return smp_fail(SMP_ERR_INPUT, "%s: holds no checkpoint%s%s", directory,
                            note[0] ? " that can be read: " : "", note);
        char path[SMP__CHECKPOINT_PATH_BYTES];
        smp__checkpoint_path(path, next.kept >= 0 ? smp__keep_folder(s) : directory, next.step);
        SMP_TRY(next.kept >= 0 ? try_kept(s, path, c, (int)next.kept, &out)
                               : load_file(s, path, next.step, &out));
        if (!out.whole)
            continue;
        note_loaded(s, next.kept >= 0);
        note_outcome(s, path, &out);
    }
    return SMP_OK;
}

/* Rank 0's list, of the best alone: a damaged one is not replaced by a worse one. */
static smp_status choose_best(const char *path, smp__saved *list, int *n)
{
    const int best = smp__checkpoint_best(list, *n);
    if (*n > 0 && list[0].saved == INT64_MAX) { /* those whose header cannot be read come first */
        char file[SMP__CHECKPOINT_PATH_BYTES];
        smp__checkpoint_path(file, path, list[0].step);
        return smp_fail(SMP_ERR_INPUT,
                        "%s: its header cannot be read, so it may be the best: remove it, or go on "
                        "with --resume",
                        file);
    }
    if (best < 0)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: holds no checkpoint that was evaluated: --keep-best saves them", path);
    list[0] = list[best];
    *n = 1;
    return SMP_OK;
}

static smp_status list_candidates(const smp *s, const char *path, bool best, candidates *c)
{
    SMP_TRY(smp__checkpoint_list(path, &c->saved, &c->n_saved));
    const smp__saved *last = smp__checkpoint_last(c->saved, c->n_saved);
    s->saving->number = last ? last->saved : 0;
    return best ? choose_best(path, c->saved, &c->n_saved) : SMP_OK;
}

static smp_status load(smp *s, const char *path, bool best)
{
    SMP_TRY(smp__job_usable(s));
    SMP_TRY(smp__save_complete(s));
    SMP_TRY(smp__updates_settle(s));
    SMP_TRY(smp__keep_settle(s));
    smp__keep_rewind(s);
    s->saving->untold = false;
    smp__progress_load_note(s->progress)[0] = '\0';
    candidates c = {0};
    smp_status status = SMP_OK;
    smp__place_doing(s->place, "loading a checkpoint");
    if (s->comm->world_rank == 0)
        status = list_candidates(s, path, best, &c);
    status = smp__comm_agree(s->comm, status);
    if (status == SMP_OK && !best && smp__keep_source(s))
        status = smp__kept_list_make(s, &c.kept);
    if (status == SMP_OK)
        status = load_newest(s, path, &c);
    free(c.saved);
    smp__kept_list_free(&c.kept);
    return smp__job_leave(s, status);
}

smp_status smp_load(smp *s, const char *path)
{
    if (!s || !path)
        return smp_fail(SMP_ERR_INPUT, "smp_load: a NULL argument");
    return load(s, path, false);
}

smp_status smp__load_best(smp *s, const char *path)
{
    return load(s, path, true);
}

const char *smp_load_note(const smp *s)
{
    return s ? smp__progress_load_note(s->progress) : "";
}
