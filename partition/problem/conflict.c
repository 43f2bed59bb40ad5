/* A set of constraints that contradicts itself, from which nothing can be left out, by a deletion
 * filter (Chinneck and Dravnieks, "Locating minimal infeasible constraint sets in linear programs",
 * ORSA J. Comput. 1991): a constraint stays out if those that are left allow no pipeline without it
 * either. Blocks of halving size, so that k out of n cost O(k log(n / k)) looks at the unit graph.
 * The smallest set of all would need a search through sets; users lift one constraint at a time. */
#include "partition/problem/conflict.h"

#include "graph/base/clock.h"
#include "graph/base/sets.h"
#include "graph/base/text.h"

#define MAX_WORK ((int64_t)30000000) /* ops looked at */
enum { MAX_NAMED = 6 };

/* Constraints have a number: pins that of their op, groups, labels and parameters follow. */
typedef struct filter {
    const smp_problem *problem;
    int32_t begin[SMP__CONSTRAINT_TIE + 2]; /* numbers by kind */
    bool *on;                               /* by number */
    int32_t *first;                         /* by number: scratch, an op */
    int32_t *list; /* [n] those that exist, what is dropped first in front */
    int32_t n;
    smp_problem variant; /* of the problem: without groups and ties, which become labels */
    smp_graph graph;
    int32_t *pin, *label; /* [n_op] of the variant */
    int64_t work;
} filter;

static smp_status open_filter(filter *f, const smp_problem *problem, smp_arena *arena)
{
    const smp_graph *graph = problem->graph;
    size_t n_op = (size_t)graph->n_op;
    const int32_t count[] = {graph->n_op, graph->n_group, problem->together ? graph->n_op : 0,
                             problem->tie_together ? graph->n_param : 0};
    *f = (filter){.problem = problem, .variant = *problem, .graph = *graph};
    for (int kind = 0; kind <= SMP__CONSTRAINT_TIE; kind++)
        f->begin[kind + 1] = f->begin[kind] + count[kind];
    size_t n = (size_t)f->begin[SMP__CONSTRAINT_TIE + 1];
    f->on = SMP_ARENA_NEW(arena, bool, n);
    f->first = SMP_ARENA_NEW(arena, int32_t, n);
    f->list = SMP_ARENA_NEW(arena, int32_t, n);
    f->pin = SMP_ARENA_NEW(arena, int32_t, n_op);
    f->label = SMP_ARENA_NEW(arena, int32_t, n_op);
    smp_op *op = SMP_ARENA_NEW(arena, smp_op, n_op);
    if (!f->on || !f->first || !f->list || !f->pin || !f->label || !op)
        return SMP_ERR_NO_MEMORY;
    for (size_t i = 0; i < n_op; i++) {
        op[i] = graph->op[i];
        op[i].group = -1;
        f->on[i] = smp_problem_pin(problem, (int32_t)i) >= 0;
        if (graph->op[i].group >= 0)
            f->on[f->begin[SMP__CONSTRAINT_GROUP] + graph->op[i].group] = true;
        if (problem->together && problem->together[i] >= 0)
            f->on[f->begin[SMP__CONSTRAINT_TOGETHER] + problem->together[i]] = true;
    }
    for (int32_t p = f->begin[SMP__CONSTRAINT_TIE]; p < f->begin[SMP__CONSTRAINT_TIE + 1]; p++)
        f->on[p] = true;
    for (int32_t i = (int32_t)n - 1; i >= 0;
         i--) { /* pins say more than groups: they stay longer */
        if (f->on[i])
            f->list[f->n++] = i;
    }
    f->graph.op = op;
    f->variant.graph = &f->graph;
    f->variant.pin = f->pin;
    f->variant.together = f->label;
    f->variant.tie_together = false;
    return SMP_OK;
}

/* Joins an op to those of the same constraint before it. */
static void join(filter *f, smp__constraint_kind kind, int32_t index, int32_t op)
{
    int32_t number = f->begin[kind] + index;
    if (index < 0 || !f->on[number])
        return;
    if (f->first[number] < 0)
        f->first[number] = op;
    smp_set_join(f->label, f->first[number], op);
}

/* Do the constraints that are on allow a pipeline? */
static smp_status look_for_pipeline(filter *f, smp__obstacle *obstacle)
{
    const smp_graph *graph = f->problem->graph;
    smp__units *units = NULL;
    for (int32_t i = 0; i < f->begin[SMP__CONSTRAINT_TIE + 1]; i++)
        f->first[i] = -1;
    for (int32_t op = 0; op < graph->n_op; op++) {
        f->pin[op] = f->on[op] ? smp_problem_pin(f->problem, op) : -1;
        f->label[op] = op;
    }
    for (int32_t op = 0; op < graph->n_op; op++) {
        join(f, SMP__CONSTRAINT_GROUP, graph->op[op].group, op);
        if (f->problem->together)
            join(f, SMP__CONSTRAINT_TOGETHER, f->problem->together[op], op);
    }
    for (int32_t p = 0; f->problem->tie_together && p < graph->n_param; p++) {
        for (int32_t u = graph->param[p].use_begin; u < graph->param[p].use_end; u++)
            join(f, SMP__CONSTRAINT_TIE, p, graph->use[u].op);
    }
    for (int32_t op = 0; op < graph->n_op; op++)
        f->label[op] = smp_set_find(f->label, op);
    f->work += graph->n_op;
    smp_status status = smp__units_try(&f->variant, &units, obstacle);
    smp__units_destroy(units);
    return status;
}

