/* The breadth-first schedule (Lamy-Poirier, Breadth-First Pipeline Parallelism, MLSys 2023): every
 * micro-batch passes a chunk before any passes the next one, backwards the same with the chunks
 * reversed. A stage's weights are needed in one stretch of the forward and one of the backward
 * pass, and its reduction begins as soon as its chunk is through. In the last chunk one forward
 * and one backward alternate, which costs no time and keeps p-r instead of m micro-batches of it.
 * Linear. */
#include <limits.h>

#include "schedule/rules/schedule.h"

static smp_status check(const smp_schedule_shape *shape)
{
    if (shape->chunks >= 2)
        return SMP_OK;
    return smp_fail(SMP_ERR_INPUT,
                    "schedule breadth-first: chunks %d, expected 2 or more: it orders the chunks "
                    "of a rank",
                    shape->chunks);
}

/* Forwards of the last chunk before its first backward. */
static int warmup_count(const smp_schedule_shape *shape, int rank)
{
    int behind = shape->pipeline - 1 - rank;
    return behind < shape->microbatches ? behind : shape->microbatches;
}

static smp_status last_chunk(const smp_schedule_shape *shape, int rank, smp_program *program)
{
    int chunk = shape->chunks - 1, warmup = warmup_count(shape, rank);
    for (int mb = 0; mb < warmup; mb++)
        SMP_TRY(smp_program_push(program, SMP_ACTION_F, mb, chunk));
    for (int mb = 0; mb < shape->microbatches; mb++) {
        if (mb + warmup < shape->microbatches)
            SMP_TRY(smp_program_push(program, SMP_ACTION_F, mb + warmup, chunk));
        SMP_TRY(smp_program_push(program, SMP_ACTION_B, mb, chunk));
    }
    return SMP_OK;
}

static smp_status order(const smp_schedule_shape *shape, int rank, smp_program *program)
{
    int forwards = shape->training ? shape->chunks - 1 : shape->chunks;
    for (int chunk = 0; chunk < forwards; chunk++)
        for (int mb = 0; mb < shape->microbatches; mb++)
            SMP_TRY(smp_program_push(program, SMP_ACTION_F, mb, chunk));
    if (!shape->training)
        return SMP_OK;
    SMP_TRY(last_chunk(shape, rank, program));
    for (int chunk = shape->chunks - 2; chunk >= 0; chunk--)
        for (int mb = 0; mb < shape->microbatches; mb++)
            SMP_TRY(smp_program_push(program, SMP_ACTION_B, mb, chunk));
    return SMP_OK;
}

static int live(const smp_schedule_shape *shape, int rank)
{
    if (!shape->training)
        return 1;
    int64_t last = (int64_t)warmup_count(shape, rank) + 1;
    if (last > shape->microbatches)
        last = shape->microbatches;
    int64_t pairs = (int64_t)shape->microbatches * (shape->chunks - 1) + last;
    return pairs < INT_MAX ? (int)pairs : INT_MAX;
}

const smp_schedule_kind smp__schedule_breadth_first = {
    .name = "breadth-first",
    .summary = "all micro-batches through a chunk before the next chunk, and back",
    .check = check,
    .order = order,
    .live = live,
};
