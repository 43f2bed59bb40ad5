/* The baselines "metis-kway" and "metis-recursive": what METIS alone makes of the graph (Karypis
 * and Kumar, "A fast and high quality multilevel scheme for partitioning irregular graphs", SIAM J.
 * Sci. Comput. 1998; "Multilevel k-way partitioning scheme for irregular graphs", J. Parallel
 * Distrib. Comput. 1998; "Multilevel algorithms for multi-constraint graph partitioning", SC 1998):
 * few bytes between parts that balance compute and memory, each stage's share by the speed and
 * memory of its device. METIS knows no direction, so a legal pipeline is made of the parts: they
 * are ordered by where their units stand, and units are pushed or pulled along the tensors until
 * all flow forward, or put in a topological order that follows the parts and shared out by speed;
 * the best of the three is kept. No other search. O(edges + n log n).
 *
 * METIS prints to standard output when its initial partitioning leaves a part without vertices. The
 * k-way partitioner is therefore given a third weight, the number of vertices, and a vertex weighs
 * at most as much as a part may; and below KWAY_VERTICES per part the two-way bisections, which
 * METIS's own initial partitioning consists of, stand in for it. */
#include <stdlib.h>

#include "graph/base/clock.h"

#include "partition/problem/legal.h"
#include "partition/solve/incumbent.h"
#include "partition/solve/metis_call.h"
#include "partition/solve/metis_graph.h"
#include "partition/solve/partitioner.h"

enum {
    CONSTRAINTS = SMP__METIS_CONSTRAINTS,
    KWAY_CONSTRAINTS = CONSTRAINTS + 1,
    KWAY_VERTICES = 100, /* per part, at least */
    MAX_RUNS = 16384
};

/* Share of each constraint that each part is to hold. target: [n_stage * KWAY_CONSTRAINTS]. */
static void set_targets(const smp_problem *problem, real_t *target)
{
    double speed = 0.0, memory = 0.0;
    for (int s = 0; s < problem->n_stage; s++) {
        speed += 1.0 / smp_problem_stage_slowdown(problem, s);
        memory += smp__memory_limit(problem, s);
    }
    for (int s = 0; s < problem->n_stage; s++) {
        double even = 1.0 / problem->n_stage;
        real_t *of_part = target + s * KWAY_CONSTRAINTS;
        double share =
            isfinite(memory) && memory > 0.0 ? smp__memory_limit(problem, s) / memory : even;
        of_part[0] = (real_t)(1.0 / smp_problem_stage_slowdown(problem, s) / speed);
        of_part[1] = (real_t)fmax(share, 0.01 * even);
        of_part[2] = (real_t)even;
    }
    for (int c = 0; c < KWAY_CONSTRAINTS; c++) { /* METIS wants sums of 1 */
        real_t sum = 0;
        for (int s = 0; s < problem->n_stage; s++)
            sum += target[s * KWAY_CONSTRAINTS + c];
        for (int s = 0; s < problem->n_stage; s++)
            target[s * KWAY_CONSTRAINTS + c] /= sum;
    }
}

/* Weights of all vertices; none more than the smallest share of its constraint. */
static void set_weights(const smp__metis_graph *graph, const real_t *target, idx_t *weight)
{
    for (int c = 0; c < CONSTRAINTS; c++) {
        double sum = 0.0;
        real_t least = 1;
        for (int s = 0; s < graph->problem->n_stage; s++)
            least = fminf(least, target[s * KWAY_CONSTRAINTS + c]);
        for (int32_t v = 0; v < graph->n; v++)
            sum += graph->weight[v * CONSTRAINTS + c];
        int32_t most = (int32_t)(sum * (double)least) + 1;
        for (int32_t v = 0; v < graph->n; v++) {
            int32_t w = graph->weight[v * CONSTRAINTS + c];
            weight[v * KWAY_CONSTRAINTS + c] = w < most ? w : most;
        }
    }
    for (int32_t v = 0; v < graph->n; v++)
        weight[v * KWAY_CONSTRAINTS + CONSTRAINTS] = 1;
}

