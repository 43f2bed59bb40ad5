/* Choosing what to recompute: greedily, the most bytes per microsecond first, then taking back what
 * was not needed after all.
 *
 * State: the set of calls to be repeated. A value is held from the forward to the backward action
 * if the gradients or a repeated call read it and it is not made by a repeated call itself; saved
 * forward results (aux) are held unless their call is repeated. So letting an op go frees its
 * output and aux, and may cost its inputs. A move is one op (or pair) alone, or with all those ops
 * after it whose outputs no gradient reads, so that what it reads is made again rather than kept:
 * the sum of a residual stream costs its other operand alone, but nothing together with the
 * linear that made it. Moves are looked at as they would be done: done, measured, undone.
 *
 * A step changes what others gain only for the better (a value once held costs nothing more, one
 * that became held can be let go), and only for readers and makers of values that became held or
 * repeated. Each value does so at most once: so many new entries of the heap, O(edges) in all.
 *
 * This is knapsack with dependencies, NP-hard; the greedy ratio rule is within one move of the
 * optimum of the relaxed problem where moves are independent, as most are in networks of layers. */
#include "schedule/memory/recompute_choice.h"

#include <stdlib.h>

#include "schedule/memory/bytes.h"
#include "schedule/memory/layout_build.h"

enum { MAX_MOVE = 16 }; /* calls of one move: bounds the work of looking at it */
#define TINY_US 1e-6    /* free ops are compared by their bytes */

typedef struct entry {
    double ratio; /* bytes per microsecond when it was looked at */
    int32_t call;
} entry;

typedef struct move {
    int32_t n;
    int32_t call[MAX_MOVE];
    int64_t saved;
    double us;
} move;

typedef struct choice {
    smp__layout_build *build;
    const double *us; /* [n_op] */
    int32_t n_call;
    int64_t *bytes;  /* [n_value] of it, while it is held */
    int64_t *aux;    /* [n_call] of what the backward reads of it */
    int64_t *reader; /* [n_value] slots of repeated calls that read it */
    int64_t held;    /* bytes now */
    entry *heap;     /* malloc'ed */
    size_t n, capacity;
} choice;

static const smp_op *op_of(const choice *c, int32_t call)
{
    return &c->build->graph->op[c->build->call[call].op];
}

static bool is_repeated(const choice *c, int32_t value)
{
    return smp__layout_remade(c->build, value);
}

static bool is_needed(const choice *c, int32_t value)
{
    return c->build->need[value] || c->reader[value] > 0;
}

/* Value that an input slot reads; -1: a model input. */
static int32_t read_by(const choice *c, const smp_op *op, int32_t slot)
{
    return c->build->local[op->in[slot]] - 1;
}

/* What a call that is not repeated keeps: those of its outputs that are needed, and aux. */
static int64_t kept_by(const choice *c, int32_t i)
{
    int64_t bytes = c->aux[i];
    int32_t first = smp__layout_first(c->build, i);
    for (int32_t v = first; v < first + smp__layout_n_out(c->build, i); v++)
        bytes += is_needed(c, v) ? c->bytes[v] : 0;
    return bytes;
}

/* Puts a call into the set, or takes it out; `held` stays the sum over the state. */
static void put_call(choice *c, int32_t i)
{
    const smp_op *op = op_of(c, i);
    c->held -= kept_by(c, i);
    c->build->repeated[i] = true;
    for (int32_t slot = 0; slot < op->n_in; slot++) {
        int32_t v = read_by(c, op, slot);
        if (v < 0)
            continue;
        if (!is_needed(c, v) && !is_repeated(c, v))
            c->held += c->bytes[v];
        c->reader[v]++;
    }
}

static void take_call(choice *c, int32_t i)
{
    const smp_op *op = op_of(c, i);
    for (int32_t slot = 0; slot < op->n_in; slot++) {
        int32_t v = read_by(c, op, slot);
        if (v < 0)
            continue;
        c->reader[v]--;
        if (!is_needed(c, v) && !is_repeated(c, v))
            c->held -= c->bytes[v];
    }
    c->build->repeated[i] = false;
    c->held += kept_by(c, i);
}

