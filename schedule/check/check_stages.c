/* All that is wrong with the stages of a plan, not only the first thing.
 *
 * Stages are numbered, so a plan is legal if no op reads from a later stage. Where one does, taking
 * stages away from both ends, as far as they wait for or feed none that is left, tells what would help:
 * stages that remain lie on a cycle, and an op has to move; if none do, they are only numbered wrongly.
 * O(ops + edges) for each round of that. */
#include <stdarg.h>
#include <stdio.h>

#include "graph/model/op.h"
#include "schedule/check/check.h"
#include "schedule/plan/op_pattern.h"

#define MAX_ORDER_WORK ((int64_t)100000000)

enum { MAX_HINTS = 20, MAX_ORDER = 1000, MAX_SHOWN = 32, MAX_TWICE = 1000, MAX_PAIRS = 20 };

smp_status smp__find(smp_findings *findings, smp_finding_level level, const char *kind,
                     smp_where where, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *message = smp_arena_alloc(findings->arena, (size_t)(n > 0 ? n : 0) + 1, 1);
    if (message)
        vsnprintf(message, (size_t)n + 1, format, again);
    va_end(again);
    if (!message)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(smp_array_reserve(&findings->item, &findings->capacity, sizeof *findings->item,
                              (size_t)findings->n + 1));
    findings->item[findings->n++] = (smp_finding){level, kind, message, where};
    findings->n_level[level]++;
    return SMP_OK;
}

typedef struct stage_check {
    const smp_graph *graph;
    const smp_sketch *sketch;
    smp_findings *findings;
    int n_stage;
    int32_t *stage;   /* [n_op] */
    smp_where *where; /* [n_op] of the entry that placed it */
    int hints, repeated;
    int64_t work; /* of patterns */
} stage_check;

static smp_status illegal(stage_check *c, const char *kind, smp_where where, const char *message)
{
    return smp__find(c->findings, SMP_FINDING_ILLEGAL, kind, where, "%s", message);
}

static smp_status unknown_op(stage_check *c, const smp_sketch_entry *entry, int stage)
{
    smp_text text = {0};
    smp_text_append(&text, "stage %d names '%s', model '%s' has no such op", stage, entry->text,
                    c->graph->name);
    if (c->hints++ < MAX_HINTS)
        smp_op_pattern_hint(c->graph, entry->text, &text);
    smp_status status = text.failed ? smp_fail_memory(text.capacity)
                                    : illegal(c, "unknown-op", entry->where, text.data);
    smp_text_free(&text);
    return status;
}

static smp_status place_entry(stage_check *c, const smp_sketch_entry *entry, int stage)
{
    smp_op_match match = smp_op_match_begin(c->graph, entry->text);
    SMP_TRY(smp_op_match_allowed(c->graph, &match, entry->where, &c->work));
    int32_t op = smp_op_match_next(c->graph, &match);
    if (op < 0)
        return unknown_op(c, entry, stage);
    for (; op >= 0; op = smp_op_match_next(c->graph, &match)) {
        if (c->stage[op] < 0) {
            c->stage[op] = stage;
            c->where[op] = entry->where;
            continue;
        }
        if (c->repeated++ >= MAX_TWICE)
            return SMP_OK;
        SMP_TRY(smp__find(c->findings, SMP_FINDING_ILLEGAL, "op-twice", entry->where,
                          c->stage[op] == stage ? "op '%s' stands twice in stage %d"
                                                : "op '%s' lies in stage %d and in stage %d",
                          c->graph->op[op].name, c->stage[op], stage));
    }
    return SMP_OK;
}

static smp_status place_ops(stage_check *c)
{
    for (int32_t op = 0; op < c->graph->n_op; op++)
        c->stage[op] = -1;
    for (int i = 0; i < c->sketch->n_listed; i++) {
        const smp_sketch_stage *stage = &c->sketch->stage[i];
        for (int32_t k = 0; k < stage->n_entry; k++)
            SMP_TRY(place_entry(c, &stage->entry[k], stage->stage));
    }
    return SMP_OK;
}

