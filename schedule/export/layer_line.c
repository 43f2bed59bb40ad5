/* Layers of a model by the names of its ops, in one pass over them, and in a second the stage that
 * holds each; an op that disagrees with its layer is the reason of a refusal. */
#include <stdlib.h>
#include <string.h>

#include "schedule/export/layer_line.h"
#include "schedule/plan/layer_names.h"

/* A line under construction: op u belongs to unit unit_of[u]. */
typedef struct line_build {
    const smp_graph *graph;
    smp__layer_line *line;
    const char **name;
    int32_t *first; /* [n] an op of the unit that carries its name */
    int32_t *unit_of;
} line_build;

static smp_status begin_unit(line_build *l, int32_t op, const char *name)
{
    if (!name)
        return SMP_ERR_NO_MEMORY;
    l->name[l->line->n] = name;
    l->first[l->line->n++] = op;
    return SMP_OK;
}

static smp_status begin_layer(line_build *l, int32_t op)
{
    smp_arena *arena = l->line->arena;
    const char *name = l->graph->op[op].name;
    for (int32_t i = l->line->embedding; i < l->line->n; i++)
        if (smp_same_layer(l->graph->op[l->first[i]].name, name))
            return smp_fail(SMP_ERR_INPUT,
                            "op '%s' belongs to layer '%s', but ops of layer '%s' stand between: "
                            "this format needs layers one after the other",
                            name, l->name[i], l->name[l->line->n - 1]);
    l->line->n_layer++;
    const char *layer = smp_arena_printf(arena, "%.*s", (int)smp_layer_length(name), name);
    const char *first = l->graph->op[l->first[l->line->embedding]].name;
    if (l->line->n_layer > 1 && !l->line->other_layer && !smp_same_layer_kind(first, name))
        l->line->other_layer = layer;
    return begin_unit(l, op, layer);
}

/* Embedding, layers, head. */
static smp_status find_units(line_build *l, const char *format)
{
    const smp_graph *graph = l->graph;
    int32_t last = -1; /* op that names a layer */
    for (int32_t u = 0; u < graph->n_op; u++)
        last = smp_layer_length(graph->op[u].name) > 0 ? u : last;
    if (last < 0)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: model '%s' has no layers that are known by their names: expected ops "
                        "that are named like 'h0.attn' or 'layers.0.attn'",
                        format, graph->name);
    for (int32_t u = 0; u < graph->n_op; u++) {
        const char *name = graph->op[u].name;
        bool layer = smp_layer_length(name) > 0;
        if (layer && (l->line->n_layer == 0 ||
                      !smp_same_layer(graph->op[l->first[l->line->n - 1]].name, name)))
            SMP_TRY(begin_layer(l, u));
        else if (!layer && u == 0)
            SMP_TRY(begin_unit(l, u, "embedding"));
        else if (u == last + 1)
            SMP_TRY(begin_unit(l, u, "head"));
        l->line->embedding |= !layer && u == 0;
        l->line->head |= u == last + 1;
        l->unit_of[u] = l->line->n - 1;
    }
    return SMP_OK;
}

/* "h12.ln_1" -> "h*.ln_1": the ops that begin a layer, as --cut-at takes them. */
static void put_pattern(const char *name, smp_text *out)
{
    const size_t end = smp_layer_length(name), kind = smp_layer_kind_length(name);
    smp_text_append(out, "%.*s%s%s", (int)kind, name, end > 0 ? "*" : "", name + end);
}

/* A pattern for each kind of layer, and the head. */
static void put_patterns(const line_build *l, smp_text *out)
{
    const smp__layer_line *line = l->line;
    const int32_t begin = line->embedding && line->n > 1 ? 1 : 0, end = line->n - line->head;
    for (int32_t i = begin; i < end; i++) {
        const char *name = l->graph->op[l->first[i]].name;
        bool known = false;
        for (int32_t k = begin; k < i && !known; k++)
            known = smp_same_layer_kind(l->graph->op[l->first[k]].name, name);
        if (known)
            continue;
        smp_text_append(out, i > begin ? "," : "");
        put_pattern(name, out);
    }
    if (line->head)
        smp_text_append(out, ",%s", l->graph->op[l->first[line->n - 1]].name);
}