/* Switches off all that can be spared; false if the time for it was too short. */
static smp_status reduce(filter *f, bool *complete)
{
    *complete = true;
    for (int32_t block = (f->n + 1) / 2; block > 0; block = block > 1 ? (block + 1) / 2 : 0) {
        int32_t kept = 0;
        for (int32_t begin = 0; begin < f->n; begin += block) {
            int32_t end = begin + block < f->n ? begin + block : f->n;
            smp__obstacle obstacle = {0};
            for (int32_t i = begin; i < end; i++)
                f->on[f->list[i]] = false;
            *complete &= f->work < MAX_WORK && !smp_work_past(f->problem->deadline_s);
            if (*complete)
                SMP_TRY(look_for_pipeline(f, &obstacle));
            for (int32_t i = begin; i < end && obstacle.kind == SMP__OBSTACLE_NONE; i++) {
                f->on[f->list[i]] = true;
                f->list[kept++] = f->list[i];
            }
        }
        f->n = kept;
    }
    return SMP_OK;
}

smp_status smp__conflict_find(const smp_problem *problem, smp_arena *arena, smp__conflict *out)
{
    filter f;
    *out = (smp__conflict){0};
    SMP_TRY(open_filter(&f, problem, arena));
    SMP_TRY(reduce(&f, &out->minimal));
    SMP_TRY(look_for_pipeline(&f, &out->obstacle));
    smp__constraint *element = SMP_ARENA_NEW(arena, smp__constraint, (size_t)f.n);
    if (!element)
        return SMP_ERR_NO_MEMORY;
    for (int kind = 0; kind <= SMP__CONSTRAINT_TIE; kind++) {
        for (int32_t i = f.begin[kind]; i < f.begin[kind + 1]; i++) {
            if (f.on[i])
                element[out->n++] =
                    (smp__constraint){(smp__constraint_kind)kind, i - f.begin[kind]};
        }
    }
    out->element = element;
    return SMP_OK;
}

static void put_where(smp_where where, const smp_op *op, smp_text *text)
{
    if (where.file && where.line > 0)
        smp_text_append(text, "%s:%d:%d", where.file, where.line, where.column);
    else
        smp_text_append(text, "op '%s'", op->name);
}

static void put_pin(const smp_problem *problem, int32_t index, smp_text *text)
{
    const smp_op *op = &problem->graph->op[index];
    int32_t pin = smp_problem_pin(problem, index);
    bool fixed = problem->pin_where && problem->pin_where[index].file;
    const char *how = fixed ? "fixed to stage" : "stage:";
    smp_text_append(text, "op '%s' (%s %d, ", op->name, how, pin);
    put_where(smp_pin_where(problem->graph, problem->pin_where, index), op, text);
    smp_text_append(text, ")");
}

static void put_element(const smp_problem *problem, smp__constraint c, smp_text *text)
{
    const smp_graph *graph = problem->graph;
    const smp_op *first = NULL, *last = NULL;
    if (c.kind == SMP__CONSTRAINT_PIN) {
        put_pin(problem, c.index, text);
        return;
    }
    if (c.kind == SMP__CONSTRAINT_TIE) {
        smp_text_append(text, "tied weight '%s'", graph->param[c.index].name);
        return;
    }
    for (int32_t op = 0; op < graph->n_op; op++) {
        if ((c.kind == SMP__CONSTRAINT_GROUP ? graph->op[op].group : problem->together[op]) !=
            c.index)
            continue;
        first = first ? first : &graph->op[op];
        last = &graph->op[op];
    }
    if (c.kind == SMP__CONSTRAINT_TOGETHER) {
        smp_text_append(text, "no cut between '%s' and '%s'", first->name, last->name);
        return;
    }
    smp_text_append(text, "group '%s' (", graph->group[c.index]);
    put_where(smp_op_where(graph, first), first, text);
    smp_text_append(text, " to ");
    put_where(smp_op_where(graph, last), last, text);
    smp_text_append(text, ")");
}

static void put_conflict(const smp_problem *problem, const smp__conflict *c, smp_text *text)
{
    int n_part = c->obstacle.n_unit;
    if (c->n == 0)
        smp_text_append(text, "%d stages need as many ops: the model has %d", problem->n_stage,
                        problem->graph->n_op);
    else if (c->obstacle.kind == SMP__OBSTACLE_FLOW)
        smp_text_append(text, "some op would lie in an earlier stage than what it reads");
    else if (c->obstacle.kind == SMP__OBSTACLE_EMPTY_STAGE)
        smp_text_append(text, "one of the %d stages would be empty", problem->n_stage);
    else
        smp_text_append(text,
                        "%d stages need as many parts, the model has %d part%s that can be "
                        "separated",
                        problem->n_stage, n_part, n_part == 1 ? "" : "s");
    for (int32_t i = 0; i < c->n && i < MAX_NAMED; i++) {
        smp_text_append(text, "%s", i == 0 ? ", because of " : i == c->n - 1 ? " and " : ", ");
        put_element(problem, c->element[i], text);
    }
    if (c->n > MAX_NAMED)
        smp_text_append(text, " and %d more", c->n - MAX_NAMED);
    if (c->n > 0 && c->minimal)
        smp_text_append(text, "; %s", c->n == 1 ? "it has to go" : "one of them has to go");
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
