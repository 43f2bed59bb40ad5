/* The smallest set of pins and groups that contradicts itself.
 *
 * Two kinds of contradiction exist. A chain: stages never fall along tensors and stay the same within
 * a group, so a pinned op from which a path leads to an op pinned to an earlier stage is one. A
 * shortest path (Dijkstra, groups counted before ops) from all pins above a stage to all pins not
 * above it is the smallest chain across that stage: no pin stands inside it, for that would make a
 * shorter one. And a crowd: too few parts are left for some stages (a violated Hall condition).
 *
 * A candidate is the smallest chain, else what remains of all constraints when every one that can be
 * left out has been, in halving blocks. All smaller sets are then tried as far as the budget goes:
 * if none contradicts itself, the set is the smallest. */
#include "partition/problem/conflict.h"

#include <math.h>
#include <string.h>

#include "graph/base/clock.h"
#include "partition/problem/conflict_graph.h"

#define CHAIN_WORK ((int64_t)20000000)
#define REDUCE_WORK ((int64_t)60000000)
#define SMALLER_WORK ((int64_t)10000000)
#define JOINER 1e7 /* a chain through fewer groups is smaller, however long */

typedef struct chain_search {
    smp__conflict_graph *graph;
    double *distance; /* [n_node] */
    int32_t *from;    /* [n_node] node before on the path, -1: a source */
    int32_t *touched; /* nodes with a distance */
    smp__heap heap;
    double best;
    smp__chain_step *step; /* via: a joiner of the graph, or -1 */
    int32_t n_step;
} chain_search;

static smp_status open_chain_search(smp__conflict_graph *graph, smp_arena *arena, chain_search *s)
{
    size_t n = (size_t)graph->n_node, edges = 0;
    for (int32_t u = 0; u < graph->n_node; u++)
        edges += (size_t)smp__conflict_degree(graph, u);
    *s = (chain_search){.graph = graph,
                        .distance = SMP_ARENA_NEW(arena, double, n),
                        .from = SMP_ARENA_NEW(arena, int32_t, n),
                        .touched = SMP_ARENA_NEW(arena, int32_t, n),
                        .heap = {SMP_ARENA_NEW(arena, smp__heap_item, n + edges), 0},
                        .best = INFINITY,
                        .step = SMP_ARENA_NEW(arena, smp__chain_step, n)};
    if (!s->distance || !s->from || !s->touched || !s->heap.item || !s->step)
        return SMP_ERR_NO_MEMORY;
    for (size_t u = 0; u < n; u++)
        s->distance[u] = INFINITY;
    return SMP_OK;
}

static void keep_chain(chain_search *s, int32_t end)
{
    int32_t n_op = s->graph->n_op, n = 0;
    for (int32_t u = end; u >= 0; u = s->from[u])
        n += u < n_op;
    s->n_step = n;
    for (int32_t u = end, via = -1; u >= 0; u = s->from[u]) {
        if (u >= n_op) {
            via = u - n_op;
            continue;
        }
        s->step[--n] = (smp__chain_step){u, via};
        via = -1;
    }
}

/* The smallest chain from a pin above `stage` to one that is not, if it is smaller than the best. */
static void search_across(chain_search *s, int32_t stage)
{
    smp__conflict_graph *g = s->graph;
    int32_t n_touched = 0;
    s->heap.n = 0;
    for (int32_t op = 0; op < g->n_op; op++) {
        if (smp__conflict_pin(g, op) <= stage)
            continue;
        s->distance[op] = 0.0;
        s->from[op] = -1;
        s->touched[n_touched++] = op;
        smp__heap_push(&s->heap, 0.0, op);
    }
    g->work += g->n_op;
    while (s->heap.n > 0) {
        double distance = s->heap.item[0].key;
        int32_t u = smp__heap_pop(&s->heap);
        int32_t pin = u < g->n_op ? smp__conflict_pin(g, u) : -1;
        if (distance >= s->best)
            break;
        if (distance > s->distance[u])
            continue;
        if (pin >= 0 && pin <= stage) {
            s->best = distance;
            keep_chain(s, u);
            break;
        }
        int64_t degree = smp__conflict_degree(g, u);
        g->work += degree;
        for (int64_t e = 0; e < degree; e++) {
            int32_t v = smp__conflict_neighbour(g, u, e);
            double longer = distance + (v >= g->n_op ? JOINER : u >= g->n_op ? 0.0 : 1.0);
            if (v < 0 || longer >= s->distance[v] || longer >= s->best)
                continue;
            if (isinf(s->distance[v]))
                s->touched[n_touched++] = v;
            s->distance[v] = longer;
            s->from[v] = u;
            smp__heap_push(&s->heap, longer, v);
        }
    }
    for (int32_t i = 0; i < n_touched; i++)
        s->distance[s->touched[i]] = INFINITY;
}