static bool is_second(const choice *c, int32_t call)
{
    return smp__layout_tied_second(c->build, call);
}

/* A tied pair goes together; a call without is its own first and last. */
static int32_t first_of(const choice *c, int32_t call)
{
    return call - is_second(c, call);
}

static int32_t last_of(const choice *c, int32_t first)
{
    return first + smp__layout_tied(c->build, first);
}

static void do_unit(choice *c, int32_t call, move *m)
{
    int32_t first = first_of(c, call);
    for (int32_t i = first; i <= last_of(c, first); i++) {
        put_call(c, i);
        m->us += c->us[c->build->call[i].op];
        m->call[m->n++] = i;
    }
}

static void undo(choice *c, const move *m)
{
    for (int32_t k = m->n; k-- > 0;)
        take_call(c, m->call[k]);
}

/* Does a move: the unit, and if deep what it reads and no gradient does; stops at MAX_MOVE. */
static void do_move(choice *c, int32_t call, bool deep, move *m)
{
    int64_t before = c->held;
    *m = (move){0};
    do_unit(c, call, m);
    for (int32_t k = 0; k < m->n && deep; k++) {
        const smp_op *op = op_of(c, m->call[k]);
        for (int32_t slot = 0; slot < op->n_in; slot++) {
            int32_t v = read_by(c, op, slot);
            if (v >= 0 && c->build->maker[v] >= 0 && !is_repeated(c, v) && !c->build->need[v] &&
                c->bytes[v] > 0 && m->n + 2 <= MAX_MOVE)
                do_unit(c, c->build->maker[v], m);
        }
    }
    m->saved = before - c->held;
}

static double ratio_of(const move *m)
{
    return (double)m->saved / (m->us + TINY_US);
}

/* The better way to let a unit go, not done. */
static double look_at(choice *c, int32_t call, bool *deep)
{
    move m;
    double ratio[2];
    for (int k = 0; k < 2; k++) {
        do_move(c, call, k, &m);
        ratio[k] = ratio_of(&m);
        undo(c, &m);
    }
    *deep = ratio[1] > ratio[0];
    return ratio[*deep];
}

static void swap(entry *a, entry *b)
{
    entry t = *a;
    *a = *b;
    *b = t;
}

static bool is_before(const entry *a, const entry *b)
{
    return a->ratio != b->ratio ? a->ratio > b->ratio : a->call < b->call;
}

static smp_status push(choice *c, int32_t call)
{
    bool deep;
    if (c->build->repeated[call])
        return SMP_OK;
    entry new = {.ratio = look_at(c, call, &deep), .call = first_of(c, call)};
    if (new.ratio <= 0.0)
        return SMP_OK;
    SMP_TRY(smp_array_reserve(&c->heap, &c->capacity, sizeof *c->heap, c->n + 1));
    size_t k = c->n++;
    for (c->heap[k] = new; k > 0 && is_before(&c->heap[k], &c->heap[(k - 1) / 2]); k = (k - 1) / 2)
        swap(&c->heap[k], &c->heap[(k - 1) / 2]);
    return SMP_OK;
}

static entry pop(choice *c)
{
    entry top = c->heap[0];
    c->heap[0] = c->heap[--c->n];
    for (size_t k = 0, child; (child = 2 * k + 1) < c->n; k = child) {
        if (child + 1 < c->n && is_before(&c->heap[child + 1], &c->heap[child]))
            child++;
        if (!is_before(&c->heap[child], &c->heap[k]))
            break;
        swap(&c->heap[child], &c->heap[k]);
    }
    return top;
}

