/* Forwards only, for inference: groups of p or more micro-batches through the first chunk, then
 * through the second, and so on. The last group takes what p does not divide, so that no rank waits
 * from its first action on if m >= p: mv + p-1 forwards, whatever m is. A micro-batch leaves after
 * vp forwards and one group is under way at a time, which bounds what the ranks pass around.
 * Linear. */
#include "schedule/rules/schedule.h"

static smp_status order(const smp_schedule_shape *shape, int rank, smp_program *program)
{
    (void)rank; /* every rank runs the same order */
    for (int begin = 0, end; begin < shape->microbatches; begin = end) {
        end = shape->microbatches;
        if (end - begin >= 2 * (int64_t)shape->pipeline)
            end = begin + shape->pipeline;
        for (int chunk = 0; chunk < shape->chunks; chunk++)
            for (int mb = begin; mb < end; mb++)
                SMP_TRY(smp_program_push(program, SMP_ACTION_F, mb, chunk));
    }
    return SMP_OK;
}

static int live(const smp_schedule_shape *shape, int rank)
{
    (void)shape;
    (void)rank;
    return 1;
}

const smp_schedule_kind smp__schedule_forward = {
    .name = "forward",
    .summary = "forwards only, for inference",
    .order = order,
    .live = live,
    .no_training = true,
    .even_costs = 2,
};
