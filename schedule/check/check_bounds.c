/* Whether programs keep to the bounds that were asked for, whoever wrote them: on live
 * micro-batches, and on those of a chunk that wait for W. A rule's own numbers say nothing of
 * programs that a plan brings along. O(actions). */
#include <string.h>

#include "schedule/check/check_build.h"

/* The most of what an action of one kind begins and one of another ends, as it goes on. */
typedef struct tally {
    int now, most;
} tally;

static void add(tally *t, int change)
{
    t->now += change;
    t->most = t->now > t->most ? t->now : t->most;
}

/* What one rank comes to: `live` pairs of micro-batch and chunk; waits: [chunks]. */
static void count(const smp_program *program, tally *live, tally *waits)
{
    for (int64_t i = 0; i < program->n; i++) {
        const smp_action *a = &program->action[i];
        if (a->kind == SMP_ACTION_F)
            add(live, 1);
        else if (a->kind == SMP_ACTION_I)
            add(&waits[a->chunk], 1);
        if (a->kind == SMP_ACTION_W)
            add(&waits[a->chunk], -1);
        if (a->kind == SMP_ACTION_B || a->kind == SMP_ACTION_W)
            add(live, -1);
    }
}

static smp_status find_rank(const smp__check_build *b, int rank, const tally *live,
                            const tally *waits, bool *found)
{
    const smp_schedule_shape *shape = &b->shape;
    const double alive = (double)live->most / shape->chunks;
    int lag = 0;
    for (int c = 0; c < shape->chunks; c++)
        lag = waits[c].most > lag ? waits[c].most : lag;
    if (shape->active > 0 && live->most > (int64_t)shape->active * shape->chunks) {
        *found = true;
        return SMP__FIND(&b->out->findings, ILLEGAL, "active", b->sketch->programs_where,
                         "rank %d keeps %.4g micro-batches alive, --active-microbatches allows %d",
                         rank, alive, shape->active);
    }
    if (shape->lag <= 0 || lag <= shape->lag)
        return SMP_OK;
    *found = true;
    return SMP__FIND(&b->out->findings, ILLEGAL, "lag", b->sketch->programs_where,
                     "on rank %d weight gradients of %d micro-batches are still to come at a time, "
                     "--weight-lag allows %d",
                     rank, lag, shape->lag);
}

/* An order of its own keeps to whatever is asked; a rule that takes no such bound to none. */
static bool takes_lag(const smp__check_build *b)
{
    return b->kind->any_placement || (b->kind->most_lag && b->kind->most_lag(&b->shape) > 0);
}

smp_status smp__check_bounds(const smp__check_build *b, const smp_program *program)
{
    smp__check_build asked = *b;
    const size_t chunks = (size_t)b->shape.chunks;
    tally *waits = SMP_ARENA_NEW(b->arena, tally, chunks);
    bool found = false;
    if (!waits)
        return SMP_ERR_NO_MEMORY;
    if (!takes_lag(b))
        asked.shape.lag = 0;
    for (int r = 0; r < b->shape.pipeline && b->shape.training && !found; r++) {
        tally live = {0};
        memset(waits, 0, chunks * sizeof *waits);
        count(&program[r], &live, waits);
        SMP_TRY(find_rank(&asked, r, &live, waits, &found));
    }
    return SMP_OK;
}
