/* The name of schedules that were found for the costs of a plan (schedule/auto/list_schedule.h),
 * and "auto", as one asks for them.
 * The programs of such a plan stand in it; asked for an order without costs, the name stands for
 * the rule that is best when all stages cost the same (smp_schedule_kind.even_costs). */
#include "schedule/rules/schedule.h"

/* NULL: none can run the shape; the reason is recorded. */
static const smp_schedule_kind *find_rule(const smp_schedule_shape *shape)
{
    const smp_schedule_kind *best = NULL;
    for (const smp_schedule_kind *const *k = smp_schedules(); *k; k++) {
        bool mode = shape->training ? !(*k)->no_training : !(*k)->no_inference;
        bool in_turn = shape->chunks == 1 || !(*k)->stage_rank;
        if ((*k)->even_costs > (best ? best->even_costs : 0) && mode && in_turn &&
            smp_schedule_check(*k, shape) == SMP_OK)
            best = *k;
    }
    return best;
}

static smp_status check(const smp_schedule_shape *shape)
{
    return find_rule(shape) ? SMP_OK : SMP_ERR_INPUT;
}

static smp_status order(const smp_schedule_shape *shape, int rank, smp_program *program)
{
    return find_rule(shape)->order(shape, rank, program);
}

static int live(const smp_schedule_shape *shape, int rank)
{
    return find_rule(shape)->live(shape, rank);
}

const smp_schedule_kind smp__schedule_auto = {
    .name = "searched",
    .alias = "auto",
    .summary = "an order found for the costs of this plan's stages",
    .check = check,
    .order = order,
    .live = live,
    .any_placement = true,
};
