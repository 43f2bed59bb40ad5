/* Constraints on and off, and whether those that are on allow a pipeline: Tarjan's components ("Depth
 * -first search and linear graph algorithms", SIAM J. Comput. 1972) are the parts, pins bound the
 * stages of each part, and every stage needs a part of its own (see pins.c for why a greedy matching
 * decides that). Without joiners every op is a part. O(n log n + edges) a check. */
#include "partition/problem/conflict_graph.h"

#include <string.h>

/* Joiners of at least two ops, gathered member by member. */
typedef struct gather {
    smp__constraint *kind;
    int64_t *begin;
    int32_t *member;
    int32_t n;
    int64_t n_member;
} gather;

static void close_joiner(gather *g, smp__constraint_kind kind, int32_t index)
{
    if (g->n_member - g->begin[g->n] < 2) {
        g->n_member = g->begin[g->n];
        return;
    }
    g->kind[g->n++] = (smp__constraint){kind, index};
    g->begin[g->n] = g->n_member;
}

/* Ops that share a label; label -1: none. */
static smp_status gather_labels(gather *g, smp_arena *arena, smp__constraint_kind kind, int32_t n,
                                int32_t n_label, const int32_t *label, const smp_op *op)
{
    int64_t *begin = SMP_ARENA_NEW(arena, int64_t, (size_t)n_label + 2);
    int32_t *list = SMP_ARENA_NEW(arena, int32_t, (size_t)n);
    if (!begin || !list)
        return SMP_ERR_NO_MEMORY;
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; i < n; i++) {
            int32_t l = label ? label[i] : op[i].group;
            if (l < 0)
                continue;
            if (pass == 0)
                begin[l + 2]++;
            else
                list[begin[l + 1]++] = i;
        }
        for (int32_t l = 0; pass == 0 && l < n_label; l++)
            begin[l + 2] += begin[l + 1];
    }
    for (int32_t l = 0; l < n_label; l++) {
        for (int64_t k = begin[l]; k < begin[l + 1]; k++)
            g->member[g->n_member++] = list[k];
        close_joiner(g, kind, l);
    }
    return SMP_OK;
}

static void gather_ties(gather *g, const smp_graph *graph)
{
    for (int32_t p = 0; p < graph->n_param; p++) {
        int32_t last = -1;
        for (int32_t u = graph->param[p].use_begin; u < graph->param[p].use_end; u++) {
            if (graph->use[u].op != last)
                g->member[g->n_member++] = last = graph->use[u].op;
        }
        close_joiner(g, SMP__CONSTRAINT_TIE, p);
    }
}

static smp_status gather_joiners(const smp_problem *problem, smp_arena *arena, gather *out)
{
    const smp_graph *graph = problem->graph;
    size_t most = (size_t)graph->n_group + (problem->together ? (size_t)graph->n_op : 0) +
                  (problem->tie_together ? (size_t)graph->n_param : 0);
    size_t members = (size_t)graph->n_op * 2 + (size_t)graph->n_use;
    out->kind = SMP_ARENA_NEW(arena, smp__constraint, most);
    out->begin = SMP_ARENA_NEW(arena, int64_t, most + 1);
    out->member = SMP_ARENA_NEW(arena, int32_t, members);
    if (!out->kind || !out->begin || !out->member)
        return SMP_ERR_NO_MEMORY;
    if (graph->n_group > 0)
        SMP_TRY(gather_labels(out, arena, SMP__CONSTRAINT_GROUP, graph->n_op, graph->n_group, NULL,
                              graph->op));
    if (problem->together)
        SMP_TRY(gather_labels(out, arena, SMP__CONSTRAINT_TOGETHER, graph->n_op, graph->n_op,
                              problem->together, NULL));
    if (problem->tie_together)
        gather_ties(out, graph);
    return SMP_OK;
}

static smp_status list_elements(smp__conflict_graph *g, smp_arena *arena, const gather *joiners)
{
    size_t n_op = (size_t)g->n_op;
    g->pin_element = SMP_ARENA_NEW(arena, int32_t, n_op);
    smp__constraint *element = SMP_ARENA_NEW(arena, smp__constraint, n_op + (size_t)g->n_join);
    if (!g->pin_element || !element)
        return SMP_ERR_NO_MEMORY;
    for (int32_t op = 0; op < g->n_op; op++) {
        g->pin_element[op] = -1;
        if (smp_problem_pin(g->problem, op) < 0)
            continue;
        g->pin_element[op] = g->n_pin;
        element[g->n_pin++] = (smp__constraint){SMP__CONSTRAINT_PIN, op};
    }
    for (int32_t j = 0; j < g->n_join; j++)
        element[g->n_pin + j] = joiners->kind[j];
    g->element = element;
    g->n_element = g->n_pin + g->n_join;
    g->on = SMP_ARENA_NEW(arena, bool, (size_t)g->n_element);
    if (!g->on)
        return SMP_ERR_NO_MEMORY;
    memset(g->on, true, (size_t)g->n_element * sizeof *g->on);
    return SMP_OK;
}