/* The smallest chain of the constraints that are on, if there is one. The check that has just failed
 * left the ranges: a stage is crossed where some part's range is empty around it. */
static smp_status find_chain(smp__conflict_graph *g, smp_arena *arena, chain_search *out,
                             bool *complete)
{
    int32_t n_stage = g->problem->n_stage;
    bool any = false;
    int64_t start = g->work;
    *complete = true;
    int32_t *crossed = SMP_ARENA_NEW(arena, int32_t, (size_t)n_stage + 1);
    if (!crossed)
        return SMP_ERR_NO_MEMORY;
    for (int32_t p = 0; p < g->n_part; p++) {
        if (g->lo[p] <= g->hi[p])
            continue;
        any = true;
        crossed[g->hi[p]]++;
        crossed[g->lo[p]]--;
    }
    *out = (chain_search){0};
    if (!any)
        return SMP_OK;
    SMP_TRY(open_chain_search(g, arena, out));
    for (int32_t k = 0, open = 0; k < n_stage; k++) {
        open += crossed[k];
        if (open <= 0)
            continue;
        if (out->n_step > 0 && g->work - start > CHAIN_WORK) {
            *complete = false;
            break;
        }
        search_across(out, k);
    }
    return SMP_OK;
}

static void switch_all(smp__conflict_graph *g, bool on)
{
    memset(g->on, on, (size_t)g->n_element * sizeof *g->on);
}

/* Switches on what a chain needs. */
static void switch_chain(smp__conflict_graph *g, const chain_search *chain)
{
    switch_all(g, false);
    g->on[g->pin_element[chain->step[0].op]] = true;
    g->on[g->pin_element[chain->step[chain->n_step - 1].op]] = true;
    for (int32_t i = 0; i < chain->n_step; i++) {
        if (chain->step[i].via >= 0)
            g->on[g->n_pin + chain->step[i].via] = true;
    }
}

/* Switches off, in blocks of halving size, all that can be spared. Those that are on contradict
 * themselves before and after. */
static void reduce(smp__conflict_graph *g, int32_t *list)
{
    int32_t n = 0;
    int64_t start = g->work;
    for (int32_t i = 0; i < g->n_element; i++) {
        if (g->on[i])
            list[n++] = i;
    }
    for (int32_t block = (n + 1) / 2; block > 0; block = block > 1 ? (block + 1) / 2 : 0) {
        int32_t kept = 0;
        for (int32_t begin = 0; begin < n; begin += block) {
            int32_t end = begin + block < n ? begin + block : n;
            for (int32_t i = begin; i < end; i++)
                g->on[list[i]] = false;
            bool spared = g->work - start < REDUCE_WORK && !smp__conflict_graph_check(g);
            for (int32_t i = begin; i < end && !spared; i++) {
                g->on[list[i]] = true;
                list[kept++] = list[i];
            }
        }
        n = kept;
    }
}

/* The next combination of `size` out of n in lexicographic order. */
static bool next_combination(int32_t *chosen, int32_t size, int32_t n)
{
    int32_t i = size - 1;
    while (i >= 0 && chosen[i] == n - size + i)
        i--;
    if (i < 0)
        return false;
    chosen[i]++;
    for (int32_t k = i + 1; k < size; k++)
        chosen[k] = chosen[k - 1] + 1;
    return true;
}

/* Tries every set smaller than `size`; the first that contradicts itself is switched on. False if
 * the budget ended before. */
static bool try_smaller(smp__conflict_graph *g, int32_t *chosen, int32_t size, bool *found)
{
    int64_t start = g->work;
    *found = false;
    if (size == 1 && g->n_op >= g->problem->n_stage)
        return true;
    for (int32_t n = 0; n < size; n++) {
        for (int32_t i = 0; i < n; i++)
            chosen[i] = i;
        do {
            if (g->work - start > SMALLER_WORK || smp_clock_past(g->problem->deadline_s))
                return false;
            switch_all(g, false);
            for (int32_t i = 0; i < n; i++)
                g->on[chosen[i]] = true;
            if (!smp__conflict_graph_check(g)) {
                *found = true;
                return true;
            }
        } while (next_combination(chosen, n, g->n_element));
    }
    return true;
}

/* The elements that are on. */
static smp_status store_elements(const smp__conflict_graph *g, smp_arena *arena, smp__conflict *out)
{
    smp__constraint *element = SMP_ARENA_NEW(arena, smp__constraint, (size_t)g->n_element);
    if (!element)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < g->n_element; i++) {
        if (g->on[i])
            element[out->n++] = g->element[i];
    }
    out->element = element;
    out->joiner = g->element + g->n_pin;
    return SMP_OK;
}

