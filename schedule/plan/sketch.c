/* What a sketch means: its shape, and the pins for planning around it. */
#include "schedule/plan/sketch.h"

#include <stdlib.h>
#include <string.h>

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

smp_status smp_sketch_groups(const smp_sketch *sketch, int pipeline, int *begin)
{
    const int most = sketch->splitting.devices > 1 ? sketch->splitting.devices : 1;
    int *size = begin + 1;
    for (int r = 0; r <= pipeline; r++)
        begin[r] = 0;
    for (int i = 0; i < sketch->n_listed; i++) {
        const smp_sketch_stage *stage = &sketch->stage[i];
        const int own = stage->tensor > 0 ? stage->tensor : most;
        int *of = &size[(stage->rank >= 0 ? stage->rank : stage->stage) % pipeline];
        if (own > most)
            return smp_fail_at(stage->where,
                               "stage: tensor: got %d, expected at most the %d of `parallel`", own,
                               most);
        if (*of > 0 && *of != own)
            return smp_fail_at(
                stage->where, "stage: tensor: got %d, expected %d, as in another stage of its rank",
                own, *of);
        *of = own;
    }
    for (int r = 0; r < pipeline; r++) {
        const int own = size[r] > 0 ? size[r] : most;
        if (own > SMP__MAX_DEVICES - begin[r])
            return smp_fail_at(sketch->stages_where,
                               "stages: got groups of more than %d devices in all",
                               SMP__MAX_DEVICES);
        begin[r + 1] = begin[r] + own;
    }
    return SMP_OK;
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
    smp_status status = hint.failed
                            ? SMP_ERR_NO_MEMORY
                            : smp_fail_at(entry->where, "op '%s': model '%s' has none%s",
                                          entry->text, graph->name, hint.data ? hint.data : "");
    smp_text_free(&hint);
    return status;
}

/* What is being made of a sketch. */
typedef struct pins {
    const smp_graph *graph;
    int32_t *fixed; /* [n_op] the stage that an earlier entry gave, or -1 */
    int32_t *pin;   /* [n_op] */
    smp_where *where;
    int64_t work;
    bool split; /* the plan's ops are, perhaps in another way than the graph's */
} pins;

/* Is this what a splitting puts between ops, "h0.mlp.proj:whole"? Another one may do without. */
static bool is_between(const pins *p, const smp_sketch_entry *entry)
{
    return p->split && strchr(entry->text, ':') != NULL;
}

static smp_status pin_op(pins *p, const smp_sketch_entry *entry, int stage, int32_t index)
{
    const smp_op *op = &p->graph->op[index];
    smp_where where = smp_op_where(p->graph, op);
    if (p->fixed[index] >= 0 && p->fixed[index] != stage)
        return smp_fail_at(entry->where, "op '%s' lies in stage %d and in stage %d", op->name,
                           p->fixed[index], stage);
    if (op->pin >= 0 && op->pin != stage)
        return smp_fail_at(entry->where,
                           "--fix: op '%s' lies in stage %d, the model pins it to stage %d "
                           "(%s:%d:%d)",
                           op->name, stage, op->pin, where.file, where.line, where.column);
    p->fixed[index] = p->pin[index] = stage;
    p->where[index] = entry->where;
    return SMP_OK;
}

static smp_status pin_entry(pins *p, const smp_sketch_entry *entry, int stage)
{
    smp_op_match match = smp_op_match_begin(p->graph, entry->text);
    SMP_TRY(smp_op_match_allowed(&match, entry->where, &p->work));
    int32_t op = smp_op_match_next(p->graph, &match);
    if (op < 0)
        return is_between(p, entry) ? SMP_OK : fail_unknown(p->graph, entry);
    for (; op >= 0; op = smp_op_match_next(p->graph, &match))
        SMP_TRY(pin_op(p, entry, stage, op));
    return SMP_OK;
}

static smp_status pin_stages(pins *p, const smp_sketch *sketch, const bool *selected)
{
    for (int32_t op = 0; op < p->graph->n_op; op++) {
        p->fixed[op] = -1;
        p->pin[op] = p->graph->op[op].pin;
    }
    for (int i = 0; i < sketch->n_listed; i++)
        for (int32_t k = 0; (!selected || selected[i]) && k < sketch->stage[i].n_entry; k++)
            SMP_TRY(pin_entry(p, &sketch->stage[i].entry[k], sketch->stage[i].stage));
    return SMP_OK;
}

smp_status smp_sketch_pins(const smp_sketch *sketch, const smp_graph *graph, const char *stages,
                           int32_t **pin, smp_where **where)
{
    size_t n = (size_t)graph->n_op + 1;
    pins p = {.graph = graph,
              .fixed = calloc(n, sizeof *p.fixed),
              .pin = calloc(n, sizeof *p.pin),
              .where = calloc(n, sizeof *p.where),
              .split = sketch->splitting.devices > 1};
    bool *selected = calloc((size_t)sketch->n_listed, sizeof *selected);
    smp_status status =
        selected && p.fixed && p.pin && p.where ? SMP_OK : smp_fail_memory(n * sizeof *p.where);
    if (status == SMP_OK && stages)
        status = select_stages(sketch, stages, selected);
    if (status == SMP_OK)
        status = pin_stages(&p, sketch, stages ? selected : NULL);
    free(selected);
    free(p.fixed);
    if (status == SMP_OK) {
        *pin = p.pin;
        *where = p.where;
    } else {
        free(p.pin);
        free(p.where);
    }
    return status;
}