static smp_status call_kway(const smp__metis_graph *graph, smp_arena *scratch, int32_t *part)
{
    size_t n = (size_t)graph->n, n_edge = (size_t)graph->begin[n];
    idx_t n_vertex = graph->n, n_constraint = KWAY_CONSTRAINTS, cut = 0;
    idx_t n_part = graph->problem->n_stage;
    idx_t *xadj = SMP_ARENA_NEW(scratch, idx_t, n + 1);
    idx_t *adjncy = SMP_ARENA_NEW(scratch, idx_t, n_edge + 1);
    idx_t *adjwgt = SMP_ARENA_NEW(scratch, idx_t, n_edge + 1);
    idx_t *weight = SMP_ARENA_NEW(scratch, idx_t, n * KWAY_CONSTRAINTS);
    idx_t *found = SMP_ARENA_NEW(scratch, idx_t, n);
    real_t *target = SMP_ARENA_NEW(scratch, real_t, (size_t)n_part * KWAY_CONSTRAINTS);
    real_t imbalance[KWAY_CONSTRAINTS] = {1.03f, 1.2f, 1.3f};
    idx_t options[METIS_NOPTIONS];
    smp__metis_call call;
    if (!xadj || !adjncy || !adjwgt || !weight || !found || !target)
        return SMP_ERR_NO_MEMORY;
    set_targets(graph->problem, target);
    set_weights(graph, target, weight);
    for (size_t v = 0; v <= n; v++)
        xadj[v] = (idx_t)graph->begin[v];
    for (size_t e = 0; e < n_edge; e++) {
        adjncy[e] = graph->neighbour[e];
        adjwgt[e] = graph->edge_weight[e];
    }
    smp__metis_begin(&call, graph->problem->seed, options);
    smp_work_count(SMP_WORK_BISECT, (double)(n + n_edge));
    int code = METIS_PartGraphKway(&n_vertex, &n_constraint, xadj, adjncy, weight, NULL, adjwgt,
                                   &n_part, target, imbalance, options, &cut, found);
    SMP_TRY(smp__metis_end(&call, code));
    for (size_t v = 0; v < n; v++)
        part[v] = (int32_t)found[v];
    return SMP_OK;
}

/* A part and what it is sorted by. */
typedef struct placed {
    double place, speed;
    int32_t index;
} placed;

static int by_place(const void *left, const void *right)
{
    const placed *a = left, *b = right;
    int order = (a->place > b->place) - (a->place < b->place);
    return order ? order : (a->index > b->index) - (a->index < b->index);
}

/* Puts the parts in the order of where their vertices stand on the mean. `alike`: only parts that
 * were made for equally fast stages change places. */
static smp_status sort_parts(const smp__metis_graph *graph, bool alike, smp_arena *scratch,
                             int32_t *part)
{
    const smp_problem *problem = graph->problem;
    size_t n_stage = (size_t)problem->n_stage;
    placed *by = SMP_ARENA_NEW(scratch, placed, n_stage);
    int32_t *count = SMP_ARENA_NEW(scratch, int32_t, n_stage);
    int32_t *stage_of = SMP_ARENA_NEW(scratch, int32_t, n_stage);
    bool *taken = SMP_ARENA_NEW(scratch, bool, n_stage);
    if (!by || !count || !stage_of || !taken)
        return SMP_ERR_NO_MEMORY;
    for (int32_t v = 0; v < graph->n; v++) {
        by[part[v]].place += graph->place[v];
        count[part[v]]++;
    }
    for (int32_t k = 0; k < problem->n_stage; k++) {
        by[k].index = k;
        by[k].place = count[k] > 0 ? by[k].place / count[k] : (double)graph->units->n;
        by[k].speed = alike ? smp_problem_stage_slowdown(problem, k) : 1.0;
    }
    qsort(by, n_stage, sizeof *by, by_place);
    for (int32_t i = 0; i < problem->n_stage; i++) {
        int32_t k = 0; /* the first free stage of this speed */
        while (taken[k] || (alike && smp_problem_stage_slowdown(problem, k) != by[i].speed))
            k++;
        taken[k] = true;
        stage_of[by[i].index] = k;
    }
    for (int32_t v = 0; v < graph->n; v++)
        part[v] = stage_of[part[v]];
    return SMP_OK;
}

/* The units in the topological order closest to that of the parts, shared out by speed. */
static smp_status offer_in_order(smp__incumbent *incumbent, const smp__metis_graph *graph,
                                 const int32_t *part)
{
    smp_status status = SMP_ERR_NO_MEMORY;
    smp_arena *scratch = smp_arena_create();
    size_t n = (size_t)incumbent->units->n;
    double *key = scratch ? SMP_ARENA_NEW(scratch, double, n) : NULL;
    if (key) {
        for (size_t u = 0; u < n; u++)
            key[u] = part[graph->vertex_of[u]];
        status = smp__order_by_key(incumbent->units, key, incumbent->order);
    }
    smp_arena_destroy(scratch);
    if (status == SMP_OK)
        status = smp__share_out(incumbent->problem, incumbent->units, incumbent->order,
                                incumbent->trial);
    if (status == SMP_OK)
        smp__incumbent_offer(incumbent);
    return status;
}