/* Runs of ops that no stage names. */
static smp_status check_missing(stage_check *c)
{
    const smp_graph *graph = c->graph;
    for (int32_t op = 0, end; op < graph->n_op; op = end) {
        end = op + 1;
        if (c->stage[op] >= 0)
            continue;
        while (end < graph->n_op && c->stage[end] < 0)
            end++;
        SMP_TRY(smp__find(c->findings, SMP_FINDING_ILLEGAL, "missing-op", c->sketch->stages_where,
                          end - op == 1 ? "op '%s' lies in no stage"
                                        : "ops '%s' to '%s' lie in no stage",
                          graph->op[op].name, graph->op[end - 1].name));
    }
    return SMP_OK;
}

static smp_status check_empty(stage_check *c, smp_arena *scratch)
{
    int32_t *held = SMP_ARENA_NEW(scratch, int32_t, (size_t)c->n_stage);
    smp_where *where = SMP_ARENA_NEW(scratch, smp_where, (size_t)c->n_stage);
    if (!held || !where)
        return SMP_ERR_NO_MEMORY;
    for (int i = 0; i < c->sketch->n_listed; i++)
        where[c->sketch->stage[i].stage] = c->sketch->stage[i].where;
    for (int32_t op = 0; op < c->graph->n_op; op++) {
        if (c->stage[op] >= 0)
            held[c->stage[op]]++;
    }
    for (int s = 0, end; s < c->n_stage; s = end) {
        end = s + 1;
        if (held[s] > 0)
            continue;
        while (end < c->n_stage && held[end] == 0)
            end++;
        smp_where at = where[s].line > 0 ? where[s] : c->sketch->stages_where;
        if (end - s == 1)
            SMP_TRY(smp__find(c->findings, SMP_FINDING_ILLEGAL, "empty-stage", at,
                              "stage %d of %d holds no op", s, c->n_stage));
        else
            SMP_TRY(smp__find(c->findings, SMP_FINDING_ILLEGAL, "empty-stage", at,
                              "stages %d to %d of %d hold no op", s, end - 1, c->n_stage));
    }
    return SMP_OK;
}

/* Stages that are not yet put in order, and how they hang together. */
typedef struct stage_order {
    bool *left, *waits, *feeds; /* [n_stage]: waits for, feeds another that is left */
    int n_left;
    int64_t work; /* stages and ops looked at */
} stage_order;

static void mark_edges(const stage_check *c, stage_order *o)
{
    const smp_graph *graph = c->graph;
    for (int s = 0; s < c->n_stage; s++)
        o->waits[s] = o->feeds[s] = false;
    for (int32_t op = 0; op < graph->n_op; op++) {
        for (int32_t k = 0; k < graph->op[op].n_in; k++) {
            int32_t from = graph->tensor[graph->op[op].in[k]].producer;
            int32_t a = from >= 0 ? c->stage[from] : -1, b = c->stage[op];
            if (a >= 0 && b >= 0 && a != b && o->left[a] && o->left[b])
                o->feeds[a] = o->waits[b] = true;
        }
    }
    o->work += c->n_stage + graph->n_op;
}

static smp_status open_order(const stage_check *c, smp_arena *scratch, stage_order *o)
{
    size_t n = (size_t)c->n_stage;
    *o = (stage_order){.left = SMP_ARENA_NEW(scratch, bool, n),
                       .waits = SMP_ARENA_NEW(scratch, bool, n),
                       .feeds = SMP_ARENA_NEW(scratch, bool, n),
                       .n_left = c->n_stage};
    if (!o->left || !o->waits || !o->feeds)
        return SMP_ERR_NO_MEMORY;
    for (int s = 0; s < c->n_stage; s++)
        o->left[s] = true;
    return SMP_OK;
}

/* Takes away, from both ends, all stages that lie on no cycle nor between two. */
static void keep_cycles(const stage_check *c, stage_order *o)
{
    for (int before = o->n_left + 1; o->n_left < before && o->work < MAX_ORDER_WORK;) {
        before = o->n_left;
        mark_edges(c, o);
        for (int s = 0; s < c->n_stage; s++)
            if (o->left[s] && (!o->waits[s] || !o->feeds[s])) {
                o->left[s] = false;
                o->n_left--;
            }
    }
}

