/* Counts of actions and messages between the first backward of a rank and its last.
 *
 * A send stands after its action. A receive may stand as early as the action that it waits for.
 * Let w be the forwards of a rank before its first backward. The stage before, s, runs no more than
 * its w forwards before the first backward of the stage after it, s + 1, whose gradient its own
 * first backward needs: so no receive of later forwards can stand before that. And before s has its
 * first backward, s + 1 runs no more backwards than stand in its order before the forward that s
 * runs first after it. */
#include "schedule/order_bound/segment.h"

#include <math.h>

/* Whether a segment may begin and end with it. */
static bool is_end(const smp_schedule_shape *shape, smp_action_kind kind)
{
    return shape->training ? kind == SMP_ACTION_B || kind == SMP_ACTION_I : kind == SMP_ACTION_F;
}

/* Counts one chunk of a program, from its first backward to its last of any chunk. */
static smp__segment count_chunk(const smp_program *program, int chunk, int64_t first, int64_t last)
{
    smp__segment count = {0};
    for (int64_t i = first; i <= last; i++) {
        const smp_action *a = &program->action[i];
        if (a->chunk != chunk)
            continue;
        count.forwards += a->kind == SMP_ACTION_F;
        count.inputs += a->kind == SMP_ACTION_B || a->kind == SMP_ACTION_I;
        count.weights += a->kind == SMP_ACTION_B || a->kind == SMP_ACTION_W;
    }
    return count;
}

smp_status smp__segment_count(const smp_schedule_kind *kind, const smp_schedule_shape *shape,
                              int rank, smp__segment *out, bool *splits)
{
    smp_program program = {0};
    int64_t first = -1, last = -1;
    smp__segment least = {INFINITY, INFINITY, INFINITY};
    bool whole = false; /* the chain goes through B */
    smp_status status = kind->order(shape, rank, &program);
    for (int64_t i = 0; status == SMP_OK && i < program.n; i++) {
        *splits |= program.action[i].kind == SMP_ACTION_I;
        whole |= program.action[i].kind == SMP_ACTION_B;
        if (is_end(shape, program.action[i].kind)) {
            first = first < 0 ? i : first;
            last = i;
        }
    }
    for (int c = 0; status == SMP_OK && c < shape->chunks; c++) {
        smp__segment count = count_chunk(&program, c, first, last);
        least.forwards = fmin(least.forwards, count.forwards);
        least.inputs = fmin(least.inputs, count.inputs);
        least.weights = fmin(least.weights, count.weights);
    }
    if (shape->chunks == 1) { /* one is in the chain */
        least.forwards -= shape->training ? 0.0 : 1.0;
        least.inputs -= shape->training ? 1.0 : 0.0;
        least.weights -= whole ? 1.0 : 0.0;
    }
    *out = least;
    smp_program_free(&program);
    return status;
}

/* One rank's order: what of each kind stands where. */
typedef struct rank_order {
    int warmup;   /* forwards before the first backward */
    int *waiting; /* [m + 1] backwards before a forward; of all m: at the end */
    bool rising;  /* each kind goes through the micro-batches in turn */
} rank_order;

static smp_status read_order(const smp_schedule_kind *kind, const smp_schedule_shape *shape,
                             int rank, smp_arena *arena, rank_order *out)
{
    smp_program program = {0};
    int forwards = 0, backwards = 0;
    *out = (rank_order){.rising = true,
                        .waiting = SMP_ARENA_NEW(arena, int, (size_t)shape->microbatches + 1)};
    if (!out->waiting)
        return SMP_ERR_NO_MEMORY;
    smp_status status = kind->order(shape, rank, &program);
    for (int64_t i = 0; status == SMP_OK && i < program.n; i++) {
        const smp_action *a = &program.action[i];
        if (a->kind == SMP_ACTION_F) {
            out->rising &= a->microbatch == forwards;
            out->waiting[forwards++] = backwards;
            out->warmup += backwards == 0;
        } else if (a->kind == SMP_ACTION_B || a->kind == SMP_ACTION_I) {
            out->rising &= a->microbatch == backwards++;
        }
    }
    out->waiting[forwards] = backwards;
    smp_program_free(&program);
    return status;
}

smp_status smp__segment_messages(const smp_schedule_kind *kind, const smp_schedule_shape *shape,
                                 smp_arena *arena, double *times)
{
    int p = shape->pipeline, m = shape->microbatches, forwards = m, backwards = m - 1;
    rank_order before = {0}, order = {.rising = true};
    *times = 0.0;
    if (!shape->training || shape->chunks > 1)
        return SMP_OK;
    for (int s = 0; s < p && order.rising; s++, before = order) {
        int rank = smp_schedule_stage_rank(kind, shape, s);
        SMP_TRY(read_order(kind, shape, rank, arena, &order));
        forwards = m - order.warmup < forwards ? m - order.warmup : forwards;
        int early = s > 0 ? order.waiting[before.warmup] - 1 : 0;
        if (early > 0 && m - 1 - early < backwards)
            backwards = m - 1 - early;
    }
    if (order.rising)
        *times = 0.5 * (forwards + backwards);
    return SMP_OK;
}
