/* All that is wrong with the stages of a plan, not only the first thing.
 *
 * Stages are numbered, so a plan is legal if no op reads from a later stage. Where one does, the
 * quotient graph tells what would help: on a cycle of stages (found by breadth-first search from
 * each offending edge back to itself) at least one op has to move; without one the stages are only
 * numbered wrongly. O(ops + edges), and edges of the quotient for each cycle that is shown. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/model/op.h"
#include "schedule/check/check.h"
#include "schedule/plan/op_pattern.h"

#define MAX_CYCLE_WORK ((int64_t)100000000)

enum { MAX_HINTS = 20, MAX_ORDER = 1000, MAX_CYCLES = 8, MAX_TWICE = 1000, MAX_PAIRS = 20 };

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
        if (end - op == 1)
            SMP_TRY(smp__find(c->findings, SMP_FINDING_ILLEGAL, "missing-op",
                              c->sketch->stages_where, "op '%s' lies in no stage",
                              graph->op[op].name));
        else
            SMP_TRY(smp__find(c->findings, SMP_FINDING_ILLEGAL, "missing-op",
                              c->sketch->stages_where, "%d ops, '%s' to '%s', lie in no stage",
                              end - op, graph->op[op].name, graph->op[end - 1].name));
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

/* A pair of ops across two stages for each edge of the quotient graph, sorted by stages. */
typedef struct quotient {
    struct edge {
        int32_t from, to; /* stages */
        int32_t producer, reader;
    } * edge;
    int64_t n;
    int64_t *begin;  /* [n_stage + 1] */
    int32_t *parent; /* [n_stage] edge that the search came by, -1: none */
    int32_t *queue;
    int64_t work; /* stages and edges looked at */
} quotient;

static int compare_edges(const void *left, const void *right)
{
    const struct edge *a = left, *b = right;
    if (a->from != b->from)
        return a->from < b->from ? -1 : 1;
    if (a->to != b->to)
        return a->to < b->to ? -1 : 1;
    return (a->reader > b->reader) - (a->reader < b->reader);
}

static smp_status build_quotient(const stage_check *c, smp_arena *scratch, quotient *q)
{
    const smp_graph *graph = c->graph;
    int64_t most = 0;
    for (int32_t op = 0; op < graph->n_op; op++)
        most += graph->op[op].n_in;
    q->edge = SMP_ARENA_NEW(scratch, struct edge, (size_t)most);
    q->begin = SMP_ARENA_NEW(scratch, int64_t, (size_t)c->n_stage + 1);
    q->parent = SMP_ARENA_NEW(scratch, int32_t, (size_t)c->n_stage);
    q->queue = SMP_ARENA_NEW(scratch, int32_t, (size_t)c->n_stage);
    if (!q->edge || !q->begin || !q->parent || !q->queue)
        return SMP_ERR_NO_MEMORY;
    for (int32_t op = 0; op < graph->n_op; op++) {
        for (int32_t k = 0; k < graph->op[op].n_in; k++) {
            int32_t from = graph->tensor[graph->op[op].in[k]].producer;
            if (from >= 0 && c->stage[from] >= 0 && c->stage[op] >= 0 &&
                c->stage[from] != c->stage[op])
                q->edge[q->n++] = (struct edge){c->stage[from], c->stage[op], from, op};
        }
    }
    qsort(q->edge, (size_t)q->n, sizeof *q->edge, compare_edges);
    int64_t n = 0;
    for (int64_t i = 0; i < q->n; i++) {
        if (n == 0 || q->edge[i].from != q->edge[n - 1].from || q->edge[i].to != q->edge[n - 1].to)
            q->edge[n++] = q->edge[i];
    }
    q->n = n;
    for (int64_t i = 0; i < n; i++)
        q->begin[q->edge[i].from + 1]++;
    for (int s = 0; s < c->n_stage; s++)
        q->begin[s + 1] += q->begin[s];
    return SMP_OK;
}

