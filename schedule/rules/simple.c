/* The simple schedule (GPipe; Huang et al., NeurIPS 2019): all forwards, then all backwards, one
 * chunk after the other, the backwards from the last chunk to the first. With a bound on live
 * micro-batches that in rounds of as many, each with its own fill and drain. Linear. */
#include <limits.h>

#include "schedule/rules/schedule.h"

static int round_size(const smp_schedule_shape *shape)
{
    const bool bound = shape->training && shape->active > 0;
    return bound && shape->active < shape->microbatches ? shape->active : shape->microbatches;
}

/* Micro-batches [begin, end). */
static smp_status push_round(const smp_schedule_shape *shape, int begin, int end,
                             smp_program *program)
{
    for (int chunk = 0; chunk < shape->chunks; chunk++)
        for (int mb = begin; mb < end; mb++)
            SMP_TRY(smp_program_push(program, SMP_ACTION_F, mb, chunk));
    for (int chunk = shape->chunks - 1; shape->training && chunk >= 0; chunk--)
        for (int mb = begin; mb < end; mb++)
            SMP_TRY(smp_program_push(program, SMP_ACTION_B, mb, chunk));
    return SMP_OK;
}

static smp_status order(const smp_schedule_shape *shape, int rank, smp_program *program)
{
    (void)rank; /* every rank runs the same order */
    const int size = round_size(shape);
    for (int begin = 0, left = shape->microbatches; left > 0; begin += size, left -= size)
        SMP_TRY(push_round(shape, begin, begin + (left < size ? left : size), program));
    return SMP_OK;
}

static int live(const smp_schedule_shape *shape, int rank)
{
    (void)rank;
    if (!shape->training)
        return 1;
    int64_t pairs = (int64_t)round_size(shape) * shape->chunks;
    return pairs < INT_MAX ? (int)pairs : INT_MAX;
}

const smp_schedule_kind smp__schedule_simple = {
    .name = "simple",
    .alias = "gpipe",
    .summary = "all forwards, then all backwards, of all micro-batches or of rounds of K",
    .order = order,
    .live = live,
    .takes_active = true,
};
