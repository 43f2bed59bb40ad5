/* What no pipeline on these ranks can beat. Each bound holds for the compute of the slowest rank,
 * and transfers only add to it:
 *  - the total work, shared out in proportion to speed;
 *  - the largest unit on the fastest rank that may hold it, and what pins force on one rank;
 *  - pigeonhole: of the m * p + 1 largest units, some rank holds m + 1. O(n log n). */
#include "partition/prove/bound.h"

#include <math.h>
#include <stdlib.h>

#include "graph/base/clock.h"
#include "partition/problem/coarse.h"
#include "partition/problem/evaluate.h"

enum { MAX_HOLES = 64 }; /* units on a rank; more come close to the fair share */

static int compare_falling(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

typedef struct best_bound {
    double us;
    const char *name;
} best_bound;

static void raise_to(best_bound *best, double us, const char *name)
{
    if (us > best->us)
        *best = (best_bound){us, name};
}

/* sorted: [units->n] */
static void bound_by_pigeonhole(const smp_problem *problem, const smp__units *units, double fastest,
                                double *sorted, best_bound *best)
{
    double largest = 0.0;
    for (int32_t u = 0; u < units->n; u++) {
        sorted[u] = smp__unit_work_us(problem, units, u);
        largest = fmax(largest, sorted[u]);
    }
    if ((MAX_HOLES + 1) * largest * fastest <= best->us)
        return;
    qsort(sorted, (size_t)units->n, sizeof *sorted, compare_falling);
    for (int64_t m = 0; m * problem->pipeline < units->n; m++) {
        double sum = 0.0; /* the m + 1 smallest of the m * p + 1 largest */
        for (int64_t i = m * problem->pipeline; i >= m * problem->pipeline - m; i--)
            sum += sorted[i];
        raise_to(best, sum * fastest, "largest ops");
        if (m == MAX_HOLES)
            break;
    }
}

smp_status smp__bound_by_compute(const smp_problem *problem, const smp__units *units,
                                 smp_arena *scratch, const char **name, double *bound_us)
{
    double *slowdown = SMP_ARENA_NEW(scratch, double, (size_t)problem->n_stage);
    double *forced = SMP_ARENA_NEW(scratch, double, (size_t)problem->pipeline);
    double *sorted = SMP_ARENA_NEW(scratch, double, (size_t)units->n);
    best_bound best = {0.0, "fair share"};
    if (!slowdown || !forced || !sorted)
        return SMP_ERR_NO_MEMORY;
    double fastest = INFINITY, speed = 0.0, total = 0.0;
    for (int r = 0; r < problem->pipeline; r++) {
        double slow = smp_problem_rank_slowdown(problem, r);
        speed += 1.0 / slow;
        fastest = fmin(fastest, slow);
    }
    for (int s = 0; s < problem->n_stage; s++)
        slowdown[s] = smp_problem_stage_slowdown(problem, s);
    for (int32_t u = 0; u < units->n; u++)
        total += smp__unit_work_us(problem, units, u);
    raise_to(&best, total / speed, "fair share");
    for (int32_t u = 0; u < units->n; u++) {
        double here = fastest;
        if (units->has_pin) {
            here = INFINITY;
            for (int32_t s = units->lo[u]; s <= units->hi[u]; s++)
                here = fmin(here, slowdown[s]);
            if (units->lo[u] == units->hi[u])
                forced[problem->stage_rank[units->lo[u]]] +=
                    smp__unit_work_us(problem, units, u) * here;
        }
        raise_to(&best, smp__unit_work_us(problem, units, u) * here, "largest op");
    }
    for (int r = 0; r < problem->pipeline; r++)
        raise_to(&best, forced[r], "pins");
    bound_by_pigeonhole(problem, units, fastest, sorted, &best);
    *name = best.name;
    *bound_us = best.us;
    return SMP_OK;
}

/* Is every op a unit, and free to lie anywhere? */
static bool ops_are_units(const smp_problem *problem)
{
    const smp_graph *graph = problem->graph;
    bool are = !problem->together && problem->n_stage <= graph->n_op;
    for (int32_t op = 0; op < graph->n_op && are; op++)
        are = graph->op[op].group < 0 && smp_problem_pin(problem, op) < 0;
    for (int32_t p = 0; problem->tie_together && p < graph->n_param && are; p++)
        are = graph->param[p].use_end - graph->param[p].use_begin <= 1;
    return are;
}

/* Of them no more is needed than what they compute, and every configuration asks: no nets. */
static smp_status bound_of_ops(const smp_problem *problem, smp_arena *scratch, double *bound_us)
{
    const int32_t n = problem->graph->n_op;
    const char *name;
    smp__units units = {.n = n,
                        .compute_us = SMP_ARENA_NEW(scratch, double, (size_t)n),
                        .forward_us = SMP_ARENA_NEW(scratch, double, (size_t)n)};
    if (!units.compute_us || !units.forward_us)
        return SMP_ERR_NO_MEMORY;
    for (int32_t op = 0; op < n; op++) {
        const smp_op_cost *cost = &problem->costs->op[op];
        units.compute_us[op] = cost->forward_us + cost->backward_us;
        units.forward_us[op] = cost->forward_us;
    }
    smp_work_count(SMP_WORK_OP, (double)n);
    return smp__bound_by_compute(problem, &units, scratch, &name, bound_us);
}

smp_status smp_partition_lower_bound(const smp_problem *problem, double *bound_us)
{
    const char *name;
    *bound_us = 0.0;
    if (smp__coarse_is_enough(problem)) {
        *bound_us = smp__coarse_bound(problem, &name);
        return SMP_OK;
    }
    smp__units *units = NULL;
    smp__obstacle obstacle;
    smp_arena *scratch = smp_arena_create();
    if (scratch && ops_are_units(problem)) {
        const smp_status status = bound_of_ops(problem, scratch, bound_us);
        smp_arena_destroy(scratch);
        return status;
    }
    smp_status status = scratch ? smp__units_try(problem, &units, &obstacle) : SMP_ERR_NO_MEMORY;
    if (status == SMP_OK && obstacle.kind == SMP__OBSTACLE_NONE)
        status = smp__bound_by_compute(problem, units, scratch, &name, bound_us);
    smp__units_destroy(units);
    smp_arena_destroy(scratch);
    return status == SMP_ERR_INPUT ? SMP_OK : status; /* no pipeline: what says so is heard later */
}
