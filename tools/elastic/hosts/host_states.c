/* States that hosts keep in memory, into a directory: smp__hosts_save. Each agent writes what its
 * host has into one file, which all of them see. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/checkpoint/checkpoint_copy.h"
#include "exec/checkpoint/checkpoint_folder.h"
#include "tools/elastic/hosts/hosts.h"

static const double tell_s = 10.0, write_s = 600.0;

static bool has_told(const smp__agent_link *link)
{
    return link->told_states;
}

/* One that was lost and is there again has not been asked. */
static bool has_put(const smp__agent_link *link)
{
    return link->put >= 0 || !link->told_states;
}

/* What all have: [n], malloc'ed; what is in it stays the links'. */
static smp_status gather(smp__hosts *h, smp__kept_state **out, int *n)
{
    size_t count = 0;
    *out = NULL;
    *n = 0;
    for (int i = 0; i < h->n; i++)
        count += (size_t)h->host[i].link.n_states;
    smp__kept_state *all = calloc(count + 1, sizeof *all);
    if (!all)
        return smp_fail_memory(count * sizeof *all);
    for (int i = 0; i < h->n; i++)
        for (int k = 0; k < h->host[i].link.n_states; k++) {
            all[*n] = h->host[i].link.states[k];
            all[(*n)++].machine = i;
        }
    *out = all;
    return SMP_OK;
}

/* Is it later than what is on the disk? */
static smp_status is_later(const smp__kept_state *state, const char *directory, bool *later)
{
    smp__saved *list = NULL;
    int n = 0;
    SMP_TRY(smp__checkpoint_list(directory, &list, &n));
    const smp__saved *last = smp__checkpoint_last(list, n);
    *later =
        state->number != INT64_MAX && (!last || smp__kept_is_after(state, last->saved, last->step));
    free(list);
    return SMP_OK;
}

/* Have those that wrote all of it, and are they still there? What a lost one wrote may be half. */
static smp_status check_written(smp__hosts *h, const smp__kept_state *state)
{
    smp__spans all = {0};
    smp_status status = SMP_OK;
    for (int i = 0; i < h->n; i++) {
        const smp__agent_link *link = &h->host[i].link;
        if (h->host[i].state != SMP__HOST_UP || link->put < 0)
            continue;
        for (int k = 0; k < link->n_states; k++) {
            const smp__spans *has = &link->states[k].spans;
            const bool wrote =
                smp__kept_same(&link->states[k], state) && link->put >= smp__spans_bytes(has);
            for (int32_t a = 0; wrote && a < has->n && status == SMP_OK; a++)
                status = smp__spans_add(&all, has->at[a].begin, has->at[a].end);
        }
    }
    smp__spans_join(&all);
    if (status == SMP_OK && !smp__spans_cover(&all, 0, state->bytes))
        status = smp_fail(SMP_ERR_FAILED, "a host was lost while the state was saved");
    smp__spans_free(&all);
    return status;
}

static smp_status copy(smp__hosts *h, const smp__kept_state *state, const char *directory)
{
    smp__checkpoint_copy *file = NULL;
    char line[4096];
    SMP_TRY(smp__checkpoint_copy_begin(directory, state->step, state->bytes, &file));
    const int length = snprintf(line, sizeof line, "put %" PRIx64 " %" PRId64 " %s", state->id,
                                state->step, smp__checkpoint_copy_path(file));
    smp_status status = length < (int)sizeof line - 1
                            ? SMP_OK
                            : smp_fail(SMP_ERR_INPUT, "%s: the name is too long", directory);
    for (int i = 0; i < h->n; i++)
        h->host[i].link.put = -1; /* a late answer of an attempt before came before `states` */
    if (status == SMP_OK) {
        smp__hosts_say(h, line);
        status = smp__hosts_await(h, has_put, write_s);
    }
    if (status == SMP_OK)
        status = check_written(h, state);
    return smp__checkpoint_copy_end(file, status);
}

/* The best of which all is there; NULL: none. *lost: of a later one all was there once. */
static smp_status find_last(const smp__kept_state *all, int n, const char *directory,
                            const smp__kept_state **last, bool *lost)
{
    int n_chosen = 0;
    int *chosen = calloc((size_t)n + 1, sizeof *chosen);
    smp_status status = chosen ? smp__kept_choose(all, n, chosen, &n_chosen) : smp_fail_memory(1);
    *last = NULL;
    *lost = false;
    for (int i = n_chosen - 1; i >= 0; i--)
        if (all[chosen[i]].number != INT64_MAX)
            *last = &all[chosen[i]];
    for (int i = 0; i < n && status == SMP_OK && !*last && !*lost; i++)
        if (all[i].named)
            status = is_later(&all[i], directory, lost);
    free(chosen);
    return status;
}

/* Whoever is up tells what it has, and writes it. What is not all there stays: who has the rest may
 * come back. */
static smp_status save_once(smp__hosts *h, const char *directory, int64_t *step)
{
    smp__kept_state *all = NULL;
    const smp__kept_state *last = NULL;
    int n = 0;
    bool later = false, lost = false;
    *step = 0;
    for (int i = 0; i < h->n; i++) {
        smp__agent_link *link = &h->host[i].link;
        smp__kept_states_free(link->states, link->n_states);
        link->states = NULL;
        link->n_states = 0;
        link->told_states = false;
    }
    smp__hosts_say(h, "states");
    SMP_TRY(smp__hosts_await(h, has_told, tell_s));
    SMP_TRY(gather(h, &all, &n));
    smp_status status = find_last(all, n, directory, &last, &lost);
    if (status == SMP_OK && lost)
        status = smp_fail(SMP_ERR_FAILED, "a host is lost that had a part of the state");
    if (status == SMP_OK && last)
        status = is_later(last, directory, &later);
    if (status == SMP_OK && later)
        status = copy(h, last, directory);
    if (status == SMP_OK && later)
        *step = last->step;
    free(all);
    return status;
}

smp_status smp__hosts_save(smp__hosts *h, const char *directory, int64_t *step)
{
    smp_status status = save_once(h, directory, step);
    for (int again = 0; again < 2 && status == SMP_ERR_FAILED; again++)
        status = save_once(h, directory, step);
    return status;
}