static smp_status invert_members(smp__conflict_graph *g, smp_arena *arena)
{
    int64_t n_member = g->member_begin[g->n_join];
    int64_t *begin = SMP_ARENA_NEW(arena, int64_t, (size_t)g->n_op + 2);
    g->join = SMP_ARENA_NEW(arena, int32_t, (size_t)n_member);
    if (!begin || !g->join)
        return SMP_ERR_NO_MEMORY;
    for (int64_t k = 0; k < n_member; k++)
        begin[g->member[k] + 2]++;
    for (int32_t op = 0; op < g->n_op; op++)
        begin[op + 2] += begin[op + 1];
    for (int32_t j = 0; j < g->n_join; j++) {
        for (int64_t k = g->member_begin[j]; k < g->member_begin[j + 1]; k++)
            g->join[begin[g->member[k] + 1]++] = j;
    }
    g->join_begin = begin;
    return SMP_OK;
}

smp_status smp__conflict_graph_build(const smp_problem *problem, smp_arena *arena,
                                     smp__conflict_graph *out)
{
    gather joiners = {0};
    *out = (smp__conflict_graph){.problem = problem, .n_op = problem->graph->n_op};
    SMP_TRY(gather_joiners(problem, arena, &joiners));
    out->n_join = joiners.n;
    out->n_node = out->n_op + out->n_join;
    out->member_begin = joiners.begin;
    out->member = joiners.member;
    SMP_TRY(list_elements(out, arena, &joiners));
    SMP_TRY(invert_members(out, arena));
    size_t n = (size_t)out->n_node;
    int32_t **const arrays[] = {&out->part,  &out->lo,  &out->hi,   &out->matched, &out->part_order,
                                &out->index, &out->low, &out->open, &out->path};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        if (!(*arrays[i] = SMP_ARENA_NEW(arena, int32_t, n)))
            return SMP_ERR_NO_MEMORY;
    }
    out->count = SMP_ARENA_NEW(arena, int32_t, n + (size_t)problem->n_stage + 2);
    out->next = SMP_ARENA_NEW(arena, int64_t, n);
    out->heap.item = SMP_ARENA_NEW(arena, smp__heap_item, n);
    return out->count && out->next && out->heap.item ? SMP_OK : SMP_ERR_NO_MEMORY;
}

/* Tarjan without recursion from one root. */
static void close_from(smp__conflict_graph *g, int32_t root, int32_t *seen, int32_t *n_open)
{
    int32_t n_path = 0;
    g->path[n_path++] = root;
    while (n_path > 0) {
        int32_t u = g->path[n_path - 1];
        if (!g->index[u]) {
            g->index[u] = g->low[u] = ++*seen;
            g->open[(*n_open)++] = u;
            g->next[u] = 0;
        }
        if (g->next[u] < smp__conflict_degree(g, u)) {
            int32_t v = smp__conflict_neighbour(g, u, g->next[u]++);
            g->work++;
            if (v >= 0 && !g->index[v])
                g->path[n_path++] = v;
            else if (v >= 0 && g->part[v] < 0 && g->index[v] < g->low[u])
                g->low[u] = g->index[v];
            continue;
        }
        n_path--;
        if (n_path > 0 && g->low[u] < g->low[g->path[n_path - 1]])
            g->low[g->path[n_path - 1]] = g->low[u];
        if (g->low[u] != g->index[u])
            continue;
        int32_t v;
        do {
            v = g->open[--*n_open];
            g->part[v] = g->n_part;
        } while (v != u);
        g->n_part++;
    }
}