/* Who reads a value, and who makes it, may gain more now. */
static smp_status push_around(choice *c, int32_t tensor)
{
    const smp_graph *graph = c->build->graph;
    const smp_flow *flow = c->build->flow;
    int32_t maker = c->build->maker[c->build->local[tensor] - 1];
    if (maker >= 0)
        SMP_TRY(push(c, maker));
    for (int64_t k = graph->consumer_begin[tensor]; k < graph->consumer_begin[tensor + 1]; k++) {
        int32_t reader = graph->consumer[k].op;
        if (flow->stage_of_op[reader] == c->build->stage)
            SMP_TRY(push(c, c->build->maker[c->build->local[graph->op[reader].out] - 1]));
    }
    return SMP_OK;
}

static smp_status push_changed(choice *c, const move *done)
{
    for (int32_t k = 0; k < done->n; k++) {
        const smp_op *op = op_of(c, done->call[k]);
        for (int32_t t = op->out; t < op->out + op->n_out; t++)
            SMP_TRY(push_around(c, t));
        for (int32_t slot = 0; slot < op->n_in; slot++) {
            int32_t v = read_by(c, op, slot);
            if (v >= 0 && !c->build->need[v] && c->reader[v] == 1)
                SMP_TRY(push_around(c, op->in[slot]));
        }
    }
    return SMP_OK;
}

static smp_status choose_greedily(choice *c, int64_t goal)
{
    for (int32_t i = 0; i < c->n_call; i++)
        if (!is_second(c, i))
            SMP_TRY(push(c, i));
    while (c->n > 0 && c->held > goal) {
        entry top = pop(c);
        bool deep;
        move m;
        if (c->build->repeated[top.call] || look_at(c, top.call, &deep) <= 0.0)
            continue;
        do_move(c, top.call, deep, &m);
        SMP_TRY(push_changed(c, &m));
    }
    return SMP_OK;
}

/* By falling time, then by rising call. */
static int compare_entries(const void *left, const void *right)
{
    const entry *a = left, *b = right;
    return is_before(a, b) ? -1 : 1;
}

static void put_unit(choice *c, int32_t first, bool in)
{
    for (int32_t i = first; i <= last_of(c, first); i++) {
        if (in)
            put_call(c, i);
        else
            take_call(c, i);
    }
}

/* The last move may have saved more than was missing, and made earlier ones idle: the longest first
 * is taken back where the goal (or, where that was missed, all that was saved) stands without. */
static smp_status take_back(choice *c, int64_t goal)
{
    goal = c->held > goal ? c->held : goal;
    c->n = 0;
    SMP_TRY(smp_array_reserve(&c->heap, &c->capacity, sizeof *c->heap, (size_t)c->n_call));
    for (int32_t i = 0; i < c->n_call; i++)
        if (c->build->repeated[i] && !is_second(c, i)) {
            double us = 0.0;
            for (int32_t k = i; k <= last_of(c, i); k++)
                us += c->us[c->build->call[k].op];
            c->heap[c->n++] = (entry){us, i};
        }
    if (c->n > 0)
        qsort(c->heap, c->n, sizeof *c->heap, compare_entries);
    for (size_t k = 0; k < c->n; k++) {
        put_unit(c, c->heap[k].call, false);
        if (c->held > goal)
            put_unit(c, c->heap[k].call, true);
    }
    return SMP_OK;
}

static bool is_read(const choice *c, int32_t call)
{
    int32_t first = smp__layout_first(c->build, call);
    for (int32_t v = first; v < first + smp__layout_n_out(c->build, call); v++)
        if (is_needed(c, v))
            return true;
    return false;
}

/* Backwards, calls that nothing needs: the layout would not repeat them. */
static void drop_idle(choice *c)
{
    for (int32_t i = c->n_call - 1; i >= 0; i--) {
        if (is_second(c, i) || !c->build->repeated[i])
            continue;
        bool idle = true;
        put_unit(c, i, false);
        for (int32_t k = i; k <= last_of(c, i); k++)
            idle = idle && !is_read(c, k) && c->aux[k] == 0;
        if (!idle)
            put_unit(c, i, true);
    }
}

