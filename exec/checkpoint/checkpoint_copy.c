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
#include "exec/checkpoint/checkpoint_folder.h"
#include "exec/checkpoint/folder_lock.h"
#include "exec/checkpoint/kept_folder.h"

enum { BLOCK = 1 << 20, TEXT_BYTES = SMP__CHECKPOINT_HEADER_BYTES - 8 };

static const double patience_s = 5.0; /* with a job that is about to end */

struct smp__checkpoint_copy {
    smp__folder_lock *lock;
    int64_t step, bytes;
    int file;
    char to[SMP__CHECKPOINT_PATH_BYTES], part[SMP__CHECKPOINT_PATH_BYTES];
};

smp_status smp__kept_states(const char *kept, smp__kept_state **states, int *n)
{
    smp__kept_folder *folder = NULL;
    *states = NULL;
    *n = 0;
    if (access(kept, F_OK) != 0)
        return SMP_OK;
    smp__kept_state *found = calloc(SMP__KEPT_PLACES, sizeof *found);
    smp_status status =
        found ? smp__kept_peek(kept, &folder) : smp_fail_memory(SMP__KEPT_PLACES * sizeof *found);
    for (int place = 0; place < SMP__KEPT_PLACES && status == SMP_OK; place++) {
        status = smp__kept_look(folder, place, &found[*n]);
        *n += status == SMP_OK && found[*n].step >= 0;
    }
    smp__kept_leave(folder);
    if (status == SMP_OK) {
        *states = found;
        return SMP_OK;
    }
    smp__kept_states_free(found, SMP__KEPT_PLACES);
    *n = 0;
    return status;
}

smp_status smp__kept_is_later(const char *kept, const char *checkpoint, bool *later)
{
    smp__kept_state *states = NULL;
    const smp__kept_state *best = NULL;
    smp__saved *on_disk = NULL;
    int n = 0, n_disk = 0;
    *later = false;
    if (access(checkpoint, F_OK) != 0)
        return SMP_OK;
    smp_status status = smp__kept_states(kept, &states, &n);
    if (status == SMP_OK)
        status = smp__checkpoint_list(checkpoint, &on_disk, &n_disk);
    for (int i = 0; i < n; i++)
        if (states[i].named && states[i].number != INT64_MAX &&
            (!best || smp__kept_is_better(&states[i], best)))
            best = &states[i];
    const smp__saved *last = smp__checkpoint_last(on_disk, n_disk);
    *later =
        status == SMP_OK && best && (!last || smp__kept_is_after(best, last->saved, last->step));
    smp__kept_states_free(states, n);
    free(on_disk);
    return status;
}

static smp_status copy_span(int from, const char *from_path, int to, const char *to_path,
                            smp__span span, const smp__meanwhile *meanwhile, char *block)
{
    for (int64_t at = span.begin, n; at < span.end; at += n) {
        if (meanwhile)
            SMP_TRY(meanwhile->call(meanwhile->of));
        n = span.end - at < BLOCK ? span.end - at : BLOCK;
        SMP_TRY(smp__checkpoint_transfer(from, block, n, at, false, from_path));
        SMP_TRY(smp__checkpoint_transfer(to, block, n, at, true, to_path));
    }
    return SMP_OK;
}

static smp_status put_state(const smp__kept_folder *folder, const char *kept,
                            const smp__kept_state *state, int to, const char *to_path,
                            const smp__meanwhile *meanwhile)
{
    char *block = malloc(BLOCK);
    smp_status status = block ? SMP_OK : smp_fail_memory(BLOCK);
    for (int32_t i = 0; i < state->spans.n && status == SMP_OK; i++)
        status = copy_span(smp__kept_file(folder, state->place), kept, to, to_path,
                           state->spans.at[i], meanwhile, block);
    free(block);
    return status == SMP_OK ? smp__checkpoint_sync(to, to_path) : status;
}

