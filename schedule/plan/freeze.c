/* Frozen weights by name and pattern; see the header. */
#include "schedule/plan/freeze.h"

#include <stdlib.h>

#include "schedule/plan/op_pattern.h"

static smp_status fail_no_match(const smp_graph *graph, const smp_freeze_entry *entry)
{
    const size_t bytes = ((size_t)graph->n_param + 1) * sizeof(const char *);
    const char **name = malloc(bytes);
    if (!name)
        return smp_fail_memory(bytes);
    size_t n = 0;
    for (int32_t p = 0; p < graph->n_param; p++)
        if (!graph->param[p].running)
            name[n++] = graph->param[p].name;
    const char *near = smp_nearest_like(entry->text, name, n);
    smp_status status = smp_fail_at(
        entry->where, "freeze: no weight of model '%s' matches '%.200s'%s%s%s", graph->name,
        entry->text, near ? ", nearest is '" : "", near ? near : "", near ? "'" : "");
    free(name);
    return status;
}

static int32_t find_param(const void *graph, const char *name)
{
    return smp_graph_find_param(graph, name);
}

static smp_status mark(const smp_freeze_entry *entry, const smp_graph *graph, int64_t *work,
                       bool *frozen)
{
    const smp_op_match match = smp_op_match_among(graph, find_param, graph->n_param, entry->text);
    bool any = false;
    SMP_TRY(smp_op_match_allowed(&match, entry->where, work));
    for (int32_t p = match.next; p >= 0 && p <= match.last; p++)
        if (!graph->param[p].running &&
            (!match.pattern || smp_text_like(match.pattern, graph->param[p].name)))
            frozen[p] = any = true;
    return any ? SMP_OK : fail_no_match(graph, entry);
}

smp_status smp_freezing_apply(const smp_freezing *freezing, smp_graph *graph)
{
    if (freezing->n == 0)
        return SMP_OK;
    int64_t work = 0;
    smp_status status = SMP_OK;
    bool *frozen = calloc((size_t)graph->n_param + 1, sizeof *frozen);
    if (!frozen)
        return smp_fail_memory((size_t)graph->n_param + 1);
    for (int32_t i = 0; i < freezing->n && status == SMP_OK; i++)
        status = mark(&freezing->entry[i], graph, &work, frozen);
    if (status == SMP_OK)
        status = smp_graph_freeze(graph, frozen);
    free(frozen);
    return status;
}

smp_status smp_freezing_of(const smp_graph *graph, smp_arena *arena, smp_freezing *out)
{
    const smp_graph *whole = smp_graph_whole(graph);
    int32_t n = 0;
    for (int32_t p = 0; p < whole->n_param; p++)
        n += whole->param[p].frozen;
    smp_freeze_entry *entry = SMP_ARENA_NEW(arena, smp_freeze_entry, (size_t)n);
    if (!entry)
        return SMP_ERR_NO_MEMORY;
    *out = (smp_freezing){.n = n, .entry = entry};
    for (int32_t p = 0; p < whole->n_param; p++) {
        if (!whole->param[p].frozen)
            continue;
        entry->text = smp_arena_strdup(arena, whole->param[p].name);
        if (!entry++->text)
            return SMP_ERR_NO_MEMORY;
    }
    return SMP_OK;
}

smp_status smp__freezing_read(const smp_yaml_node *top, const char *file, smp_arena *arena,
                              smp_freezing *out)
{
    const smp_yaml_node *list = smp_yaml_get(top, "freeze");
    if (!list)
        return SMP_OK;
    SMP_TRY(smp_yaml_list(list, "freeze"));
    const int32_t n = smp_yaml_list_size(list);
    smp_freeze_entry *entry = SMP_ARENA_NEW(arena, smp_freeze_entry, (size_t)n);
    if (!entry)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < n; i++) {
        const smp_yaml_node *item = smp_yaml_list_at(list, i);
        const char *text;
        SMP_TRY(smp_yaml_string(item, "freeze", &text));
        entry[i].text = smp_arena_strdup(arena, text);
        if (!entry[i].text)
            return SMP_ERR_NO_MEMORY;
        entry[i].where = smp_yaml_where(item);
        entry[i].where.file = file;
    }
    *out = (smp_freezing){.n = n, .entry = entry};
    return SMP_OK;
}
