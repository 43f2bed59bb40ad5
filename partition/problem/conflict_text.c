/* The message about a conflict: each pin and group with its place in the model file. */
#include <stdlib.h>

#include "graph/base/text.h"
#include "partition/problem/conflict.h"

enum { SHOWN_STEPS = 3, SHOWN_ELEMENTS = 6, SHOWN_PARTS = 4 };

static void put_where(const smp_graph *graph, const smp_op *op, smp_text *text)
{
    smp_where where = smp_op_where(graph, op);
    if (where.file && where.line > 0)
        smp_text_append(text, "%s:%d:%d", where.file, where.line, where.column);
    else
        smp_text_append(text, "op '%s'", op->name);
}

static void put_pin(const smp_problem *problem, int32_t index, smp_text *text)
{
    const smp_op *op = &problem->graph->op[index];
    int32_t pin = smp_problem_pin(problem, index);
    smp_text_append(text, "op '%s' (", op->name);
    if (op->pin == pin) {
        smp_text_append(text, "stage: %d, ", pin);
        put_where(problem->graph, op, text);
    } else {
        smp_text_append(text, "fixed to stage %d", pin);
    }
    smp_text_append(text, ")");
}

/* First and last op of a group or of a run that is kept together. */
static void find_ends(const smp_problem *problem, smp__constraint c, int32_t *first, int32_t *last)
{
    *first = *last = -1;
    for (int32_t op = 0; op < problem->graph->n_op; op++) {
        int32_t label =
            c.kind == SMP__CONSTRAINT_GROUP ? problem->graph->op[op].group : problem->together[op];
        if (label != c.index)
            continue;
        *first = *first < 0 ? op : *first;
        *last = op;
    }
}

static void put_element(const smp_problem *problem, smp__constraint c, smp_text *text)
{
    const smp_graph *graph = problem->graph;
    int32_t first, last;
    if (c.kind == SMP__CONSTRAINT_PIN) {
        put_pin(problem, c.index, text);
        return;
    }
    if (c.kind == SMP__CONSTRAINT_TIE) {
        smp_text_append(text, "tied weight '%s'", graph->param[c.index].name);
        return;
    }
    find_ends(problem, c, &first, &last);
    if (c.kind == SMP__CONSTRAINT_TOGETHER) {
        smp_text_append(text, "no cut between '%s' and '%s'", graph->op[first].name,
                        graph->op[last].name);
        return;
    }
    smp_text_append(text, "group '%s' (", graph->group[c.index]);
    put_where(graph, &graph->op[first], text);
    smp_text_append(text, " to ");
    put_where(graph, &graph->op[last], text);
    smp_text_append(text, ")");
}

/* Pins at both ends; of the ops between them the ends of groups and a few others. */
static void put_chain(const smp_problem *problem, const smp__conflict *c,
                      const smp__chain_step *step, int32_t n, smp_text *text)
{
    int32_t last = n - 1, shown = 0, hidden = 0;
    put_pin(problem, step[0].op, text);
    for (int32_t i = 0; i < last; i++) {
        bool joined = step[i].via >= 0, joins = step[i + 1].via >= 0;
        if (joined) {
            smp_text_append(text, " = by ");
            put_element(problem, c->joiner[step[i].via], text);
            smp_text_append(text, " =");
        }
        if (i + 1 == last)
            break;
        if (!joined && !joins && shown >= SHOWN_STEPS) {
            hidden++;
            continue;
        }
        if (hidden > 0)
            smp_text_append(text, " -> ... %d more ...", hidden);
        hidden = 0;
        shown++;
        smp_text_append(text, "%s op '%s'", joined ? "" : " ->",
                        problem->graph->op[step[i + 1].op].name);
    }
    if (hidden > 0)
        smp_text_append(text, " -> ... %d more ...", hidden);
    smp_text_append(text, "%s ", step[last - 1].via >= 0 ? "" : " ->");
    put_pin(problem, step[last].op, text);
}

