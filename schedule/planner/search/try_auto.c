/* After the search: an order of actions for the winner's own, unequal stages. The search compares
 * fixed rules; the engine of schedule "auto" starts from the best of them and is judged by the same
 * simulation and the same memory planner. It has to win by more than one part in a hundred, as
 * anything has to in the search: a rule is easier to read. */
#include <math.h>
#include <stdlib.h>

#include "schedule/auto/auto_schedule.h"
#include "schedule/planner/search/search.h"

enum { MAX_ACTIONS = 1 << 15 }; /* of larger plans the winner's rule stays */

#define WORTH_IT 0.99
#define EFFORT 4e6 /* actions timed: about a tenth of a second */

typedef struct attempt {
    smp__planner *planner;
    const smp_candidate *best;
    int64_t *peak_bytes; /* [pipeline] scratch */
} attempt;

static smp_status fits(void *context, const smp_program *programs, bool *out)
{
    attempt *a = context;
    int tight_rank;
    SMP_TRY(smp__planner_peaks(a->planner, a->best, programs, false, a->peak_bytes, NULL));
    *out = smp__planner_room(a->planner, a->best, a->peak_bytes, &tight_rank) >= 0;
    return SMP_OK;
}

/* What a live micro-batch of a stage takes, as the partitioner estimates it: where everything
 * recomputes what was received; without what travels. */
static int64_t stash_of(const attempt *a, int stage)
{
    const smp_stage_load *load = &a->best->partition->load[stage];
    double again = (double)load->recompute_bytes / fmax((double)load->stash_bytes, 1.0);
    int64_t bytes =
        load->stash_bytes - load->recompute_bytes + (int64_t)(again * (double)load->in_bytes);
    bytes -= a->planner->held.offload_bytes[stage];
    return bytes > load->in_bytes ? bytes : load->in_bytes;
}

/* What a rank has for stashes: what is free, and what the winner's rule keeps alive. */
static void fill_memory(const attempt *a, const smp__evaluation *evaluation, int64_t *stash_bytes,
                        int64_t *limit_bytes)
{
    const smp_candidate *best = a->best;
    smp_schedule_shape shape = smp__candidate_shape(a->planner, best);
    for (int r = 0; r < best->pipeline; r++) {
        double rank_stash = 0.0;
        for (int s = 0; s < best->partition->n_stage; s++)
            if (best->stage_rank[s] == r)
                rank_stash += (double)stash_of(a, s);
        double live = smp_schedule_find(best->schedule)->live(&shape, r);
        double bytes = (double)smp__planner_limit(a->planner, best, r) -
                       (double)evaluation->peak_bytes[r] + live * rank_stash / best->chunks;
        limit_bytes[r] = bytes < 0x1p62 ? (int64_t)bytes : INT64_MAX;
    }
    for (int s = 0; s < best->partition->n_stage; s++)
        stash_bytes[s] = stash_of(a, s);
}

static bool is_wanted(const smp_search_request *request, const smp_candidate *best)
{
    /* A bound on live micro-batches is for rules: an order of its own knows bytes alone. */
    return !request->options.schedule && request->options.active_microbatches == 0 &&
           request->graph->training && best->pipeline > 1 &&
           request->options.objective == SMP_OBJECTIVE_STEP &&
           request->options.optimize == SMP_OPTIMIZE_SPEED &&
           (int64_t)best->pipeline * best->chunks * best->microbatches * 2 <= MAX_ACTIONS;
}

/* Replaces the evaluation by that of the programs, which it takes over, if they are worth it. */
static smp_status take_over(attempt *a, smp_program *programs, smp__evaluation *evaluation,
                            bool *taken)
{
    smp__evaluation found;
    int tight_rank;
    SMP_TRY(smp__planner_evaluate(a->planner, a->best, programs, true, &found));
    *taken = found.simulation->step_us <= WORTH_IT * evaluation->simulation->step_us &&
             smp__planner_room(a->planner, a->best, found.peak_bytes, &tight_rank) >= 0;
    if (*taken) {
        smp__evaluation_free(evaluation);
        *evaluation = found;
    } else {
        smp__evaluation_free(&found);
    }
    return SMP_OK;
}

smp_status smp__planner_auto(smp__planner *planner, const smp_candidate *best,
                             smp__evaluation *evaluation, smp_auto_outcome *out)
{
    *out = (smp_auto_outcome){.rule_us = evaluation->simulation->step_us};
    if (!is_wanted(&planner->request, best) || smp__budget_is_over(&planner->budget))
        return SMP_OK;
    size_t n_stage = (size_t)best->partition->n_stage, n = (size_t)best->pipeline;
    smp_status status = SMP_ERR_NO_MEMORY;
    smp_auto_result result = {0};
    smp_arena *arena = smp_arena_create();
    smp_program *programs = calloc(n, sizeof *programs);
    attempt a = {planner, best, NULL};
    smp_auto_input input = {
        .fits = fits, .context = &a, .effort = EFFORT, .deadline_s = planner->budget.part_s};
    int64_t *stash_bytes = arena ? SMP_ARENA_NEW(arena, int64_t, n_stage) : NULL;
    int64_t *limit_bytes = arena ? SMP_ARENA_NEW(arena, int64_t, n) : NULL;
    a.peak_bytes = arena ? SMP_ARENA_NEW(arena, int64_t, n) : NULL;
    if (!programs || !stash_bytes || !limit_bytes || !a.peak_bytes) {
        status = smp_fail_memory(n * sizeof *programs);
        goto done;
    }
    status = smp__planner_simulation_input(planner, best, arena, &input.simulation);
    if (status == SMP_OK)
        status = smp__planner_expose(planner, best, NULL, (double *)input.simulation.backward_us,
                                     (double *)input.simulation.backward_input_us);
    if (status != SMP_OK)
        goto done;
    fill_memory(&a, evaluation, stash_bytes, limit_bytes);
    input.stash_bytes = stash_bytes;
    input.limit_bytes = limit_bytes;
    status = smp_auto_schedule(&input, programs, &result);
    if (status == SMP_ERR_NO_FIT) { /* by the estimate alone: the winner's rule does fit */
        status = SMP_OK;
        goto done;
    }
    if (status == SMP_OK && result.step_us <= WORTH_IT * evaluation->simulation->step_us)
        status = take_over(&a, programs, evaluation, &out->taken);
    out->tried = true;
    out->found_us = out->taken ? result.step_us : out->rule_us;
    out->lower_bound_us = result.lower_bound_us;
done:
    for (size_t r = 0; programs && r < n; r++)
        smp_program_free(&programs[r]);
    free(programs);
    smp_arena_destroy(arena);
    return status;
}
