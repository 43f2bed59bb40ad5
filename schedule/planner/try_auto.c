/* After the search: an order of actions for a candidate's own, unequal stages. The search compares
 * fixed rules; the engine of schedule "auto" starts from the best of them and is judged by the same
 * simulation and the same memory planner. It has to win by more than one part in a hundred, as
 * anything has to in the search: a rule is easier to read.
 *
 * Which candidate gains most by it a quick look tells: most of what there is to find is found
 * within the first twentieth of the effort. */
#include <math.h>
#include <stdlib.h>

#include "schedule/auto/auto_schedule.h"
#include "schedule/planner/planner_build.h"

enum { MAX_ACTIONS = 1 << 15 }; /* of larger plans the winner's rule stays */

#define WORTH_IT 0.99
#define EFFORT 4e6 /* actions timed: about a tenth of a second, */
#define LOOK 2e5   /* and of a quick look */

typedef struct attempt {
    smp__planner *planner;
    const smp_candidate *best;
    int64_t *peak_bytes; /* [pipeline] scratch */
} attempt;

static smp_status fits(void *context, const smp_program *programs, bool *out)
{
    attempt *a = context;
    int tight_rank;
    SMP_TRY(smp__planner_peaks(a->planner, a->best, programs, false, a->peak_bytes));
    *out = smp__planner_room(a->planner, a->best, a->peak_bytes, &tight_rank) >= 0;
    return SMP_OK;
}

/* What a live micro-batch of a stage takes, as the partitioner estimates it: where everything
 * recomputes what was received. */
static int64_t stash_of(const smp_stage_load *load)
{
    double again = (double)load->again_bytes / fmax((double)load->stash_bytes, 1.0);
    return load->stash_bytes - load->again_bytes + (int64_t)(again * (double)load->in_bytes);
}

/* What a rank has for stashes: what is free, and what the winner's rule keeps alive. */
static void fill_memory(const attempt *a, const int64_t *peak_bytes, int64_t *stash_bytes,
                        int64_t *limit_bytes)
{
    const smp_candidate *best = a->best;
    smp_schedule_shape shape = smp__candidate_shape(a->planner, best);
    for (int r = 0; r < best->pipeline; r++) {
        double rank_stash = 0.0;
        for (int s = 0; s < best->partition->n_stage; s++)
            if (best->stage_rank[s] == r)
                rank_stash += (double)stash_of(&best->partition->load[s]);
        double live = smp_schedule_find(best->schedule)->live(&shape, r);
        double bytes = (double)smp__planner_limit(a->planner, best, r) - (double)peak_bytes[r] +
                       live * rank_stash / best->chunks;
        limit_bytes[r] = bytes < 0x1p62 ? (int64_t)bytes : INT64_MAX;
    }
    for (int s = 0; s < best->partition->n_stage; s++)
        stash_bytes[s] = stash_of(&best->partition->load[s]);
}

bool smp__planner_takes_order(const smp_search_request *request, const smp_candidate *candidate)
{
    /* A bound on live micro-batches is for rules: an order of its own knows bytes alone. */
    return !request->schedule && request->active_microbatches == 0 && request->graph->training &&
           candidate->pipeline > 1 && request->objective == SMP_OBJECTIVE_STEP &&
           request->optimize == SMP_OPTIMIZE_SPEED &&
           (int64_t)candidate->pipeline * candidate->chunks * candidate->microbatches * 2 <=
               MAX_ACTIONS;
}

/* Programs are owned, [pipeline]; NULL: by the estimate nothing fits, though the rule does. */
typedef struct order {
    smp_program *program;
    int n;
    smp_auto_result result;
} order;

static void free_order(order *o)
{
    for (int r = 0; o->program && r < o->n; r++)
        smp_program_free(&o->program[r]);
    free(o->program);
    o->program = NULL;
}