/* "stage 3", "one of the stages 0 to 2 and 5". */
static void put_stages(const int32_t *stage, int32_t n, smp_text *text)
{
    smp_text_append(text, "%s ", n == 1 ? "stage" : "one of the stages");
    for (int32_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && stage[end] == stage[end - 1] + 1;)
            end++;
        smp_text_append(text, "%s%d", i == 0 ? "" : end == n ? " and " : ", ", stage[i]);
        if (end - i > 1)
            smp_text_append(text, "%s%d", n == 2 ? " and " : " to ", stage[end - 1]);
    }
}

static void put_crowd(const smp_problem *problem, const smp__conflict *c, smp_text *text)
{
    bool pins = false;
    for (int32_t i = 0; i < c->n; i++)
        pins |= c->element[i].kind == SMP__CONSTRAINT_PIN;
    put_stages(c->starved, c->n_starved, text);
    smp_text_append(text, " of %d would be empty: %s needs %s, and ", problem->n_stage,
                    c->n_starved == 1 ? "it" : "each", "a part of the model of its own");
    if (c->n_part == 0)
        smp_text_append(text, "no op is left for %s", c->n_starved == 1 ? "it" : "them");
    else
        smp_text_append(text, "only %d part%s left for %s (", c->n_part,
                        c->n_part == 1 ? " is" : "s are", c->n_starved == 1 ? "it" : "them");
    for (int32_t i = 0; i < c->n_part && i < SHOWN_PARTS; i++)
        smp_text_append(text, "%s'%s'", i > 0 ? ", " : "", problem->graph->op[c->part_op[i]].name);
    if (c->n_part > SHOWN_PARTS)
        smp_text_append(text, ", ...");
    smp_text_append(text, "%s", c->n_part > 0 ? ")" : "");
    if (c->n > 0)
        smp_text_append(text, ", because of %s", pins || c->n == 1 ? "" : "all of ");
    for (int32_t i = 0; i < c->n && i < SHOWN_ELEMENTS; i++) {
        smp_text_append(text, "%s", i == 0 ? "" : i == c->n - 1 ? " and " : ", ");
        put_element(problem, c->element[i], text);
    }
    if (c->n > SHOWN_ELEMENTS)
        smp_text_append(text, " and %d more", c->n - SHOWN_ELEMENTS);
}

static void put_conflict(const smp_problem *problem, const smp__conflict *c, smp_text *text)
{
    if (c->n == 0) {
        smp_text_append(text, "%d stages need as many ops: the model has %d", problem->n_stage,
                        problem->graph->n_op);
        return;
    }
    if (c->n_step > 0) {
        smp_text_append(text, "pins against the flow: ");
        put_chain(problem, c, c->step, c->n_step, text);
        smp_text_append(text, "; no op lies in an earlier stage than what it reads (->)");
    } else {
        put_crowd(problem, c, text);
    }
    smp_text_append(text, ". %s: lifting %s would do",
                    c->smallest ? "No smaller set contradicts itself"
                                : "None of these can be left out",
                    c->n == 1   ? "it"
                    : c->n == 2 ? "either"
                                : "any one of them");
    if (c->n_other > 0) {
        smp_text_append(text, ". Besides, against the flow: ");
        put_chain(problem, c, c->other, c->n_other, text);
    }
}

smp_status smp__conflict_fail(const smp_problem *problem)
{
    smp__conflict conflict;
    smp_text text = {0};
    smp_arena *arena = smp_arena_create();
    if (!arena)
        return SMP_ERR_NO_MEMORY;
    smp_status status = smp__conflict_find(problem, arena, &conflict);
    if (status == SMP_OK) {
        put_conflict(problem, &conflict, &text);
        status = text.failed ? smp_fail_memory(text.capacity)
                             : smp_fail(SMP_ERR_NO_FIT, "%s", text.data);
    }
    smp_text_free(&text);
    smp_arena_destroy(arena);
    return status;
}