/* Breadth-first from one stage to another; false: no way. */
static bool find_way(quotient *q, int n_stage, int32_t from, int32_t to)
{
    int32_t n = 0;
    q->work += n_stage + q->n;
    for (int s = 0; s < n_stage; s++)
        q->parent[s] = -2;
    q->parent[from] = -1;
    q->queue[n++] = from;
    for (int32_t i = 0; i < n; i++) {
        int32_t s = q->queue[i];
        if (s == to)
            return true;
        for (int64_t e = q->begin[s]; e < q->begin[s + 1]; e++) {
            if (q->parent[q->edge[e].to] != -2)
                continue;
            q->parent[q->edge[e].to] = (int32_t)e;
            q->queue[n++] = q->edge[e].to;
        }
    }
    return false;
}

static void put_edge(const stage_check *c, const struct edge *e, bool first, smp_text *text)
{
    smp_text_append(text, "%s'%s' (stage %d) -> '%s' (stage %d)", first ? "" : ", ",
                    c->graph->op[e->producer].name, e->from, c->graph->op[e->reader].name, e->to);
}

/* The way that was just found and the edge that closes it. */
static smp_status report_cycle(stage_check *c, const quotient *q, const struct edge *closing)
{
    smp_text text = {0}, way = {0};
    int stages = 1;
    for (int32_t s = closing->from; q->parent[s] >= 0; s = q->edge[q->parent[s]].from) {
        put_edge(c, &q->edge[q->parent[s]], stages == 1, &way);
        stages++;
    }
    if (stages == 2)
        smp_text_append(&text,
                        "stages %d and %d feed each other, so they are not convex: ", closing->to,
                        closing->from);
    else
        smp_text_append(&text, "%d stages lie on a cycle: ", stages);
    put_edge(c, closing, true, &text);
    smp_text_append(&text, ", %s; an op has to move", way.data ? way.data : "");
    smp_status status = text.failed || way.failed
                            ? smp_fail_memory(text.capacity)
                            : illegal(c, "cycle", c->where[closing->reader], text.data);
    smp_text_free(&text);
    smp_text_free(&way);
    return status;
}

/* Without a cycle: the order that would make the plan legal (Kahn, the lowest ready stage first;
 * quadratic in the stages, which are few where this is shown). */
static smp_status suggest_order(stage_check *c, const quotient *q, smp_arena *scratch)
{
    enum { MAX_SHOWN = 32 };
    int32_t *wait = SMP_ARENA_NEW(scratch, int32_t, (size_t)c->n_stage);
    smp_text text = {0};
    if (!wait)
        return SMP_ERR_NO_MEMORY;
    if (c->n_stage > MAX_SHOWN)
        return SMP_OK;
    for (int64_t e = 0; e < q->n; e++)
        wait[q->edge[e].to]++;
    smp_text_append(&text, "no cycle: the plan would be legal with its stages in the order");
    for (int done = 0; done < c->n_stage; done++) {
        int s = 0;
        while (wait[s] != 0)
            s++;
        wait[s] = -1;
        smp_text_append(&text, "%s %d", done > 0 ? "," : "", s);
        for (int64_t e = q->begin[s]; e < q->begin[s + 1]; e++)
            wait[q->edge[e].to]--;
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
    quotient q = {0};
    int shown = 0, cycles = 0;
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
            shown++;
        }
    }
    if (shown == 0)
        return SMP_OK;
    SMP_TRY(build_quotient(c, scratch, &q));
    for (int64_t e = 0; e < q.n && cycles < MAX_CYCLES && q.work < MAX_CYCLE_WORK; e++) {
        const struct edge *edge = &q.edge[e];
        if (edge->from < edge->to || !find_way(&q, c->n_stage, edge->to, edge->from))
            continue;
        cycles++;
        SMP_TRY(report_cycle(c, &q, edge));
    }
    return cycles == 0 ? suggest_order(c, &q, scratch) : SMP_OK;
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
