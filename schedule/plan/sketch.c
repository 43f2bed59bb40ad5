/* What a sketch means: its shape, and the pins for planning around it. */
#include "schedule/plan/sketch.h"

#include <stdlib.h>

#include "schedule/plan/op_pattern.h"
#include "schedule/plan/plan_field.h"

smp_status smp_sketch_read(const char *path, smp_sketch **out)
{
    smp_yaml *yaml;
    SMP_TRY(smp_yaml_read(path, &yaml));
    return smp__sketch_from_yaml(yaml, false, out);
}

smp_status smp_sketch_parse(const char *name, const char *text, size_t bytes, smp_sketch **out)
{
    smp_yaml *yaml;
    SMP_TRY(smp_yaml_parse(name, text, bytes, &yaml));
    return smp__sketch_from_yaml(yaml, false, out);
}

void smp_sketch_destroy(smp_sketch *sketch)
{
    if (!sketch)
        return;
    for (int r = 0; r < sketch->n_program; r++)
        smp_program_free((smp_program *)&sketch->program[r]);
    smp_arena_destroy(sketch->arena);
}

void smp_sketch_shape(const smp_sketch *sketch, int *pipeline, int *chunks)
{
    int highest = -1;
    for (int i = 0; i < sketch->n_listed; i++)
        highest = sketch->stage[i].rank > highest ? sketch->stage[i].rank : highest;
    if (*pipeline == 0)
        *pipeline = sketch->pipeline;
    if (*pipeline == 0)
        *pipeline = highest >= 0 ? highest + 1 : 0;
    if (*pipeline == 0 && *chunks == 0)
        *chunks = sketch->chunks;
    if (*pipeline == 0) /* a rank per stage, or per `chunks` stages */
        *pipeline = *chunks > 0 ? (sketch->n_stage + *chunks - 1) / *chunks : sketch->n_stage;
    if (*chunks == 0)
        *chunks = sketch->chunks;
    if (*chunks == 0)
        *chunks = sketch->n_stage % *pipeline == 0 ? sketch->n_stage / *pipeline : 0;
}

/* "0,3-5" against the stages of the sketch: which of those listed are meant. */
static smp_status select_stages(const smp_sketch *sketch, const char *text, bool *selected)
{
    for (const char *c = text;;) {
        char *end;
        long first = strtol(c, &end, 10), last = first;
        bool good = end != c && *c >= '0' && *c <= '9';
        if (good && *end == '-') {
            c = end + 1;
            last = strtol(c, &end, 10);
            good = end != c && *c >= '0' && *c <= '9';
        }
        if (!good || (*end && *end != ',') || first > last)
            return smp_fail(SMP_ERR_INPUT, "--fix: got stages '%s', expected a list such as 0,3-5",
                            text);
        for (long s = first; s <= last; s++) {
            int i = 0;
            while (i < sketch->n_listed && sketch->stage[i].stage != s)
                i++;
            if (i == sketch->n_listed)
                return smp_fail_at(sketch->stages_where, "--fix: stage %ld is not in the plan", s);
            selected[i] = true;
        }
        if (!*end)
            return SMP_OK;
        c = end + 1;
    }
}

static smp_status fail_unknown(const smp_graph *graph, const smp_sketch_entry *entry)
{
    smp_text hint = {0};
    smp_op_pattern_hint(graph, entry->text, &hint);
    smp_status status = smp_fail_at(entry->where, "op '%s': model '%s' has none%s", entry->text,
                                    graph->name, hint.data ? hint.data : "");
    smp_text_free(&hint);
    return status;
}

/* fixed: [n_op] the stage that an earlier entry gave, or -1. */
static smp_status pin_entry(const smp_graph *graph, const smp_sketch_entry *entry, int stage,
                            int32_t *fixed, int32_t *pin, int64_t *work)
{
    smp_op_match match = smp_op_match_begin(graph, entry->text);
    SMP_TRY(smp_op_match_allowed(graph, &match, entry->where, work));
    int32_t op = smp_op_match_next(graph, &match);
    if (op < 0)
        return fail_unknown(graph, entry);
    for (; op >= 0; op = smp_op_match_next(graph, &match)) {
        if (fixed[op] >= 0 && fixed[op] != stage)
            return smp_fail_at(entry->where, "op '%s' lies in stage %d and in stage %d",
                               graph->op[op].name, fixed[op], stage);
        if (graph->op[op].pin >= 0 && graph->op[op].pin != stage) {
            smp_where where = smp_op_where(graph, &graph->op[op]);
            return smp_fail_at(entry->where,
                               "--fix: op '%s' lies in stage %d, the model pins it to stage %d "
                               "(%s:%d:%d)",
                               graph->op[op].name, stage, graph->op[op].pin, where.file, where.line,
                               where.column);
        }
        fixed[op] = pin[op] = stage;
    }
    return SMP_OK;
}

smp_status smp_sketch_pins(const smp_sketch *sketch, const smp_graph *graph, const char *stages,
                           int32_t **out)
{
    size_t n = (size_t)graph->n_op;
    int64_t work = 0;
    smp_status status = SMP_OK;
    bool *selected = calloc((size_t)sketch->n_listed, sizeof *selected);
    int32_t *fixed = calloc(n + 1, sizeof *fixed), *pin = calloc(n + 1, sizeof *pin);
    if (!selected || !fixed || !pin)
        status = smp_fail_memory(n * sizeof *pin);
    for (size_t op = 0; status == SMP_OK && op < n; op++) {
        fixed[op] = -1;
        pin[op] = graph->op[op].pin;
    }
    if (status == SMP_OK && stages)
        status = select_stages(sketch, stages, selected);
    for (int i = 0; i < sketch->n_listed && status == SMP_OK; i++) {
        const smp_sketch_stage *stage = &sketch->stage[i];
        for (int32_t k = 0; (!stages || selected[i]) && k < stage->n_entry && status == SMP_OK; k++)
            status = pin_entry(graph, &stage->entry[k], stage->stage, fixed, pin, &work);
    }
    free(selected);
    free(fixed);
    if (status == SMP_OK)
        *out = pin;
    else
        free(pin);
    return status;
}