/* Stages that too few parts can fill: the one that failed, and those whose parts it might take. */
static smp_status store_crowd(const smp__conflict_graph *g, smp_arena *arena, smp__conflict *out)
{
    int32_t n_stage = g->problem->n_stage;
    bool *starved = SMP_ARENA_NEW(arena, bool, (size_t)n_stage);
    bool *counted = SMP_ARENA_NEW(arena, bool, (size_t)g->n_part);
    int32_t *before = SMP_ARENA_NEW(arena, int32_t, (size_t)n_stage + 1);
    int32_t *list = SMP_ARENA_NEW(arena, int32_t, (size_t)n_stage);
    int32_t *part_op = SMP_ARENA_NEW(arena, int32_t, (size_t)g->n_part);
    if (!starved || !counted || !before || !list || !part_op)
        return SMP_ERR_NO_MEMORY;
    starved[g->failed_stage] = true;
    for (bool grown = true; grown;) {
        grown = false;
        for (int32_t k = 0; k < n_stage; k++)
            before[k + 1] = before[k] + starved[k];
        for (int32_t p = 0; p < g->n_part; p++) {
            if (counted[p] || before[g->hi[p] + 1] == before[g->lo[p]])
                continue;
            counted[p] = grown = true;
            if (g->matched[p] >= 0)
                starved[g->matched[p]] = true;
        }
    }
    for (int32_t op = 0; op < g->n_op; op++) { /* rising, so the first op of each part */
        if (!counted[g->part[op]])
            continue;
        counted[g->part[op]] = false;
        part_op[out->n_part++] = op;
    }
    for (int32_t k = 0; k < n_stage; k++) {
        if (starved[k])
            list[out->n_starved++] = k;
    }
    out->crowded = true;
    out->part_op = part_op;
    out->starved = list;
    return SMP_OK;
}

static int32_t count_on(const smp__conflict_graph *g)
{
    int32_t n = 0;
    for (int32_t i = 0; i < g->n_element; i++)
        n += g->on[i];
    return n;
}

/* Of the constraints that are on, which contradict themselves, to a set that is small. Where that is
 * no chain although there is one, the chain is kept beside it. */
static smp_status shrink(smp__conflict_graph *g, smp_arena *arena, smp__conflict *out)
{
    chain_search chain;
    bool complete, found;
    int32_t *list = SMP_ARENA_NEW(arena, int32_t, (size_t)g->n_element + 1);
    bool *kept = SMP_ARENA_NEW(arena, bool, (size_t)g->n_element);
    if (!list || !kept)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(find_chain(g, arena, &chain, &complete));
    if (chain.n_step > 0)
        switch_chain(g, &chain);
    else
        reduce(g, list);
    int32_t size = count_on(g);
    memcpy(kept, g->on, (size_t)g->n_element * sizeof *kept);
    out->smallest = try_smaller(g, list, size, &found);
    if (found) {
        out->n_other = chain.n_step;
        out->other = chain.step;
    }
    if (!found)
        memcpy(g->on, kept, (size_t)g->n_element * sizeof *kept);
    return SMP_OK;
}

smp_status smp__conflict_feasible(const smp_problem *problem, bool *feasible)
{
    smp__conflict_graph graph;
    smp_arena *arena = smp_arena_create();
    if (!arena)
        return SMP_ERR_NO_MEMORY;
    smp_status status = smp__conflict_graph_build(problem, arena, &graph);
    if (status == SMP_OK)
        *feasible = smp__conflict_graph_check(&graph);
    smp_arena_destroy(arena);
    return status;
}

smp_status smp__conflict_find(const smp_problem *problem, smp_arena *arena, smp__conflict *out)
{
    smp__conflict_graph graph;
    chain_search chain;
    bool complete;
    *out = (smp__conflict){0};
    SMP_TRY(smp__conflict_graph_build(problem, arena, &graph));
    if (smp__conflict_graph_check(&graph))
        return SMP_OK;
    SMP_TRY(shrink(&graph, arena, out));
    if (smp__conflict_graph_check(&graph))
        return smp_fail(SMP_ERR_FAILED, "internal: a conflict vanished");
    SMP_TRY(find_chain(&graph, arena, &chain, &complete));
    SMP_TRY(store_elements(&graph, arena, out));
    out->n_step = chain.n_step;
    out->step = chain.step;
    if (chain.n_step > 0) {
        out->n_other = 0;
        return SMP_OK;
    }
    return store_crowd(&graph, arena, out);
}
