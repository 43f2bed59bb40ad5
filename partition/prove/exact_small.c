/* Exhaustive search for small graphs whose loads are more than those of one stage after the other:
 * several stages on a rank, or links that differ, where what a stage pays depends on where the
 * others lie. Units in topological order, each in every stage that its inputs, pins and the best
 * pipeline so far leave it; the compute of a rank only grows. Exponential, so with a limit. */
#include <math.h>
#include <string.h>

#include "graph/base/clock.h"
#include "partition/problem/evaluate.h"
#include "partition/prove/exact.h"

enum { CLOCK_WORK = 1 << 16 }; /* between two looks at the clock */

#define ROOM 1e-12 /* relative: less is no improvement */

typedef struct small {
    const smp_problem *problem;
    const smp__units *units;
    smp__evaluator evaluator;
    int64_t work; /* left; none after the deadline */
    int64_t next_check;
    double best_us;    /* to be beaten */
    double *rank_us;   /* [pipeline] compute so far */
    int32_t *n_unit;   /* [n_stage] so far */
    int32_t n_empty;   /* stages */
    int32_t *stage;    /* [n] of units */
    int32_t *op_stage; /* [n_op] */
    int32_t *best;     /* [n], filled if found */
    bool found;
} small;

static void judge_partition(small *s)
{
    const smp__units *units = s->units;
    int32_t n_op = s->problem->graph->n_op;
    for (int32_t op = 0; op < n_op; op++)
        s->op_stage[op] = s->stage[units->unit_of_op[op]];
    smp__score score = smp__evaluate(&s->evaluator, s->op_stage);
    s->work -= (int64_t)n_op * s->evaluator.n_replica;
    if (score.excess > 0.0 || score.bottleneck_us >= s->best_us * (1.0 - ROOM))
        return;
    s->best_us = score.bottleneck_us;
    s->found = true;
    memcpy(s->best, s->stage, (size_t)units->n * sizeof *s->best);
}

static void look_at_clock(small *s)
{
    if (s->work > s->next_check)
        return;
    smp_work_count(SMP_WORK_PROOF, (double)CLOCK_WORK);
    s->next_check = s->work - CLOCK_WORK;
    if (smp_work_past(s->problem->deadline_s))
        s->work = 0;
}

static void place(small *s, int32_t u)
{
    const smp__units *units = s->units;
    if (u == units->n) {
        judge_partition(s);
        return;
    }
    int32_t first = units->lo[u];
    for (int64_t e = units->in_begin[u]; e < units->in_begin[u + 1]; e++) {
        int32_t from = s->stage[units->net_unit[units->in_net[e]]];
        first = from > first ? from : first;
    }
    for (int32_t k = first; k <= units->hi[u] && s->work > 0; k++) {
        int rank = s->problem->stage_rank[k];
        double before_us = s->rank_us[rank];
        s->work--;
        look_at_clock(s);
        s->rank_us[rank] += units->compute_us[u] * s->evaluator.slowest[k];
        s->n_empty -= s->n_unit[k]++ == 0;
        s->stage[u] = k;
        if (s->rank_us[rank] < s->best_us && s->n_empty <= units->n - u - 1)
            place(s, u + 1);
        s->n_empty += --s->n_unit[k] == 0;
        s->rank_us[rank] = before_us;
    }
}

smp_status smp__exact_small(const smp_problem *problem, const smp__units *units, double target_us,
                            int64_t *work, bool *complete, double *best_us, int32_t *unit_stage)
{
    smp_status status = SMP_ERR_NO_MEMORY;
    size_t n = (size_t)units->n;
    small s = {.problem = problem,
               .units = units,
               .work = *work,
               .next_check = *work,
               .best_us = target_us,
               .n_empty = problem->n_stage,
               .best = unit_stage};
    smp_arena *arena = smp_arena_create();
    if (!arena)
        return status;
    s.rank_us = SMP_ARENA_NEW(arena, double, (size_t)problem->pipeline);
    s.n_unit = SMP_ARENA_NEW(arena, int32_t, (size_t)problem->n_stage);
    s.stage = SMP_ARENA_NEW(arena, int32_t, n);
    s.op_stage = SMP_ARENA_NEW(arena, int32_t, (size_t)problem->graph->n_op);
    if (!s.rank_us || !s.n_unit || !s.stage || !s.op_stage)
        goto done;
    status = smp__evaluator_init(&s.evaluator, problem, arena);
    if (status != SMP_OK)
        goto done;
    place(&s, 0);
    *best_us = s.found ? s.best_us : INFINITY;
    *complete = s.work > 0;
    *work = s.work > 0 ? s.work : 0;
done:
    smp_arena_destroy(arena);
    return status;
}