static smp_status report_cycle(stage_check *c, const stage_order *o, smp_where where)
{
    smp_text text = {0};
    int shown = 0;
    for (int s = 0; s < c->n_stage && shown < MAX_SHOWN; s++)
        if (o->left[s])
            smp_text_append(&text, "%s%d",
                            shown++ == 0     ? "stages "
                            : o->n_left == 2 ? " and "
                                             : ", ",
                            s);
    smp_text_append(&text, "%s %s: an op has to move", o->n_left > shown ? ", ..." : "",
                    o->n_left == 2 ? "feed each other" : "lie on cycles");
    smp_status status =
        text.failed ? smp_fail_memory(text.capacity) : illegal(c, "cycle", where, text.data);
    smp_text_free(&text);
    return status;
}

/* Without a cycle: the order that would make the plan legal (Kahn, the lowest ready stage first). */
static smp_status suggest_order(stage_check *c, stage_order *o)
{
    smp_text text = {0};
    smp_text_append(&text, "no cycle: the plan would be legal with its stages in the order");
    for (int done = 0; done < c->n_stage; done++) {
        int s = 0;
        mark_edges(c, o);
        while (!o->left[s] || o->waits[s])
            s++;
        o->left[s] = false;
        smp_text_append(&text, "%s %d", done > 0 ? "," : "", s);
    }
    smp_status status = text.failed ? smp_fail_memory(text.capacity)
                                    : smp__find(c->findings, SMP_FINDING_NOTE, "order",
                                                c->sketch->stages_where, "%s", text.data);
    smp_text_free(&text);
    return status;
}

static smp_status check_order(stage_check *c, smp_arena *scratch)
{
    const smp_graph *graph = c->graph;
    stage_order o;
    smp_where first = {0};
    int shown = 0;
    for (int32_t op = 0; op < graph->n_op && shown < MAX_ORDER; op++) {
        for (int32_t k = 0; k < graph->op[op].n_in; k++) {
            const smp_tensor *tensor = &graph->tensor[graph->op[op].in[k]];
            int32_t from = tensor->producer;
            if (from < 0 || c->stage[op] < 0 || c->stage[from] <= c->stage[op])
                continue;
            SMP_TRY(smp__find(c->findings, SMP_FINDING_ILLEGAL, "order", c->where[op],
                              "op '%s' in stage %d reads tensor '%s', which op '%s' makes in the "
                              "later stage %d",
                              graph->op[op].name, c->stage[op], tensor->name, graph->op[from].name,
                              c->stage[from]));
            first = shown++ == 0 ? c->where[op] : first;
        }
    }
    if (shown == 0)
        return SMP_OK;
    SMP_TRY(open_order(c, scratch, &o));
    keep_cycles(c, &o);
    if (o.n_left > 0)
        return o.work < MAX_ORDER_WORK ? report_cycle(c, &o, first) : SMP_OK;
    if (c->n_stage > MAX_SHOWN)
        return SMP_OK;
    SMP_TRY(open_order(c, scratch, &o));
    return suggest_order(c, &o);
}

static smp_status check_pins(stage_check *c)
{
    const smp_graph *graph = c->graph;
    for (int32_t i = 0; i < graph->n_op; i++) {
        const smp_op *op = &graph->op[i];
        smp_where where = smp_op_where(graph, op);
        if (op->pin < 0 || c->stage[i] < 0 || op->pin == c->stage[i])
            continue;
        SMP_TRY(smp__find(c->findings, SMP_FINDING_ILLEGAL, "pin", c->where[i],
                          "op '%s' lies in stage %d, the model pins it to stage %d (%s:%d:%d)",
                          op->name, c->stage[i], op->pin, where.file ? where.file : "model",
                          where.line, where.column));
    }
    return SMP_OK;
}

