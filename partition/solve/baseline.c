/* From a wish per unit to a legal pipeline. The maximum over what a unit reads makes the wish rise
 * along nets, and clamping it to the pins' ranges, which rise too, keeps it so. Empty stages: without
 * pins the borders of the order sorted by stage move apart; with pins the anchor ranges, in which
 * every stage has a unit that can lie nowhere else, take the place of the ranges. Linear. */
#include "partition/solve/baseline.h"

#include <math.h>

#include "partition/prove/bound.h"
#include "partition/problem/order.h"

static int32_t clamp(int32_t value, int32_t lo, int32_t hi)
{
    return value < lo ? lo : value > hi ? hi : value;
}

/* Makes the wish rise along nets: units are numbered in topological order. */
static void follow_inputs(const smp__units *units, int32_t *wish)
{
    for (int32_t u = 0; u < units->n; u++) {
        for (int64_t e = units->in_begin[u]; e < units->in_begin[u + 1]; e++) {
            int32_t from = wish[units->net_unit[units->in_net[e]]];
            wish[u] = from > wish[u] ? from : wish[u];
        }
    }
}

/* Moves the borders of the order sorted by stage apart until no stage is empty. count: [n_stage] */
static void fill_stages(int n_stage, const int32_t *order, const int32_t *count, int32_t *border,
                        int32_t *stage)
{
    border[0] = 0;
    for (int k = 0; k < n_stage; k++)
        border[k + 1] = border[k] + count[k];
    for (int k = 1; k < n_stage; k++)
        border[k] = border[k] > border[k - 1] ? border[k] : border[k - 1] + 1;
    for (int k = n_stage - 1; k > 0; k--)
        border[k] = border[k] < border[k + 1] ? border[k] : border[k + 1] - 1;
    for (int k = 0; k < n_stage; k++) {
        for (int32_t i = border[k]; i < border[k + 1]; i++)
            stage[order[i]] = k;
    }
}

static smp_status settle(const smp_problem *problem, const smp__units *units, smp_arena *scratch,
                         int32_t *wish)
{
    size_t n_stage = (size_t)problem->n_stage;
    int32_t *count = SMP_ARENA_NEW(scratch, int32_t, n_stage);
    int32_t *border = SMP_ARENA_NEW(scratch, int32_t, n_stage + 1);
    int32_t *order = SMP_ARENA_NEW(scratch, int32_t, (size_t)units->n);
    int32_t *stage = SMP_ARENA_NEW(scratch, int32_t, (size_t)units->n);
    if (!count || !border || !order || !stage)
        return SMP_ERR_NO_MEMORY;
    follow_inputs(units, wish);
    int used = 0;
    for (int32_t u = 0; u < units->n; u++) {
        stage[u] = clamp(wish[u], units->lo[u], units->hi[u]);
        used += count[stage[u]]++ == 0;
    }
    if (used < problem->n_stage && units->has_pin) {
        for (int32_t u = 0; u < units->n; u++)
            stage[u] = clamp(wish[u], units->anchor_lo[u], units->anchor_hi[u]);
    } else if (used < problem->n_stage) {
        SMP_TRY(smp__order_make(units, SMP__ORDER_FILE, 0, order));
        SMP_TRY(smp__order_by_stage(units, problem->n_stage, stage, order));
        fill_stages(problem->n_stage, order, count, border, stage);
    }
    for (int32_t u = 0; u < units->n; u++)
        wish[u] = stage[u];
    return SMP_OK;
}

smp_status smp__baseline_finish(const smp_problem *problem, const smp__units *units, int32_t *wish,
                                const char *solver, smp_partition **out)
{
    smp_status status = SMP_ERR_NO_MEMORY;
    int32_t n_op = problem->graph->n_op;
    smp_arena *scratch = smp_arena_create();
    int32_t *op_stage = scratch ? SMP_ARENA_NEW(scratch, int32_t, (size_t)n_op) : NULL;
    if (!op_stage)
        goto done;
    status = settle(problem, units, scratch, wish);
    if (status != SMP_OK)
        goto done;
    for (int32_t op = 0; op < n_op; op++)
        op_stage[op] = wish[units->unit_of_op[op]];
    status = smp_partition_evaluate(problem, op_stage, out);
    if (status == SMP_OK) {
        double bound_us = smp__bound_by_compute(problem, units, scratch, &(*out)->bound);
        (*out)->lower_bound_us = fmin(bound_us, (*out)->bottleneck_us);
        (*out)->solver = solver;
    }
done:
    smp_arena_destroy(scratch);
    return status;
}