static smp_status fill(choice *c, smp__layout_build *build, const double *forward_us)
{
    const smp_graph *graph = build->graph;
    const smp_flow *flow = build->flow;
    size_t n_value = (size_t)build->n_value;
    *c = (choice){.build = build, .us = forward_us, .n_call = build->layout->n_call};
    c->bytes = SMP_ARENA_NEW(build->scratch, int64_t, n_value);
    c->aux = SMP_ARENA_NEW(build->scratch, int64_t, (size_t)c->n_call);
    c->reader = SMP_ARENA_NEW(build->scratch, int64_t, n_value);
    if (!c->bytes || !c->aux || !c->reader)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < c->n_call; i++) {
        bool kept;
        int64_t aux = smp__layout_aux_bytes(build, i, &kept);
        const smp_op *op = op_of(c, i);
        for (int32_t t = op->out; t < op->out + op->n_out; t++)
            c->bytes[build->local[t] - 1] =
                t == graph->loss ? 0 : smp__bytes_align(smp_tensor_bytes(graph, t, flow->batch));
        c->aux[i] = kept ? smp__bytes_align(aux) : 0;
        c->held += c->aux[i];
    }
    for (int32_t k = 0; k < build->layout->n_border; k++)
        if (build->border[k].kind == SMP_BORDER_IN)
            c->bytes[build->local[build->border[k].tensor] - 1] =
                smp__bytes_align(build->border[k].bytes);
    for (int32_t v = 0; v < build->n_value; v++)
        c->held += build->need[v] ? c->bytes[v] : 0;
    return SMP_OK;
}

/* What is held if every op is named: as many as the layout then repeats. */
static int64_t held_by_all(choice *c)
{
    for (int32_t i = 0; i < c->n_call; i++)
        put_call(c, i);
    drop_idle(c);
    int64_t held = c->held;
    for (int32_t i = 0; i < c->n_call; i++)
        if (c->build->repeated[i])
            take_call(c, i);
    return held;
}

/* True: naming all ops is the choice. */
static smp_status choose(choice *c, double bytes_to_save, bool *all, int64_t *saved)
{
    int64_t none = c->held, least = held_by_all(c);
    double left = (double)none - bytes_to_save;
    int64_t goal = left > 0.0 ? (int64_t)left : 0;
    SMP_TRY(choose_greedily(c, goal));
    SMP_TRY(take_back(c, goal));
    drop_idle(c);
    *all = c->held > goal && least < c->held;
    *saved = none - (*all ? least : c->held);
    return SMP_OK;
}

smp_status smp_recompute_choose(const smp_graph *graph, const smp_flow *flow, int stage,
                                const double *forward_us, double bytes_to_save, bool *mask,
                                int64_t *saved)
{
    choice c;
    bool all;
    int64_t bytes;
    smp__layout_build build = {.graph = graph, .flow = flow, .stage = stage};
    SMP_TRY(smp__layout_open(&build));
    smp_status status = fill(&c, &build, forward_us);
    if (status == SMP_OK)
        status = choose(&c, bytes_to_save, &all, &bytes);
    for (int32_t i = 0; i < build.layout->n_call && status == SMP_OK; i++)
        mask[build.call[i].op] = all || build.repeated[i];
    if (status == SMP_OK && saved)
        *saved = bytes;
    free(c.heap);
    smp_arena_destroy(build.scratch);
    smp_layout_destroy(build.layout);
    return status;
}

smp_status smp_recompute_repeats(const smp_graph *graph, const smp_flow *flow, int stage,
                                 const bool *recompute, bool *repeats)
{
    smp__layout_build build = {
        .graph = graph, .flow = flow, .recompute = recompute, .stage = stage};
    SMP_TRY(smp__layout_open(&build));
    smp__layout_find_repeated(&build);
    for (int32_t i = 0; i < build.layout->n_call; i++)
        repeats[build.call[i].op] = build.repeated[i];
    smp_arena_destroy(build.scratch);
    smp_layout_destroy(build.layout);
    return SMP_OK;
}