/* The first member elsewhere than the first one; how many more there are. */
static smp_status check_groups(stage_check *c, smp_arena *scratch)
{
    const smp_graph *graph = c->graph;
    size_t n = (size_t)graph->n_group;
    int32_t *first = SMP_ARENA_NEW(scratch, int32_t, n);
    int32_t *other = SMP_ARENA_NEW(scratch, int32_t, n);
    if (!first || !other)
        return SMP_ERR_NO_MEMORY;
    for (size_t g = 0; g < n; g++)
        first[g] = other[g] = -1;
    for (int32_t i = 0; i < graph->n_op; i++) {
        int32_t g = graph->op[i].group;
        if (g < 0 || c->stage[i] < 0)
            continue;
        if (first[g] < 0)
            first[g] = i;
        else if (other[g] < 0 && c->stage[i] != c->stage[first[g]])
            other[g] = i;
    }
    for (size_t g = 0; g < n; g++) {
        if (other[g] < 0)
            continue;
        smp_where where = smp_op_where(graph, &graph->op[other[g]]);
        SMP_TRY(smp__find(c->findings, SMP_FINDING_ILLEGAL, "group", c->where[other[g]],
                          "group '%s' is torn apart: op '%s' lies in stage %d, op '%s' in stage "
                          "%d (%s:%d:%d)",
                          graph->group[g], graph->op[first[g]].name, c->stage[first[g]],
                          graph->op[other[g]].name, c->stage[other[g]],
                          where.file ? where.file : "model", where.line, where.column));
    }
    return SMP_OK;
}

/* Legal, but costs an exchange. */
static smp_status note_ties(stage_check *c)
{
    const smp_graph *graph = c->graph;
    char size[32];
    for (int32_t p = 0; p < graph->n_param; p++) {
        const smp_param *param = &graph->param[p];
        int32_t a = graph->use[param->use_begin].op;
        for (int32_t u = param->use_begin + 1; u < param->use_end; u++) {
            int32_t b = graph->use[u].op;
            if (c->stage[a] < 0 || c->stage[b] < 0 || c->stage[a] == c->stage[b])
                continue;
            SMP_TRY(smp__find(c->findings, SMP_FINDING_NOTE, "tied-weight", c->where[b],
                              "tied weight '%s' (%s) lies in stage %d (op '%s') and stage %d (op "
                              "'%s')%s",
                              param->name, smp_format_bytes(size, sizeof size, param->elements * 4),
                              c->stage[a], graph->op[a].name, c->stage[b], graph->op[b].name,
                              graph->training ? ": its gradient is exchanged once a step" : ""));
            break;
        }
    }
    return SMP_OK;
}

/* Legal, but the same model in other stages will differ in rounding. */
static smp_status note_pairs(stage_check *c)
{
    const smp_graph *graph = c->graph;
    int shown = 0;
    for (int32_t i = 0; i < graph->n_op && shown < MAX_PAIRS; i++) {
        if (!smp_op_fused(graph, i))
            continue;
        int32_t next = i + 1;
        if (c->stage[i] >= 0 && c->stage[next] >= 0 && c->stage[i] != c->stage[next]) {
            shown++;
            SMP_TRY(smp__find(c->findings, SMP_FINDING_NOTE, "pair", c->where[next],
                              "op '%s' and op '%s' are one kernel on %s where a stage holds both: "
                              "cut between them (stages %d and %d), results differ in rounding",
                              graph->op[i].name, graph->op[next].name,
                              smp_backend_name(graph->target.backend), c->stage[i],
                              c->stage[next]));
        }
        i = next;
    }
    return SMP_OK;
}

smp_status smp__check_stages(const smp_graph *graph, const smp_sketch *sketch, int n_stage,
                             int32_t *stage, smp_findings *findings)
{
    smp_arena *scratch = smp_arena_create();
    stage_check c = {
        .graph = graph, .sketch = sketch, .findings = findings, .n_stage = n_stage, .stage = stage};
    smp_status status = SMP_ERR_NO_MEMORY;
    if (scratch)
        c.where = SMP_ARENA_NEW(scratch, smp_where, (size_t)graph->n_op);
    if (c.where)
        status = place_ops(&c);
    if (status == SMP_OK)
        status = check_missing(&c);
    if (status == SMP_OK)
        status = check_empty(&c, scratch);
    if (status == SMP_OK)
        status = check_order(&c, scratch);
    if (status == SMP_OK)
        status = check_pins(&c);
    if (status == SMP_OK)
        status = check_groups(&c, scratch);
    if (status == SMP_OK)
        status = note_ties(&c);
    if (status == SMP_OK)
        status = note_pairs(&c);
    smp_arena_destroy(scratch);
    return status;
}
