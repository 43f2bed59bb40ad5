/* Repairing assignments. Ranges rise along nets, so units that are clamped to them and then moved
 * to the latest (earliest) stage of their neighbours stay inside. Sorted by stage, the units are a
 * topological order, which can be cut anywhere: an empty stage takes the unit next to it. With pins
 * the anchor ranges hold one unit in every stage. */
#include "partition/problem/legal.h"

#include <math.h>

#include "partition/problem/order.h"

static void clamp(const int32_t *lo, const int32_t *hi, int32_t n, int32_t *stage)
{
    for (int32_t u = 0; u < n; u++)
        stage[u] = stage[u] < lo[u] ? lo[u] : stage[u] > hi[u] ? hi[u] : stage[u];
}

void smp__follow_inputs(const smp__units *units, int32_t *stage)
{
    for (int32_t u = 0; u < units->n; u++) {
        for (int64_t e = units->in_begin[u]; e < units->in_begin[u + 1]; e++) {
            int32_t from = stage[units->net_unit[units->in_net[e]]];
            stage[u] = from > stage[u] ? from : stage[u];
        }
    }
}

static void precede_readers(const smp__units *units, int32_t *stage)
{
    for (int32_t u = units->n - 1; u >= 0; u--) {
        for (int64_t e = units->in_begin[u]; e < units->in_begin[u + 1]; e++) {
            int32_t from = units->net_unit[units->in_net[e]];
            stage[from] = stage[u] < stage[from] ? stage[u] : stage[from];
        }
    }
}

/* border[k]: units before stage k. Leaves one to every stage. */
static void spread_borders(int32_t *border, int n_stage)
{
    for (int k = 1; k < n_stage; k++)
        border[k] = border[k] <= border[k - 1] ? border[k - 1] + 1 : border[k];
    for (int k = n_stage - 1; k > 0; k--)
        border[k] = border[k] >= border[k + 1] ? border[k + 1] - 1 : border[k];
}

static smp_status fill_stages(const smp_problem *problem, const smp__units *units,
                              const int32_t *count, int32_t *stage, smp_arena *scratch)
{
    int n_stage = problem->n_stage;
    int32_t *order = SMP_ARENA_NEW(scratch, int32_t, (size_t)units->n);
    int32_t *border = SMP_ARENA_NEW(scratch, int32_t, (size_t)n_stage + 1);
    if (!order || !border)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(smp__order_make(units, SMP__ORDER_FILE, 0, order));
    SMP_TRY(smp__order_by_stage(units, n_stage, stage, order));
    for (int k = 0; k < n_stage; k++)
        border[k + 1] = border[k] + count[k];
    spread_borders(border, n_stage);
    for (int k = 0; k < n_stage; k++) {
        for (int32_t i = border[k]; i < border[k + 1]; i++)
            stage[order[i]] = k;
    }
    return SMP_OK;
}

smp_status smp__legalize(const smp_problem *problem, const smp__units *units, smp__repair repair,
                         int32_t *stage)
{
    smp_status status = SMP_ERR_NO_MEMORY;
    smp_arena *scratch = smp_arena_create();
    int32_t *count = scratch ? SMP_ARENA_NEW(scratch, int32_t, (size_t)problem->n_stage) : NULL;
    if (!count)
        goto done;
    status = SMP_OK;
    clamp(units->lo, units->hi, units->n, stage);
    if (repair == SMP__PUSH)
        smp__follow_inputs(units, stage);
    else
        precede_readers(units, stage);
    for (int32_t u = 0; u < units->n; u++)
        count[stage[u]]++;
    int k = 0;
    while (k < problem->n_stage && count[k] > 0)
        k++;
    if (k < problem->n_stage && units->has_pin)
        clamp(units->anchor_lo, units->anchor_hi, units->n, stage);
    else if (k < problem->n_stage)
        status = fill_stages(problem, units, count, stage, scratch);
done:
    smp_arena_destroy(scratch);
    return status;
}

smp_status smp__share_out(const smp_problem *problem, const smp__units *units, const int32_t *order,
                          int32_t *stage)
{
    double total = 0.0, speed = 0.0, before = 0.0, behind = 0.0;
    for (int32_t u = 0; u < units->n; u++)
        total += units->compute_us[u];
    for (int s = 0; s < problem->n_stage; s++)
        speed += 1.0 / smp_problem_stage_slowdown(problem, s);
    int k = -1;
    for (int32_t i = 0; i < units->n; i++) {
        int32_t u = order ? order[i] : i;
        double middle = before + units->compute_us[u] / 2.0;
        double share = total > 0.0 ? middle / total : (i + 0.5) / units->n;
        while (k < 0 || (k + 1 < problem->n_stage && share * speed >= behind)) {
            k++;
            behind += 1.0 / smp_problem_stage_slowdown(problem, k);
        }
        stage[u] = k;
        before += units->compute_us[u];
    }
    return smp__legalize(problem, units, SMP__PUSH, stage);
}
