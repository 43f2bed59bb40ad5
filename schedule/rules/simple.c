/* The simple schedule (GPipe; Huang et al., NeurIPS 2019): all forwards, then all backwards, one
 * chunk after the other, the backwards from the last chunk to the first. Linear. */
#include <limits.h>

#include "schedule/rules/schedule.h"

static smp_status order(const smp_schedule_shape *shape, int rank, smp_program *program)
{
    (void)rank; /* every rank runs the same order */
    for (int chunk = 0; chunk < shape->chunks; chunk++)
        for (int mb = 0; mb < shape->microbatches; mb++)
            SMP_TRY(smp_program_push(program, SMP_ACTION_F, mb, chunk));
    for (int chunk = shape->chunks - 1; shape->training && chunk >= 0; chunk--)
        for (int mb = 0; mb < shape->microbatches; mb++)
            SMP_TRY(smp_program_push(program, SMP_ACTION_B, mb, chunk));
    return SMP_OK;
}

static int live(const smp_schedule_shape *shape, int rank)
{
    (void)rank;
    if (!shape->training)
        return 1;
    int64_t pairs = (int64_t)shape->microbatches * shape->chunks;
    return pairs < INT_MAX ? (int)pairs : INT_MAX;
}

const smp_schedule_kind smp__schedule_simple = {
    .name = "simple",
    .alias = "gpipe",
    .summary = "all forwards, then all backwards; keeps every micro-batch",
    .order = order,
    .live = live,
};
