/* All that is wrong with the stages of a plan, not only the first thing.
 *
 * Stages are numbered, so a plan is legal if no op reads from a later stage. Where one does, stages
 * are taken away that wait for none that is left, then those that feed none: what remains lies on a
 * cycle or between two, and an op has to move; if nothing does, the stages are only numbered
 * wrongly. O(ops + edges) for each stage taken. */
#include <string.h>

#include "graph/model/op.h"
#include "schedule/check/check.h"
#include "schedule/plan/op_pattern.h"

#define MAX_ORDER_WORK ((int64_t)100000000)

enum { MAX_HINTS = 20, MAX_ORDER = 1000, MAX_SHOWN = 32, MAX_TWICE = 1000, MAX_PAIRS = 20 };

smp_status smp__find(smp_findings *findings, smp_finding_level level, const char *kind,
                     smp_where where, const char *message)
{
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

static smp_status unknown_op(stage_check *c, const smp_sketch_entry *entry, int stage)
{
    smp_text hint = {0};
    if (c->hints++ < MAX_HINTS)
        smp_op_pattern_hint(c->graph, entry->text, &hint);
    smp_status status = hint.failed
                            ? SMP_ERR_NO_MEMORY
                            : SMP__FIND(c->findings, ILLEGAL, "unknown-op", entry->where,
                                        "stage %d names '%s', model '%s' has no such op%s", stage,
                                        entry->text, c->graph->name, hint.data ? hint.data : "");
    smp_text_free(&hint);
    return status;
}

static smp_status place_entry(stage_check *c, const smp_sketch_entry *entry, int stage)
{
    smp_op_match match = smp_op_match_begin(c->graph, entry->text);
    SMP_TRY(smp_op_match_allowed(&match, entry->where, &c->work));
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
        SMP_TRY(SMP__FIND(c->findings, ILLEGAL, "op-twice", entry->where,
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

/* Is the op one of those that splitting puts between the model's own? */
static bool is_brought(const smp_graph *graph, int32_t op)
{
    return graph->whole && smp_graph_find_op(graph->whole, graph->op[op].name) < 0;
}

/* Who writes stages of a model that is split knows its ops, not what splitting puts between them:
 * that lies with what it reads or, if that is an input, with the first op that reads it. */
static void place_brought(stage_check *c)
{
    const smp_graph *graph = c->graph;
    for (int32_t op = 0; op < graph->n_op; op++) {
        const int32_t from = graph->tensor[graph->op[op].in[0]].producer;
        if (c->stage[op] >= 0 || from < 0 || !is_brought(graph, op))
            continue;
        c->stage[op] = c->stage[from];
        c->where[op] = c->where[from];
    }
    for (int32_t op = graph->n_op - 1; op >= 0; op--) {
        const int32_t out = graph->op[op].out;
        if (c->stage[op] >= 0 || !is_brought(graph, op))
            continue;
        for (int64_t i = graph->consumer_begin[out]; i < graph->consumer_begin[out + 1]; i++) {
            const int32_t reader = graph->consumer[i].op;
            if (c->stage[reader] < 0 || (c->stage[op] >= 0 && c->stage[op] <= c->stage[reader]))
                continue;
            c->stage[op] = c->stage[reader];
            c->where[op] = c->where[reader];
        }
    }
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
        SMP_TRY(SMP__FIND(c->findings, ILLEGAL, "missing-op", c->sketch->stages_where,
                          end - op == 1 ? "op '%s' lies in no stage"
                                        : "ops '%s' to '%s' lie in no stage",
                          graph->op[op].name, graph->op[end - 1].name));
    }
    return SMP_OK;
}

static smp_status check_empty(stage_check *c, smp_arena *scratch)
{
    bool *held = SMP_ARENA_NEW(scratch, bool, (size_t)c->n_stage);
    smp_where *where = SMP_ARENA_NEW(scratch, smp_where, (size_t)c->n_stage);
    if (!held || !where)
        return SMP_ERR_NO_MEMORY;
    for (int s = 0; s < c->n_stage; s++)
        where[s] = c->sketch->stages_where;
    for (int i = 0; i < c->sketch->n_listed; i++)
        where[c->sketch->stage[i].stage] = c->sketch->stage[i].where;
    for (int32_t op = 0; op < c->graph->n_op; op++)
        if (c->stage[op] >= 0)
            held[c->stage[op]] = true;
    for (int s = 0, end; s < c->n_stage; s = end) {
        for (end = s + 1; !held[s] && end < c->n_stage && !held[end];)
            end++;
        if (!held[s])
            SMP_TRY(SMP__FIND(c->findings, ILLEGAL, "empty-stage", where[s],
                              end - s == 1 ? "stage %d of %d holds no op"
                                           : "stage %d of %d holds no op, nor do those up to %d",
                              s, c->n_stage, end - 1));
    }
    return SMP_OK;
}

/* Stages that are not yet put in order, and how they hang together. */
typedef struct stage_order {
    bool *left, *waits, *feeds; /* [n_stage]: waits for, feeds another that is left */
} stage_order;

/* The next stage to take away: the lowest that waits for none (Kahn), else one that feeds none,
 * else -1. */
static int next_stage(const stage_check *c, const stage_order *o)
{
    const smp_graph *graph = c->graph;
    int next = -1;
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
    for (int s = c->n_stage - 1; s >= 0; s--)
        if (o->left[s] && (!o->waits[s] || (!o->feeds[s] && (next < 0 || o->waits[next]))))
            next = s;
    return next;
}

/* Either a cycle or an order in which the plan would be legal. */
static smp_status explain_order(stage_check *c, smp_arena *scratch, smp_where where)
{
    size_t n = (size_t)c->n_stage;
    int n_left = c->n_stage;
    int64_t work = 0;
    smp_text order = {0}, cycle = {0};
    stage_order o = {SMP_ARENA_NEW(scratch, bool, n), SMP_ARENA_NEW(scratch, bool, n),
                     SMP_ARENA_NEW(scratch, bool, n)};
    if (!o.left || !o.waits || !o.feeds)
        return SMP_ERR_NO_MEMORY;
    memset(o.left, true, n);
    for (; n_left > 0 && work < MAX_ORDER_WORK; n_left--) {
        int s = next_stage(c, &o);
        if (s < 0)
            break;
        o.left[s] = false;
        smp_text_append(&order, "%s %d", order.data ? "," : "", s);
        work += c->n_stage + c->graph->n_op;
    }
    for (int s = 0, shown = 0; s < c->n_stage && shown < MAX_SHOWN; s++)
        if (o.left[s])
            smp_text_append(&cycle, "%s%d", shown++ == 0 ? "" : n_left == 2 ? " and " : ", ", s);
    smp_status status = SMP_OK;
    if (order.failed || cycle.failed)
        status = SMP_ERR_NO_MEMORY;
    else if (n_left == 0 && c->n_stage <= MAX_SHOWN)
        status = SMP__FIND(c->findings, NOTE, "order", c->sketch->stages_where,
                           "no cycle: the plan would be legal with its stages in the order%s",
                           order.data ? order.data : "");
    else if (n_left > 0 && work < MAX_ORDER_WORK)
        status =
            SMP__FIND(c->findings, ILLEGAL, "cycle", where, "stages %s%s %s: an op has to move",
                      cycle.data ? cycle.data : "", n_left > MAX_SHOWN ? ", ..." : "",
                      n_left == 2 ? "feed each other" : "lie on cycles");
    smp_text_free(&order);
    smp_text_free(&cycle);
    return status;
}

static smp_status check_order(stage_check *c, smp_arena *scratch)
{
    const smp_graph *graph = c->graph;
    smp_where first = {0};
    int shown = 0;
    for (int32_t op = 0; op < graph->n_op && shown < MAX_ORDER; op++) {
        for (int32_t k = 0; k < graph->op[op].n_in; k++) {
            const smp_tensor *tensor = &graph->tensor[graph->op[op].in[k]];
            int32_t from = tensor->producer;
            if (from < 0 || c->stage[op] < 0 || c->stage[from] <= c->stage[op])
                continue;
            SMP_TRY(SMP__FIND(c->findings, ILLEGAL, "order", c->where[op],
                              "op '%s' in stage %d reads tensor '%s', which op '%s' makes in the "
                              "later stage %d",
                              graph->op[op].name, c->stage[op], tensor->name, graph->op[from].name,
                              c->stage[from]));
            first = shown++ == 0 ? c->where[op] : first;
        }
    }
    return shown > 0 ? explain_order(c, scratch, first) : SMP_OK;
}

/* Pins, and of each group the first member elsewhere than the first one. */
static smp_status check_wishes(stage_check *c, smp_arena *scratch)
{
    enum { NONE = -1, TORN = -2 };
    const smp_graph *graph = c->graph;
    int32_t *first = SMP_ARENA_NEW(scratch, int32_t, (size_t)graph->n_group);
    if (!first)
        return SMP_ERR_NO_MEMORY;
    for (int32_t g = 0; g < graph->n_group; g++)
        first[g] = NONE;
    for (int32_t i = 0; i < graph->n_op; i++) {
        const smp_op *op = &graph->op[i];
        int32_t g = op->group, s = c->stage[i];
        smp_where where = smp_op_where(graph, op);
        const char *file = where.file ? where.file : "model";
        if (s >= 0 && op->pin >= 0 && op->pin != s)
            SMP_TRY(SMP__FIND(c->findings, ILLEGAL, "pin", c->where[i],
                              "op '%s' lies in stage %d, the model pins it to stage %d (%s:%d:%d)",
                              op->name, s, op->pin, file, where.line, where.column));
        if (s < 0 || g < 0 || first[g] == TORN)
            continue;
        if (first[g] == NONE)
            first[g] = i;
        if (c->stage[first[g]] == s)
            continue;
        SMP_TRY(SMP__FIND(c->findings, ILLEGAL, "group", c->where[i],
                          "group '%s' is torn apart: op '%s' lies in stage %d, op '%s' in stage %d "
                          "(%s:%d:%d)",
                          graph->group[g], graph->op[first[g]].name, c->stage[first[g]], op->name,
                          s, file, where.line, where.column));
        first[g] = TORN;
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
        for (int32_t u = param->use_begin + 1; u < param->use_end && !param->idle; u++) {
            int32_t b = graph->use[u].op;
            if (c->stage[a] < 0 || c->stage[b] < 0 || c->stage[a] == c->stage[b])
                continue;
            SMP_TRY(SMP__FIND(c->findings, NOTE, "tied-weight", c->where[b],
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
        if (!smp_op_tied(graph, i))
            continue;
        int32_t next = i + 1;
        if (c->stage[i] >= 0 && c->stage[next] >= 0 && c->stage[i] != c->stage[next]) {
            shown++;
            SMP_TRY(SMP__FIND(c->findings, NOTE, "pair", c->where[next],
                              "op '%s' and op '%s' are one kernel on %s where a stage holds both: "
                              "cut between them (stages %d and %d), results differ in rounding",
                              graph->op[i].name, graph->op[next].name,
                              smp_backend_name(graph->target.backend), c->stage[i],
                              c->stage[next]));
        }
    }
    return SMP_OK;
}

static smp_status check_all(stage_check *c, smp_arena *scratch)
{
    c->where = SMP_ARENA_NEW(scratch, smp_where, (size_t)c->graph->n_op);
    if (!c->where)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(place_ops(c));
    if (c->graph->whole)
        place_brought(c);
    SMP_TRY(check_missing(c));
    SMP_TRY(check_empty(c, scratch));
    SMP_TRY(check_order(c, scratch));
    SMP_TRY(check_wishes(c, scratch));
    SMP_TRY(note_ties(c));
    return note_pairs(c);
}

smp_status smp__check_stages(const smp_graph *graph, const smp_sketch *sketch, int n_stage,
                             int32_t *stage, smp_findings *findings)
{
    smp_arena *scratch = smp_arena_create();
    stage_check c = {
        .graph = graph, .sketch = sketch, .findings = findings, .n_stage = n_stage, .stage = stage};
    smp_status status = scratch ? check_all(&c, scratch) : SMP_ERR_NO_MEMORY;
    smp_arena_destroy(scratch);
    return status;
}