/* Parts and the nodes by falling part. */
static void find_parts(smp__conflict_graph *g)
{
    int32_t seen = 0, n_open = 0, joined = 0;
    for (int32_t j = 0; j < g->n_join; j++)
        joined += g->on[g->n_pin + j];
    g->n_part = 0;
    g->work += g->n_node;
    for (int32_t u = 0; u < g->n_node; u++) {
        g->part[u] = -1;
        g->index[u] = 0;
    }
    if (joined == 0) { /* file order is topological */
        g->n_part = g->n_op;
        for (int32_t u = 0; u < g->n_op; u++) {
            g->part[u] = g->n_op - 1 - u;
            g->part_order[u] = u;
        }
        return;
    }
    for (int32_t u = 0; u < g->n_op; u++) {
        if (!g->index[u])
            close_from(g, u, &seen, &n_open);
    }
    memset(g->count, 0, ((size_t)g->n_part + 1) * sizeof *g->count);
    for (int32_t u = 0; u < g->n_node; u++) {
        if (g->part[u] >= 0)
            g->count[g->n_part - 1 - g->part[u] + 1]++;
    }
    for (int32_t p = 0; p < g->n_part; p++)
        g->count[p + 1] += g->count[p];
    for (int32_t u = 0; u < g->n_node; u++) {
        if (g->part[u] >= 0)
            g->part_order[g->count[g->n_part - 1 - g->part[u]]++] = u;
    }
}

/* Stages that pins leave to parts; false: none to some part. */
static bool spread_pins(smp__conflict_graph *g, bool *pinned)
{
    int32_t n_order = 0;
    *pinned = false;
    for (int32_t p = 0; p < g->n_part; p++) {
        g->lo[p] = 0;
        g->hi[p] = g->problem->n_stage - 1;
    }
    for (int32_t u = 0; u < g->n_node; u++)
        n_order += g->part[u] >= 0;
    for (int32_t u = 0; u < g->n_op; u++) {
        int32_t pin = smp__conflict_pin(g, u), p = g->part[u];
        if (pin < 0)
            continue;
        *pinned = true;
        g->lo[p] = pin > g->lo[p] ? pin : g->lo[p];
        g->hi[p] = pin < g->hi[p] ? pin : g->hi[p];
    }
    for (int32_t i = 0; *pinned && i < n_order; i++) {
        int32_t u = g->part_order[i];
        for (int64_t e = 0, n = smp__conflict_degree(g, u); e < n; e++) {
            int32_t v = smp__conflict_neighbour(g, u, e);
            if (v >= 0 && g->lo[g->part[v]] < g->lo[g->part[u]])
                g->lo[g->part[v]] = g->lo[g->part[u]];
        }
        g->work += smp__conflict_degree(g, u);
    }
    for (int32_t i = n_order - 1; *pinned && i >= 0; i--) {
        int32_t u = g->part_order[i];
        for (int64_t e = 0, n = smp__conflict_degree(g, u); e < n; e++) {
            int32_t v = smp__conflict_neighbour(g, u, e);
            if (v >= 0 && g->hi[g->part[u]] > g->hi[g->part[v]])
                g->hi[g->part[u]] = g->hi[g->part[v]];
        }
    }
    for (int32_t p = 0; p < g->n_part; p++) {
        if (g->lo[p] > g->hi[p])
            return false;
    }
    return true;
}

/* A part of its own for every stage, the one with the earliest end first. */
static bool match_stages(smp__conflict_graph *g)
{
    int32_t n_stage = g->problem->n_stage, *begin = g->count, *by_lo = g->index;
    memset(begin, 0, ((size_t)n_stage + 2) * sizeof *begin);
    for (int32_t p = 0; p < g->n_part; p++) {
        begin[g->lo[p] + 2]++;
        g->matched[p] = -1;
    }
    for (int32_t k = 0; k < n_stage; k++)
        begin[k + 2] += begin[k + 1];
    for (int32_t p = g->n_part - 1; p >= 0; p--) /* with the flow */
        by_lo[begin[g->lo[p] + 1]++] = p;
    g->heap.n = 0;
    for (int32_t k = 0; k < n_stage; k++) {
        int32_t p = -1;
        for (int32_t i = begin[k]; i < begin[k + 1]; i++)
            smp__heap_push(&g->heap, g->hi[by_lo[i]], by_lo[i]);
        while (g->heap.n > 0 && p < 0) {
            p = smp__heap_pop(&g->heap);
            p = g->hi[p] < k ? -1 : p;
        }
        if (p < 0) {
            g->failed_stage = k;
            return false;
        }
        g->matched[p] = k;
    }
    return true;
}

bool smp__conflict_graph_check(smp__conflict_graph *g)
{
    bool pinned;
    g->failed_stage = -1;
    find_parts(g);
    if (!spread_pins(g, &pinned))
        return false;
    if (!pinned && g->n_part >= g->problem->n_stage)
        return true;
    return match_stages(g);
}
