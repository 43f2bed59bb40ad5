/* Units as METIS sees them: a graph without directions, compute and memory as vertex weights, bytes
 * as edge weights. Large graphs are first cut into runs of consecutive units. Linear in the edges.
 *
 * Bisection asks METIS for two parts at a time: with more, METIS prints to standard output where
 * weights leave a part empty. Each half is put first or last by where its units stand in the
 * order. */
#include "partition/solve/metis_graph.h"

#include <string.h>

#include "graph/base/clock.h"

#include "partition/solve/metis_call.h"

enum {
    CONSTRAINTS = SMP__METIS_CONSTRAINTS,
    WEIGHT_SUM = 1 << 24, /* of each constraint and of all edges: far below 32 bits */
    SIDES = 2
};

/* Runs of consecutive units, each with at most 1 / max_runs of the compute and of the units. */
static void number_vertices(smp__metis_graph *g, int32_t max_runs)
{
    const smp__units *units = g->units;
    double total = 0.0, run_us = 0.0;
    int32_t run = 0, vertex = -1;
    for (int32_t u = 0; u < units->n; u++)
        total += units->compute_us[u];
    for (int32_t u = 0; u < units->n; u++) {
        bool full = (int64_t)(run + 1) * max_runs > units->n ||
                    (run_us + units->compute_us[u]) * max_runs > total;
        if (vertex < 0 || full || units->n <= 2 * (int64_t)max_runs) {
            vertex++;
            run = 0;
            run_us = 0.0;
        }
        g->vertex_of[u] = vertex;
        run++;
        run_us += units->compute_us[u];
    }
    g->n = vertex + 1;
}

static int32_t scaled(double value, double sum)
{
    return sum > 0.0 ? (int32_t)(value / sum * WEIGHT_SUM) : 0;
}

static smp_status weigh_vertices(smp__metis_graph *g, smp_arena *arena, smp_arena *scratch)
{
    const smp_problem *problem = g->problem;
    const smp__units *units = g->units;
    double *compute = SMP_ARENA_NEW(scratch, double, (size_t)g->n);
    double *memory = SMP_ARENA_NEW(scratch, double, (size_t)g->n);
    int32_t *count = SMP_ARENA_NEW(scratch, int32_t, (size_t)g->n);
    g->weight = SMP_ARENA_NEW(arena, int32_t, (size_t)g->n * CONSTRAINTS);
    g->place = SMP_ARENA_NEW(arena, double, (size_t)g->n);
    if (!compute || !memory || !count || !g->weight || !g->place)
        return SMP_ERR_NO_MEMORY;
    double live = 0.0, compute_sum = 0.0, memory_sum = 0.0;
    for (int s = 0; s < problem->n_stage; s++)
        live += problem->live[s] / problem->n_stage;
    for (int32_t u = 0; u < units->n; u++) {
        int32_t v = g->vertex_of[u];
        double bytes = problem->state_factor * (double)units->weight_bytes[u] +
                       live * (double)units->stash_bytes[u];
        compute[v] += units->compute_us[u];
        memory[v] += bytes;
        compute_sum += units->compute_us[u];
        memory_sum += bytes;
        g->place[v] += u;
        count[v]++;
    }
    for (int32_t v = 0; v < g->n; v++) {
        g->weight[v * CONSTRAINTS] = scaled(compute[v], compute_sum);
        g->weight[v * CONSTRAINTS + 1] = scaled(memory[v], memory_sum);
        g->place[v] /= count[v];
    }
    return SMP_OK;
}

/* Adds bytes to the edge from the vertex whose list is being made; at[] knows where it stands. */
static void add_edge(const smp__metis_graph *g, int32_t from, int32_t to, double bytes, int64_t *at,
                     double *edge_bytes, int64_t *n)
{
    if (to == from)
        return;
    if (at[to] < g->begin[from]) {
        at[to] = *n;
        if (g->neighbour)
            g->neighbour[*n] = to;
        (*n)++;
    }
    if (edge_bytes)
        edge_bytes[at[to]] += bytes;
}

/* Neighbours of each vertex, each once, by the tensors between their units. Called twice: without
 * arrays to count, then to fill. */
