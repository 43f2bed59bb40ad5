/* The stages that pins leave to each unit. A pin bounds all that depends on the op from below and
 * all that it depends on from above; the bounds spread along nets in topological order.
 *
 * Whether every stage can have a unit is a matching of stages with ranges. Ranges rise along every
 * net, so giving each stage in turn the unit with the earliest end among those whose range has
 * begun (ties: topological order) finds a matching if there is one, and one that no net forbids.
 * O(n log n + nets). */
#include "partition/problem/unit_graph.h"

#include "graph/base/heap.h"

/* Stages lo..hi of each unit. */
typedef struct stage_ranges {
    int32_t *lo, *hi;
} stage_ranges;

/* Two pins on one unit leave it an empty range. */
static smp_status apply_pins(const smp_problem *problem, smp__units *units, stage_ranges *ranges)
{
    const smp_graph *graph = problem->graph;
    for (int32_t u = 0; u < units->n; u++) {
        ranges->lo[u] = 0;
        ranges->hi[u] = problem->n_stage - 1;
    }
    for (int32_t i = 0; i < graph->n_op; i++) {
        const smp_op *op = &graph->op[i];
        int32_t pin = smp_problem_pin(problem, i);
        if (pin < 0)
            continue;
        if (pin >= problem->n_stage)
            return smp_fail_at(smp_pin_where(graph, problem->pin_where, i),
                               "op '%s': stage: got %d, expected 0 to %d: the pipeline has %d "
                               "stages",
                               op->name, pin, problem->n_stage - 1, problem->n_stage);
        int32_t u = units->unit_of_op[i];
        ranges->lo[u] = pin > ranges->lo[u] ? pin : ranges->lo[u];
        ranges->hi[u] = pin < ranges->hi[u] ? pin : ranges->hi[u];
        units->has_pin = true;
    }
    return SMP_OK;
}

static void spread_ranges(const smp__units *units, stage_ranges *ranges)
{
    for (int32_t u = 0; u < units->n; u++) {
        for (int64_t e = units->in_begin[u]; e < units->in_begin[u + 1]; e++) {
            int32_t from = units->net_unit[units->in_net[e]];
            if (ranges->lo[from] > ranges->lo[u])
                ranges->lo[u] = ranges->lo[from];
        }
    }
    for (int32_t u = units->n - 1; u >= 0; u--) {
        for (int64_t e = units->in_begin[u]; e < units->in_begin[u + 1]; e++) {
            int32_t from = units->net_unit[units->in_net[e]];
            if (ranges->hi[u] < ranges->hi[from])
                ranges->hi[from] = ranges->hi[u];
        }
    }
}

static bool ranges_are_empty(const smp__units *units, const stage_ranges *ranges)
{
    for (int32_t u = 0; u < units->n; u++) {
        if (ranges->lo[u] > ranges->hi[u])
            return true;
    }
    return false;
}

/* Gives every stage one unit of its own: the anchor ranges before they spread. */
static smp_status match_stages(const smp_problem *problem, smp__units *units, smp_arena *scratch,
                               smp__obstacle *obstacle)
{
    int32_t n_stage = problem->n_stage;
    int32_t *begin = SMP_ARENA_NEW(scratch, int32_t, (size_t)n_stage + 2);
    int32_t *by_lo = SMP_ARENA_NEW(scratch, int32_t, (size_t)units->n);
    smp_heap heap;
    SMP_TRY(smp_heap_init(&heap, scratch, units->n));
    if (!begin || !by_lo)
        return SMP_ERR_NO_MEMORY;
    for (int32_t u = 0; u < units->n; u++)
        begin[units->lo[u] + 2]++;
    for (int32_t k = 0; k < n_stage; k++)
        begin[k + 2] += begin[k + 1];
    for (int32_t u = 0; u < units->n; u++)
        by_lo[begin[units->lo[u] + 1]++] = u;
    for (int32_t k = 0; k < n_stage; k++) {
        for (int32_t i = begin[k]; i < begin[k + 1]; i++)
            smp_heap_set(&heap, by_lo[i], units->hi[by_lo[i]]);
        int32_t u = -1;
        while (heap.n > 0 && u < 0) {
            u = smp_heap_pop(&heap);
            if (units->hi[u] < k)
                u = -1;
        }
        if (u < 0) {
            obstacle->kind = SMP__OBSTACLE_EMPTY_STAGE;
            return SMP_OK;
        }
        units->anchor_lo[u] = units->anchor_hi[u] = k;
    }
    return SMP_OK;
}

smp_status smp__units_pin(const smp_problem *problem, smp__units *units, smp__obstacle *obstacle)
{
    size_t n = (size_t)units->n;
    smp_status status = SMP_ERR_NO_MEMORY;
    *obstacle = (smp__obstacle){SMP__OBSTACLE_NONE, units->n};
    smp_arena *scratch = smp_arena_create();
    if (!scratch)
        return status;
    units->lo = SMP_ARENA_NEW(units->arena, int32_t, n);
    units->hi = SMP_ARENA_NEW(units->arena, int32_t, n);
    units->anchor_lo = SMP_ARENA_NEW(units->arena, int32_t, n);
    units->anchor_hi = SMP_ARENA_NEW(units->arena, int32_t, n);
    stage_ranges ranges = {units->lo, units->hi};
    if (!units->lo || !units->hi || !units->anchor_lo || !units->anchor_hi)
        goto done;
    status = apply_pins(problem, units, &ranges);
    if (status != SMP_OK)
        goto done;
    if (units->has_pin)
        spread_ranges(units, &ranges);
    if (units->n < problem->n_stage)
        obstacle->kind = SMP__OBSTACLE_FEW_UNITS;
    else if (ranges_are_empty(units, &ranges))
        obstacle->kind = SMP__OBSTACLE_FLOW;
    if (obstacle->kind != SMP__OBSTACLE_NONE)
        goto done;
    for (int32_t u = 0; u < units->n; u++) {
        units->anchor_lo[u] = units->lo[u];
        units->anchor_hi[u] = units->hi[u];
    }
    if (units->has_pin) {
        stage_ranges anchors = {units->anchor_lo, units->anchor_hi};
        status = match_stages(problem, units, scratch, obstacle);
        spread_ranges(units, &anchors);
    }
done:
    smp_arena_destroy(scratch);
    return status;
}
