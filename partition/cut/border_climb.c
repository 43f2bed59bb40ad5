/* Hill climbing over borders. A move shifts one border, or both ends of a stage, by a step; steps
 * halve when no move helps. Needed where ranks hold several stages, whose sum counts, or where
 * links differ; O(graph) per move. */
#include "partition/cut/border_climb.h"

#include <math.h>

#include "graph/base/clock.h"

enum { CHECK_WORK = 100000 };

bool smp__score_better(const smp__score *a, const smp__score *b)
{
    if (a->excess != b->excess)
        return a->excess < b->excess;
    double slack = 1e-12 * b->bottleneck_us;
    if (fabs(a->bottleneck_us - b->bottleneck_us) > slack)
        return a->bottleneck_us < b->bottleneck_us;
    return a->total_us < b->total_us - 1e-12 * b->total_us;
}

typedef struct climber {
    smp__evaluator *evaluator;
    const smp__sequence *sequence;
    int32_t *border;
    int32_t *op_stage;
    smp__score score;
    int64_t work, limit, check; /* the clock is read when work gets to check */
} climber;

/* Enough work done, or the deadline has struck. */
static bool is_over(climber *c)
{
    if (c->work >= c->check) {
        c->check = c->work + CHECK_WORK;
        if (smp_work_past(c->sequence->problem->deadline_s))
            c->limit = c->work;
    }
    return c->work >= c->limit;
}

static smp__score judge_borders(climber *c)
{
    const smp__sequence *sequence = c->sequence;
    const smp__units *units = sequence->units;
    for (int k = 0; k < sequence->n_stage; k++) {
        for (int32_t i = c->border[k]; i < c->border[k + 1]; i++) {
            int32_t u = sequence->unit[i];
            for (int64_t o = units->op_begin[u]; o < units->op_begin[u + 1]; o++)
                c->op_stage[units->op_list[o]] = k;
        }
    }
    c->work += (int64_t)sequence->problem->graph->n_op * c->evaluator->n_replica;
    return smp__evaluate(c->evaluator, c->op_stage);
}

static bool allowed(const climber *c, int k)
{
    return c->border[k] > c->border[k - 1] && c->border[k] < c->border[k + 1] &&
           c->border[k] >= c->sequence->border_lo[k] && c->border[k] <= c->sequence->border_hi[k];
}

/* Shifts borders first..last by step; undone unless it helps. */
static bool move_borders(climber *c, int first, int last, int32_t step)
{
    bool ok = true;
    for (int k = first; k <= last; k++)
        c->border[k] += step;
    for (int k = first; k <= last; k++)
        ok &= allowed(c, k);
    if (ok) {
        smp__score score = judge_borders(c);
        ok = smp__score_better(&score, &c->score);
        if (ok)
            c->score = score;
    }
    for (int k = first; k <= last && !ok; k++)
        c->border[k] -= step;
    return ok;
}

void smp__climb_borders(smp__evaluator *evaluator, const smp__sequence *sequence, int32_t *border,
                        int32_t *op_stage, int64_t limit, int64_t *work)
{
    climber c = {.evaluator = evaluator,
                 .sequence = sequence,
                 .border = border,
                 .op_stage = op_stage,
                 .work = *work,
                 .limit = limit};
    c.score = judge_borders(&c);
    for (int32_t step = sequence->n / (4 * sequence->n_stage) + 1; step > 0; step /= 2) {
        bool moved = true;
        while (moved) {
            moved = false;
            for (int k = 1; k < sequence->n_stage && !is_over(&c); k++) {
                moved |= move_borders(&c, k, k, step) || move_borders(&c, k, k, -step);
                if (k + 1 < sequence->n_stage)
                    moved |= move_borders(&c, k, k + 1, step) || move_borders(&c, k, k + 1, -step);
            }
        }
    }
    *work = c.work;
}