static int64_t list_edges(smp__metis_graph *g, const int64_t *unit_begin, int64_t *at,
                          double *edge_bytes)
{
    const smp__units *units = g->units;
    int64_t n = 0;
    for (int32_t v = 0; v < g->n; v++)
        at[v] = -1;
    for (int32_t v = 0; v < g->n; v++) {
        g->begin[v] = n;
        for (int64_t u = unit_begin[v]; u < unit_begin[v + 1]; u++) {
            for (int64_t o = units->out_begin[u]; o < units->out_begin[u + 1]; o++) {
                int32_t net = units->out_net[o];
                for (int64_t c = units->net_begin[net]; c < units->net_begin[net + 1]; c++)
                    add_edge(g, v, g->vertex_of[units->net_consumer[c]],
                             (double)units->net_bytes[net], at, edge_bytes, &n);
            }
            for (int64_t e = units->in_begin[u]; e < units->in_begin[u + 1]; e++) {
                int32_t net = units->in_net[e];
                add_edge(g, v, g->vertex_of[units->net_unit[net]], (double)units->net_bytes[net],
                         at, edge_bytes, &n);
            }
        }
    }
    g->begin[g->n] = n;
    return n;
}

static smp_status connect_vertices(smp__metis_graph *g, smp_arena *arena, smp_arena *scratch)
{
    int64_t *unit_begin = SMP_ARENA_NEW(scratch, int64_t, (size_t)g->n + 1);
    int64_t *at = SMP_ARENA_NEW(scratch, int64_t, (size_t)g->n);
    g->begin = SMP_ARENA_NEW(arena, int64_t, (size_t)g->n + 1);
    if (!unit_begin || !at || !g->begin)
        return SMP_ERR_NO_MEMORY;
    for (int32_t u = 0; u < g->units->n; u++) /* vertices are runs: consecutive units */
        unit_begin[g->vertex_of[u] + 1] = u + 1;
    int64_t n = list_edges(g, unit_begin, at, NULL);
    if (n > INT32_MAX)
        return smp_fail(SMP_ERR_FAILED, "METIS: %lld edges are too many", (long long)n);
    double *edge_bytes = SMP_ARENA_NEW(scratch, double, (size_t)n);
    g->neighbour = SMP_ARENA_NEW(arena, int32_t, (size_t)n);
    g->edge_weight = SMP_ARENA_NEW(arena, int32_t, (size_t)n);
    if (!edge_bytes || !g->neighbour || !g->edge_weight)
        return SMP_ERR_NO_MEMORY;
    list_edges(g, unit_begin, at, edge_bytes);
    double sum = 0.0;
    for (int64_t e = 0; e < n; e++)
        sum += edge_bytes[e];
    for (int64_t e = 0; e < n; e++)
        g->edge_weight[e] = scaled(edge_bytes[e], sum) + 1;
    return SMP_OK;
}

smp_status smp__metis_graph_build(const smp_problem *problem, const smp__units *units,
                                  int32_t max_runs, smp_arena *arena, smp__metis_graph *out)
{
    *out = (smp__metis_graph){.problem = problem, .units = units};
    smp_arena *scratch = smp_arena_create();
    smp_status status = SMP_ERR_NO_MEMORY;
    out->vertex_of = SMP_ARENA_NEW(arena, int32_t, (size_t)units->n);
    if (!scratch || !out->vertex_of)
        goto done;
    number_vertices(out, max_runs);
    status = weigh_vertices(out, arena, scratch);
    if (status == SMP_OK)
        status = connect_vertices(out, arena, scratch);
done:
    smp_arena_destroy(scratch);
    return status;
}

/* A subset of the vertices that is to be cut, and METIS's view of it. */
typedef struct bisector {
    const smp__metis_graph *graph;
    double *speed_before; /* [n_stage + 1] sum of 1 / slowdown */
    int32_t *part;        /* [n] result */
    int32_t *local;       /* [n] index in the subset, or -1 */
    int32_t *list;        /* [n] vertices, permuted so that subsets are runs */
    int32_t *swap;        /* [n] */
    idx_t *xadj, *adjncy, *vwgt, *adjwgt, *side;
} bisector;

static smp_status make_bisector(bisector *b, smp_arena *scratch)
{
    const smp_problem *problem = b->graph->problem;
    size_t n = (size_t)b->graph->n, n_edge = (size_t)b->graph->begin[n];
    b->speed_before = SMP_ARENA_NEW(scratch, double, (size_t)problem->n_stage + 1);
    b->local = SMP_ARENA_NEW(scratch, int32_t, n);
    b->list = SMP_ARENA_NEW(scratch, int32_t, n);
    b->swap = SMP_ARENA_NEW(scratch, int32_t, n);
    b->xadj = SMP_ARENA_NEW(scratch, idx_t, n + 1);
    b->vwgt = SMP_ARENA_NEW(scratch, idx_t, n * CONSTRAINTS);
    b->side = SMP_ARENA_NEW(scratch, idx_t, n);
    b->adjncy = SMP_ARENA_NEW(scratch, idx_t, n_edge + 1);
    b->adjwgt = SMP_ARENA_NEW(scratch, idx_t, n_edge + 1);
    if (!b->speed_before || !b->local || !b->list || !b->swap || !b->xadj || !b->vwgt || !b->side ||
        !b->adjncy || !b->adjwgt)
        return SMP_ERR_NO_MEMORY;
    for (int s = 0; s < problem->n_stage; s++)
        b->speed_before[s + 1] = b->speed_before[s] + 1.0 / smp_problem_stage_slowdown(problem, s);
    for (int32_t v = 0; v < b->graph->n; v++) {
        b->list[v] = v;
        b->local[v] = -1;
    }
    return SMP_OK;
}

