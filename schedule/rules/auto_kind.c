/* The name of schedules that were found for the costs of a plan (schedule/auto/list_schedule.h). The
 * programs of such a plan stand in it; asked for an order without costs, the name stands for the
 * rule that is best when all stages cost the same. */
#include "schedule/rules/kinds.h"

static const smp_schedule_kind *rule(const smp_schedule_shape *shape)
{
    if (!shape->training)
        return &smp__schedule_forward;
    return shape->chunks == 1 ? &smp__schedule_zero_bubble : &smp__schedule_interleaved;
}

static smp_status check(const smp_schedule_shape *shape)
{
    return rule(shape)->check(shape);
}

static smp_status order(const smp_schedule_shape *shape, int rank, smp_program *program)
{
    return rule(shape)->order(shape, rank, program);
}

static int live(const smp_schedule_shape *shape, int rank)
{
    return rule(shape)->live(shape, rank);
}

const smp_schedule_kind smp__schedule_auto = {
    .name = "auto",
    .summary = "an order found for the costs of this plan's stages",
    .check = check,
    .order = order,
    .live = live,
    .any_placement = true,
};