static smp_status fail_cut(const line_build *l, const char *format, int32_t unit, int32_t stage,
                           int32_t op, int32_t op_stage)
{
    smp_text patterns = {0};
    put_patterns(l, &patterns);
    smp_status status =
        patterns.failed
            ? smp_fail_memory(patterns.capacity)
            : smp_fail(SMP_ERR_INPUT,
                       "%s: '%s' is cut: it begins in stage %d, its op '%s' lies in stage %d; this "
                       "format can only cut between layers: plan with --cut-at '%s'",
                       format, l->name[unit], (int)stage, l->graph->op[op].name, (int)op_stage,
                       patterns.data);
    smp_text_free(&patterns);
    return status;
}

static smp_status place_units(const line_build *l, const int32_t *stage_of_op, const char *format,
                              int32_t *stage)
{
    for (int32_t i = 0; i < l->line->n; i++)
        stage[i] = -1;
    for (int32_t u = 0; u < l->graph->n_op; u++) {
        int32_t *at = &stage[l->unit_of[u]];
        if (*at >= 0 && *at != stage_of_op[u])
            return fail_cut(l, format, l->unit_of[u], *at, u, stage_of_op[u]);
        *at = stage_of_op[u];
    }
    for (int32_t i = 1; i < l->line->n; i++)
        if (stage[i] < stage[i - 1])
            return smp_fail(SMP_ERR_INPUT,
                            "%s: '%s' lies in stage %d, '%s' after it in stage %d: this format "
                            "runs layers in the order of the model",
                            format, l->name[i - 1], (int)stage[i - 1], l->name[i], (int)stage[i]);
    return SMP_OK;
}

/* The stage of each op of the model as its file says it, malloc'ed: what splitting puts between its
 * ops is no part of a layer, and the other side has its own. */
static smp_status bind(const smp_plan *plan, const smp_graph *graph, int32_t **out)
{
    int32_t *stage_of_op = NULL;
    SMP_TRY(smp_plan_bind(plan, graph, &stage_of_op));
    const smp_graph *whole = smp_graph_whole(graph);
    for (int32_t u = 0; whole != graph && u < whole->n_op; u++) /* none has a lower number there */
        stage_of_op[u] = stage_of_op[smp_graph_find_op(graph, whole->op[u].name)];
    *out = stage_of_op;
    return SMP_OK;
}

smp_status smp__layer_line_of(const smp_plan *plan, const smp_graph *split, const char *format,
                              smp__layer_line *line)
{
    const smp_graph *graph = smp_graph_whole(split);
    int32_t *stage_of_op = NULL;
    SMP_TRY(bind(plan, split, &stage_of_op));
    *line = (smp__layer_line){.arena = smp_arena_create()};
    line_build l = {.graph = graph, .line = line};
    smp_status status = SMP_ERR_NO_MEMORY;
    size_t n = (size_t)graph->n_op;
    int32_t *stage = NULL;
    if (line->arena) {
        l.name = SMP_ARENA_NEW(line->arena, const char *, n + 1);
        l.first = SMP_ARENA_NEW(line->arena, int32_t, n + 1);
        l.unit_of = SMP_ARENA_NEW(line->arena, int32_t, n + 1);
        stage = SMP_ARENA_NEW(line->arena, int32_t, n + 1);
    }
    if (l.name && l.first && l.unit_of && stage)
        status = find_units(&l, format);
    if (status == SMP_OK)
        status = place_units(&l, stage_of_op, format, stage);
    line->name = l.name;
    line->stage = stage;
    if (status != SMP_OK) {
        smp_arena_destroy(line->arena);
        line->arena = NULL;
    }
    free(stage_of_op);
    return status;
}
