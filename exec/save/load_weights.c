/* Given weights: smp_load_weights. Every rank reads the heads of the file, finds the tensors of all
 * weights, and reads the values of what it holds: of a weight in parts run by run, or, where they
 * do not lie in order or runs are short, windows of the whole that have some of its own. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "exec/save/checkpoint_keep.h"
#include "exec/state/device_wait.h"
#include "exec/state/progress.h"
#include "exec/state/shards.h"
#include "exec/state/updates.h"
#include "exec/state/weights.h"
#include "graph/safetensors/name_family.h"

enum { WINDOW_ELEMENTS = 1 << 20, SHORT_RUN = 1 << 10 };

typedef struct loading {
    smp *s;
    smp_weights_file *file;
    smp_weight_sources *sources; /* [weights of the model] */
    int32_t unused;
    float *window, *slice; /* WINDOW_ELEMENTS of the whole weight, of the part */
} loading;

static smp_status match(loading *l, const smp_weights_options *options)
{
    const int32_t n = smp_graph_whole(l->s->graph)->n_param;
    smp_matched_weight *weight = NULL;
    smp_name_rules rules = {0};
    smp_status status = smp_name_rules_open(&rules, options->map, options->names);
    if (status == SMP_OK)
        status = smp_graph_list_weights(smp_graph_whole(l->s->graph), &weight);
    if (status == SMP_OK)
        status = smp_weights_match(l->file, &rules, weight, n, options->only, options->n_only,
                                   l->sources, &l->unused);
    free(weight);
    smp_name_rules_free(&rules);
    return status;
}

/* All that can be wrong with names, shapes and memory. */
static smp_status prepare(loading *l, const char *path, const smp_weights_options *options)
{
    const size_t n = (size_t)smp_graph_whole(l->s->graph)->n_param;
    const size_t bytes = n * sizeof *l->sources + 2 * WINDOW_ELEMENTS * sizeof(float);
    if (options->n_only < 0 || (options->n_only > 0 && !options->only))
        return smp_fail(SMP_ERR_INPUT, "smp_load_weights: %d patterns without an array of them",
                        options->n_only);
    l->sources = calloc(n + 1, sizeof *l->sources);
    l->window = malloc(WINDOW_ELEMENTS * sizeof(float));
    l->slice = malloc(WINDOW_ELEMENTS * sizeof(float));
    if (!l->sources || !l->window || !l->slice)
        return smp_fail_memory(bytes);
    SMP_TRY(smp_weights_file_open(path, &l->file));
    return match(l, options);
}

static smp_status read_runs(loading *l, const smp_weight_sources *sources, int32_t index,
                            smp__range here)
{
    const smp__runs runs = smp__runs_of(&l->s->graph->param[l->s->memory->param[index].param]);
    for (int64_t at = here.begin, n; at < here.end; at += n) {
        const int64_t left = smp__runs_left(runs, at);
        n = here.end - at < left ? here.end - at : left;
        n = n < WINDOW_ELEMENTS ? n : WINDOW_ELEMENTS;
        SMP_TRY(
            smp_weight_read(l->file, sources, smp__runs_place(runs, at), n, l->window, l->slice));
        SMP_TRY(smp__copy_in(l->s, smp__weight_at(l->s, index, at), l->window,
                             n * (int64_t)sizeof(float)));
        SMP_TRY(smp__comm_answer(l->s->comm));
    }
    return SMP_OK;
}

/* Each window begins with an element that is here, and ends with the last one that it has room
 * for. */
static smp_status read_windows(loading *l, const smp_weight_sources *sources, int32_t index,
                               smp__range here)
{
    const smp__runs runs = smp__runs_of(&l->s->graph->param[l->s->memory->param[index].param]);
    for (int64_t at = here.begin, end; at < here.end; at = end) {
        const int64_t begin = smp__runs_place(runs, at);
        end = smp__runs_before(runs, begin + WINDOW_ELEMENTS);
        end = end < here.end ? end : here.end;
        const int64_t behind = smp__runs_place(runs, end - 1) + 1;
        SMP_TRY(smp_weight_read(l->file, sources, begin, behind - begin, l->window, l->slice));
        smp__runs_take(runs, l->slice, at, end - at, l->window, begin);
        SMP_TRY(smp__copy_in(l->s, smp__weight_at(l->s, index, at), l->slice,
                             (end - at) * (int64_t)sizeof(float)));
        SMP_TRY(smp__comm_answer(l->s->comm));
    }
    return SMP_OK;
}

static smp_status read_weight(loading *l, int32_t index)
{
    smp *s = l->s;
    const smp_param *param = &s->graph->param[s->memory->param[index].param];
    const smp_weight_sources *sources = &l->sources[param->number];
    const smp__range here = smp__held_range(s, index);
    if (sources->n == 0 || here.begin == here.end)
        return SMP_OK;
    const bool by_run = smp_weight_in_order(sources) && smp__runs_of(param).run >= SHORT_RUN;
    const bool one_run = here.end - here.begin <= smp__runs_left(smp__runs_of(param), here.begin);
    return by_run || (one_run && smp_weight_in_order(sources))
               ? read_runs(l, sources, index, here)
               : read_windows(l, sources, index, here);
}

static smp_status read_weights(loading *l)
{
    for (int32_t i = 0; i < l->s->memory->n_param; i++)
        SMP_TRY(read_weight(l, i));
    return smp__weights_round(l->s);
}

static void note(loading *l)
{
    smp *s = l->s;
    if (l->unused > 0)
        snprintf(smp__progress_load_note(s->progress), SMP__LOAD_NOTE_BYTES,
                 "%s: %" PRId32 " of %" PRId32 " tensors are of no weight that was asked for",
                 l->file->path, l->unused, l->file->n_tensor);
}

smp_status smp_load_weights(smp *s, const char *path, const smp_weights_options *options)
{
    static const smp_weights_options none = {0};
    if (!s || !path)
        return smp_fail(SMP_ERR_INPUT, "smp_load_weights: a NULL argument");
    SMP_TRY(smp__job_usable(s));
    SMP_TRY(smp__updates_settle(s));
    SMP_TRY(smp__keep_settle(s));
    loading l = {.s = s};
    smp__progress_load_note(s->progress)[0] = '\0';
    smp__place_doing(s->place, "loading weights");
    smp_status status = smp__comm_agree(s->comm, prepare(&l, path, options ? options : &none));
    if (status == SMP_OK) {
        status = smp__comm_agree(s->comm, read_weights(&l));
        s->broken = s->broken || status != SMP_OK; /* some weights are new, some old */
    }
    if (status == SMP_OK)
        note(&l);
    smp_weights_file_close(l.file);
    free(l.sources);
    free(l.window);
    free(l.slice);
    return smp__job_leave(s, status);
}
