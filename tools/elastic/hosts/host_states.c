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

static bool has_put(const smp__agent_link *link)
{
    return link->put >= 0;
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
    *later = state->number != INT64_MAX && state->number >= smp__checkpoint_last(list, n);
    free(list);
    return SMP_OK;
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
    if (status == SMP_OK) {
        smp__hosts_say(h, line);
        status = smp__hosts_await(h, has_put, write_s) ? SMP_OK : SMP_ERR_FAILED;
    }
    for (int i = 0; i < h->n && status == SMP_OK; i++) { /* one may have been lost meanwhile */
        bool had = false;
        for (int k = 0; k < h->host[i].link.n_states; k++)
            had = had || smp__kept_same(&h->host[i].link.states[k], state);
        if (had && h->host[i].state != SMP__HOST_UP)
            status = smp_fail(SMP_ERR_FAILED, "host %s was lost while the state was saved",
                              h->host[i].name);
    }
    return smp__checkpoint_copy_end(file, status);
}

smp_status smp__hosts_save(smp__hosts *h, const char *directory, int64_t *step)
{
    smp__kept_state *all = NULL;
    int n = 0, n_chosen = 0;
    bool later = false;
    *step = 0;
    smp__hosts_say(h, "states");
    if (!smp__hosts_await(h, has_told, tell_s))
        return SMP_ERR_FAILED;
    SMP_TRY(gather(h, &all, &n));
    int *chosen = calloc((size_t)n + 1, sizeof *chosen);
    smp_status status = chosen ? smp__kept_choose(all, n, chosen, &n_chosen) : smp_fail_memory(1);
    if (status == SMP_OK && n_chosen > 0)
        status = is_later(&all[chosen[0]], directory, &later);
    if (status == SMP_OK && later)
        status = copy(h, &all[chosen[0]], directory);
    if (status == SMP_OK && later)
        *step = all[chosen[0]].step;
    free(chosen);
    free(all);
    return status;
}