/* Cuts the subgraph on list[0..n-1] into sides 0 and 1, side 0 with `share` of the weight. */
static smp_status bisect(bisector *b, const int32_t *list, int32_t n, double share)
{
    idx_t n_vertex = n, n_constraint = CONSTRAINTS, n_part = SIDES, cut = 0;
    real_t target[SIDES * CONSTRAINTS] = {(real_t)share, (real_t)share, (real_t)(1.0 - share),
                                          (real_t)(1.0 - share)};
    idx_t options[METIS_NOPTIONS];
    smp__metis_call call;
    idx_t n_edge = 0;
    for (int32_t i = 0; i < n; i++)
        b->local[list[i]] = i;
    for (int32_t i = 0; i < n; i++) {
        int32_t v = list[i];
        for (int c = 0; c < CONSTRAINTS; c++)
            b->vwgt[i * CONSTRAINTS + c] = b->graph->weight[v * CONSTRAINTS + c];
        b->xadj[i] = n_edge;
        for (int64_t e = b->graph->begin[v]; e < b->graph->begin[v + 1]; e++) {
            if (b->local[b->graph->neighbour[e]] < 0)
                continue;
            b->adjncy[n_edge] = b->local[b->graph->neighbour[e]];
            b->adjwgt[n_edge++] = b->graph->edge_weight[e];
        }
    }
    b->xadj[n] = n_edge;
    for (int32_t i = 0; i < n; i++)
        b->local[list[i]] = -1;
    smp__metis_begin(&call, b->graph->problem->seed, options);
    smp_work_count(SMP_WORK_BISECT, (double)n + (double)n_edge);
    int code = METIS_PartGraphRecursive(&n_vertex, &n_constraint, b->xadj, b->adjncy, b->vwgt, NULL,
                                        b->adjwgt, &n_part, target, NULL, options, &cut, b->side);
    return smp__metis_end(&call, code);
}

/* Which side comes first: the one whose vertices stand earlier on the mean. -1: a side is empty. */
static int first_side(const bisector *b, const int32_t *list, int32_t n)
{
    double sum[2] = {0.0, 0.0};
    int32_t count[2] = {0, 0};
    for (int32_t i = 0; i < n; i++) {
        sum[b->side[i]] += b->graph->place[list[i]];
        count[b->side[i]]++;
    }
    if (count[0] == 0 || count[1] == 0)
        return -1;
    return sum[0] / count[0] <= sum[1] / count[1] ? 0 : 1;
}

/* Shares stages begin..end-1 out over list[0..n-1], which it permutes. Depth log2(n_stage). */
static smp_status cut_into(bisector *b, int32_t *list, int32_t n, int begin, int end)
{
    if (end - begin == 1 || n < 2) {
        for (int32_t i = 0; i < n; i++)
            b->part[list[i]] = begin;
        return SMP_OK;
    }
    int n_side = (end - begin) / 2; /* stages of METIS's side 0 */
    double share = (b->speed_before[begin + n_side] - b->speed_before[begin]) /
                   (b->speed_before[end] - b->speed_before[begin]);
    SMP_TRY(bisect(b, list, n, share));
    int first = first_side(b, list, n);
    int middle = first == 1 ? end - n_side : begin + n_side;
    int32_t n_first = 0, n_second = 0;
    for (int32_t i = 0; i < n; i++) {
        bool in_first = first < 0 ? i < n / 2 : b->side[i] == first;
        if (in_first)
            list[n_first++] = list[i];
        else
            b->swap[n_second++] = list[i];
    }
    memcpy(list + n_first, b->swap, (size_t)n_second * sizeof *list);
    SMP_TRY(cut_into(b, list, n_first, begin, middle));
    return cut_into(b, list + n_first, n_second, middle, end);
}

smp_status smp__metis_bisection(const smp__metis_graph *graph, int32_t *part)
{
    smp_arena *scratch = smp_arena_create();
    bisector b = {.graph = graph, .part = part};
    smp_status status = scratch ? make_bisector(&b, scratch) : SMP_ERR_NO_MEMORY;
    if (status == SMP_OK)
        status = cut_into(&b, b.list, graph->n, 0, graph->problem->n_stage);
    smp_arena_destroy(scratch);
    return status;
}