smp_status smp__kept_put_ranges(const char *kept, uint64_t id, int64_t step, int to,
                                const char *to_path, const smp__meanwhile *meanwhile,
                                int64_t *bytes)
{
    smp__kept_folder *folder = NULL;
    *bytes = 0;
    if (access(kept, F_OK) != 0)
        return SMP_OK;
    smp_status status = smp__kept_peek(kept, &folder);
    for (int place = 0; place < SMP__KEPT_PLACES && status == SMP_OK && *bytes == 0; place++) {
        smp__kept_state state;
        status = smp__kept_look(folder, place, &state);
        if (status == SMP_OK && state.step == step && state.id == id)
            status = put_state(folder, kept, &state, to, to_path, meanwhile);
        if (status == SMP_OK && state.step == step && state.id == id)
            *bytes = smp__spans_bytes(&state.spans);
        smp__kept_state_free(&state);
    }
    smp__kept_leave(folder);
    return status;
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

static smp_status make_part(smp__checkpoint_copy *c)
{
    SMP_TRY(smp__folder_lock_take(c->to, patience_s, &c->lock));
    smp__checkpoint_part_path(c->part, c->to, smp__folder_lock_id(c->lock), c->step);
    unlink(c->part);
    c->file = open(c->part, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (c->file < 0)
        return smp_fail(SMP_ERR_FAILED, "%s: cannot create: %s", c->part, strerror(errno));
    if (ftruncate(c->file, (off_t)c->bytes) != 0)
        return smp_fail(SMP_ERR_FAILED, "%s: cannot extend: %s", c->part, strerror(errno));
    return SMP_OK;
}

smp_status smp__checkpoint_copy_begin(const char *to, int64_t step, int64_t bytes,
                                      smp__checkpoint_copy **out)
{
    smp__checkpoint_copy *c = calloc(1, sizeof *c);
    if (!c)
        return smp_fail_memory(sizeof *c);
    c->file = -1;
    c->step = step;
    c->bytes = bytes;
    snprintf(c->to, sizeof c->to, "%.4000s", to);
    const smp_status status = make_part(c);
    if (status == SMP_OK)
        *out = c;
    else
        (void)smp__checkpoint_copy_end(c, status);
    return status;
}

const char *smp__checkpoint_copy_path(const smp__checkpoint_copy *c)
{
    return c->part;
}

/* The same header but for the number of its save; then the name. */
static smp_status finish(const smp__checkpoint_copy *c)
{
    smp__checkpoint_header header = {0};
    char model[SMP__CHECKPOINT_HEADER_BYTES], name[SMP__CHECKPOINT_PATH_BYTES];
    smp__checkpoint_path(name, c->to, c->step);
    SMP_TRY(smp__checkpoint_header_read(c->file, c->part, &header));
    SMP_TRY(read_model(c->file, &header, c->part, model));
    SMP_TRY(smp__checkpoint_next(c->to, &header.saved));
    SMP_TRY(smp__checkpoint_header_write(c->file, &header, model, c->part));
    SMP_TRY(smp__checkpoint_sync(c->file, c->part));
    SMP_TRY(smp__folder_lock_check(c->lock));
    if (rename(c->part, name) != 0)
        return smp_fail(SMP_ERR_FAILED, "%s: cannot be renamed: %s", c->part, strerror(errno));
    return smp__checkpoint_folder_sync(c->to);
}

smp_status smp__checkpoint_copy_end(smp__checkpoint_copy *c, smp_status status)
{
    if (status == SMP_OK)
        status = finish(c);
    if (c->file >= 0)
        close(c->file);
    if (c->file >= 0)
        unlink(c->part); /* unless it has its name */
    smp__folder_lock_release(c->lock);
    free(c);
    return status;
}

/* The one to be gone on from, of those whose header can be read. */
static smp_status find_last(const smp__kept_state *states, int n, const smp__kept_state **last)
{
    int chosen[SMP__KEPT_PLACES], n_chosen = 0;
    *last = NULL;
    SMP_TRY(smp__kept_choose(states, n, chosen, &n_chosen));
    for (int i = n_chosen - 1; i >= 0; i--)
        if (states[chosen[i]].number != INT64_MAX)
            *last = &states[chosen[i]];
    return SMP_OK;
}

static smp_status copy_state(const char *from, const smp__kept_state *state, const char *to,
                             const smp__meanwhile *meanwhile)
{
    smp__checkpoint_copy *copy = NULL;
    int64_t bytes;
    SMP_TRY(smp__checkpoint_copy_begin(to, state->step, state->bytes, &copy));
    return smp__checkpoint_copy_end(copy,
                                    smp__kept_put_ranges(from, state->id, state->step, copy->file,
                                                         copy->part, meanwhile, &bytes));
}

smp_status smp__checkpoint_copy_last(const char *from, const char *to,
                                     const smp__meanwhile *meanwhile, int64_t *step)
{
    smp__kept_state *states = NULL;
    const smp__kept_state *last = NULL;
    bool later = false;
    int n = 0;
    *step = 0;
    SMP_TRY(smp__kept_is_later(from, to, &later));
    smp_status status = later ? smp__kept_states(from, &states, &n) : SMP_OK;
    if (status == SMP_OK)
        status = find_last(states, n, &last);
    if (status == SMP_OK && last)
        status = copy_state(from, last, to, meanwhile);
    if (status == SMP_OK && last)
        *step = last->step;
    smp__kept_states_free(states, n);
    return status;
}