static smp_status fill_order(attempt *a, const int64_t *peak_bytes, double effort, smp_arena *arena,
                             order *out)
{
    size_t n_stage = (size_t)a->best->partition->n_stage, n = (size_t)out->n;
    smp_auto_input input = {
        .fits = fits, .context = a, .effort = effort, .deadline_s = a->planner->request.deadline_s};
    int64_t *stash_bytes = SMP_ARENA_NEW(arena, int64_t, n_stage);
    int64_t *limit_bytes = SMP_ARENA_NEW(arena, int64_t, n);
    a->peak_bytes = SMP_ARENA_NEW(arena, int64_t, n);
    if (!stash_bytes || !limit_bytes || !a->peak_bytes)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(smp__planner_simulation_input(a->planner, a->best, arena, &input.simulation));
    fill_memory(a, peak_bytes, stash_bytes, limit_bytes);
    input.stash_bytes = stash_bytes;
    input.limit_bytes = limit_bytes;
    return smp_auto_schedule(&input, out->program, &out->result);
}

/* peak_bytes: [pipeline] under the candidate's rule. */
static smp_status find_order(smp__planner *planner, const smp_candidate *candidate,
                             const int64_t *peak_bytes, double effort, order *out)
{
    size_t n = (size_t)candidate->pipeline;
    attempt a = {planner, candidate, NULL};
    *out = (order){.program = calloc(n, sizeof *out->program), .n = candidate->pipeline};
    smp_arena *arena = out->program ? smp_arena_create() : NULL;
    smp_status status = arena ? fill_order(&a, peak_bytes, effort, arena, out)
                              : smp_fail_memory(n * sizeof *out->program);
    smp_arena_destroy(arena);
    if (status != SMP_OK)
        free_order(out);
    return status == SMP_ERR_NO_FIT ? SMP_OK : status;
}

smp_status smp__planner_order_us(smp__planner *planner, const smp_candidate *candidate,
                                 double *step_us)
{
    order found;
    *step_us = candidate->step_us;
    SMP_TRY(smp__planner_hold(planner, candidate->partition));
    SMP_TRY(find_order(planner, candidate, candidate->rank_peak_bytes, LOOK, &found));
    if (found.program)
        *step_us = fmin(*step_us, found.result.step_us);
    free_order(&found);
    return SMP_OK;
}

/* Replaces the evaluation by that of the programs, which it takes over, if they are worth it. */
static smp_status take_over(smp__planner *planner, const smp_candidate *candidate,
                            smp_program *programs, smp__evaluation *evaluation, bool *taken)
{
    smp__evaluation found;
    int tight_rank;
    SMP_TRY(smp__planner_evaluate(planner, candidate, programs, true, &found));
    *taken = found.simulation->step_us <= WORTH_IT * evaluation->simulation->step_us &&
             smp__planner_room(planner, candidate, found.peak_bytes, &tight_rank) >= 0;
    if (*taken) {
        smp__evaluation_free(evaluation);
        *evaluation = found;
    } else {
        smp__evaluation_free(&found);
    }
    return SMP_OK;
}

smp_status smp__planner_auto(smp__planner *planner, const smp_candidate *candidate,
                             smp__evaluation *evaluation, smp_auto_outcome *out)
{
    order found;
    *out = (smp_auto_outcome){.rule_us = evaluation->simulation->step_us};
    if (!smp__planner_takes_order(&planner->request, candidate))
        return SMP_OK;
    SMP_TRY(find_order(planner, candidate, evaluation->peak_bytes, EFFORT, &found));
    if (!found.program)
        return SMP_OK;
    smp_status status = SMP_OK;
    if (found.result.step_us <= WORTH_IT * evaluation->simulation->step_us)
        status = take_over(planner, candidate, found.program, evaluation, &out->taken);
    out->tried = true;
    out->found_us = out->taken ? found.result.step_us : out->rule_us;
    out->lower_bound_us = found.result.lower_bound_us;
    free_order(&found);
    return status;
}
