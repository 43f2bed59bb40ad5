/* A model's splitting from text and back. */
#include "graph/split/splitting.h"

#include <stdlib.h>

#include "graph/base/clock.h"
#include "graph/model/graph_store.h"
#include "graph/split/split_text.h"

/* As much work to split an op as to cost so many. */
#define SPLIT_WORK 8

static smp_status fail_entry(const smp_split_entry *entry, const char *what)
{
    return entry->where.file ? smp_fail_at(entry->where, "split: op '%.200s': %s", entry->op, what)
                             : smp_fail(SMP_ERR_INPUT, "split: op '%.200s': %s", entry->op, what);
}

void smp_splitting_devices(const smp_splitting *splitting, const smp_graph *whole, int *devices)
{
    for (int32_t o = 0; o < whole->n_op; o++)
        devices[o] = splitting->devices;
    for (int32_t i = 0; i < splitting->n_fewer; i++) {
        const int32_t o = smp_graph_find_op(whole, splitting->fewer[i].op);
        if (o >= 0)
            devices[o] = splitting->fewer[i].devices;
    }
}

static smp_status read_choices(const smp_splitting *splitting, const smp_graph *graph, bool *named,
                               const int *devices, smp_split_choice *choice)
{
    for (int32_t o = 0; o < graph->n_op; o++)
        choice[o] = (smp_split_choice){-1, 0, 1};
    for (int32_t i = 0; i < splitting->n_entry; i++) {
        const smp_split_entry *entry = &splitting->entry[i];
        const int32_t o = smp_graph_find_op(graph, entry->op);
        if (o < 0)
            return fail_entry(entry, "the model has no such op");
        if (named[o])
            return fail_entry(entry, "named twice");
        named[o] = true;
        smp_status status = smp_split_parse(graph, o, devices[o], entry->as, &choice[o]);
        if (status == SMP_ERR_INPUT && entry->where.file)
            return smp_fail_at(entry->where, "split: %s", smp_last_error());
        SMP_TRY(status);
    }
    return SMP_OK;
}

smp_status smp_splitting_split(const smp_splitting *splitting, int index, const smp_graph *whole,
                               smp_graph **out)
{
    const size_t n = (size_t)whole->n_op;
    smp_split_choice *choice = calloc(n, sizeof *choice);
    bool *named = calloc(n, sizeof *named);
    int *devices = calloc(n, sizeof *devices);
    smp_work_count(SMP_WORK_COST, SPLIT_WORK * (double)n);
    smp_status status =
        choice && named && devices ? SMP_OK : smp_fail_memory(n * (sizeof *choice + sizeof *named));
    if (status == SMP_OK) {
        smp_splitting_devices(splitting, whole, devices);
        status = read_choices(splitting, whole, named, devices, choice);
    }
    if (status == SMP_OK)
        status = smp_graph_split_groups(whole, splitting->devices, devices, index, choice, out);
    if (status == SMP_OK)
        (*out)->overlap = splitting->overlap;
    free(choice);
    free(named);
    free(devices);
    return status;
}

smp_status smp_splitting_apply(const smp_splitting *splitting, int index, smp_graph **graph)
{
    smp_graph *split;
    if (splitting->devices <= 1)
        return SMP_OK;
    SMP_TRY(smp_splitting_split(splitting, index, *graph, &split));
    ((smp__graph_store *)split)->owned = *graph;
    *graph = split;
    return SMP_OK;
}

smp_status smp_splitting_make(const smp_graph *whole, int devices, const smp_split_choice *choice,
                              smp_arena *arena, smp_splitting *out)
{
    smp_split_entry *entry = SMP_ARENA_NEW(arena, smp_split_entry, (size_t)whole->n_op);
    int32_t n = 0;
    if (!entry)
        return SMP_ERR_NO_MEMORY;
    for (int32_t o = 0; o < whole->n_op; o++) {
        smp_text as = {0};
        if (choice[o].rule < 0)
            continue;
        smp_split_format(whole, o, choice[o], &as);
        entry[n].op = smp_arena_strdup(arena, whole->op[o].name);
        entry[n].as = as.failed ? NULL : smp_arena_strdup(arena, as.data);
        smp_text_free(&as);
        if (!entry[n].op || !entry[n].as)
            return SMP_ERR_NO_MEMORY;
        n++;
    }
    *out = (smp_splitting){.devices = devices, .n_entry = n, .entry = entry};
    return SMP_OK;
}