/* All repairs of the parts; the incumbent keeps the best pipeline. */
static smp_status offer_parts(smp__incumbent *incumbent, const smp__metis_graph *graph,
                              const int32_t *part)
{
    for (int repair = SMP__PUSH; repair <= SMP__PULL; repair++) {
        for (int32_t u = 0; u < incumbent->units->n; u++)
            incumbent->trial[u] = part[graph->vertex_of[u]];
        SMP_TRY(smp__legalize(incumbent->problem, incumbent->units, (smp__repair)repair,
                              incumbent->trial));
        smp__incumbent_offer(incumbent);
    }
    return offer_in_order(incumbent, graph, part);
}

static bool same_speeds(const smp_problem *problem)
{
    for (int s = 1; s < problem->n_stage; s++) {
        if (smp_problem_stage_slowdown(problem, 0) != smp_problem_stage_slowdown(problem, s))
            return false;
    }
    return true;
}

static smp_status offer_kway(smp__incumbent *incumbent, const smp__metis_graph *graph,
                             smp_arena *scratch)
{
    int32_t *part = SMP_ARENA_NEW(scratch, int32_t, (size_t)graph->n);
    int32_t *sorted = SMP_ARENA_NEW(scratch, int32_t, (size_t)graph->n);
    if (!part || !sorted)
        return SMP_ERR_NO_MEMORY;
    if (incumbent->problem->n_stage == 1 ||
        graph->n < (int64_t)KWAY_VERTICES * incumbent->problem->n_stage) {
        SMP_TRY(smp__metis_bisection(graph, part));
        return offer_parts(incumbent, graph, part);
    }
    SMP_TRY(call_kway(graph, scratch, part));
    for (int alike = 0; alike <= (same_speeds(incumbent->problem) ? 0 : 1); alike++) {
        for (int32_t v = 0; v < graph->n; v++)
            sorted[v] = part[v];
        SMP_TRY(sort_parts(graph, alike, scratch, sorted));
        SMP_TRY(offer_parts(incumbent, graph, sorted));
    }
    return SMP_OK;
}

static smp_status offer_recursive(smp__incumbent *incumbent, const smp__metis_graph *graph,
                                  smp_arena *scratch)
{
    int32_t *part = SMP_ARENA_NEW(scratch, int32_t, (size_t)graph->n);
    if (!part)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(smp__metis_bisection(graph, part));
    return offer_parts(incumbent, graph, part);
}

static smp_status solve(const smp_problem *problem, const smp_partition *start, const char *name,
                        smp_status (*offer)(smp__incumbent *, const smp__metis_graph *,
                                            smp_arena *),
                        smp_partition **out)
{
    smp__incumbent incumbent;
    smp__metis_graph graph;
    SMP_TRY(smp__incumbent_init(&incumbent, problem, start, name));
    smp_arena *scratch = smp_arena_create();
    smp_status status = scratch ? SMP_OK : SMP_ERR_NO_MEMORY;
    if (status == SMP_OK && !smp__incumbent_done(&incumbent)) {
        status = smp__metis_graph_build(problem, incumbent.units, MAX_RUNS, scratch, &graph);
        if (status == SMP_OK)
            status = offer(&incumbent, &graph, scratch);
    }
    if (status == SMP_OK)
        status = smp__incumbent_finish(&incumbent, out);
    smp_arena_destroy(scratch);
    smp__incumbent_free(&incumbent);
    return status;
}

static smp_status solve_kway(const smp_problem *problem, const smp_partition *start,
                             smp_partition **out)
{
    return solve(problem, start, smp__partitioner_metis_kway.name, offer_kway, out);
}

static smp_status solve_recursive(const smp_problem *problem, const smp_partition *start,
                                  smp_partition **out)
{
    return solve(problem, start, smp__partitioner_metis_recursive.name, offer_recursive, out);
}

const smp_partitioner smp__partitioner_metis_kway = {
    .name = "metis-kway",
    .summary = "METIS's multilevel k-way parts, balanced by compute and memory, made a pipeline",
    .solve = solve_kway,
    .baseline = true,
};

const smp_partitioner smp__partitioner_metis_recursive = {
    .name = "metis-recursive",
    .summary = "METIS's recursive bisection by compute and memory, made a pipeline",
    .solve = solve_recursive,
    .baseline = true,
};
