/* From a partition that should fit to one that does: the memory planner has the last word.
 *
 * The estimate that partitions are made with may be too low or too high. Too low: stages of the ranks
 * that miss recompute, most bytes saved per time first, where that is allowed; if it does not help,
 * partitions are made anew under limits lowered by what was missing. Too high: stages that need not
 * recompute stop, longest forward first. Every step is checked by the schedule's own model; a
 * handful of evaluations at most. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "schedule/planner/configs.h"

enum { MAX_SHRINK = 5, MAX_SHRINK_AUTO = 3, MAX_MORE = 3, MAX_LESS = 3 };
#define SPARE 1.02 /* times what was missing */
#define STEP 0.01  /* of the memory at least, twice as much each time: a near miss must not stall */

/* Takes the partition over, also when it fails. */
static smp_status make_candidate(const smp__configs *configs, const smp__config *config,
                                 smp_partition *partition, double give_up_us, smp_candidate **out)
{
    size_t n_device = (size_t)configs->request->devices, n_rank = (size_t)config->mapping->pipeline;
    size_t n_stage = (size_t)partition->n_stage;
    smp_candidate *candidate = calloc(1, sizeof *candidate);
    if (!candidate) {
        smp_partition_destroy(partition);
        return smp_fail_memory(sizeof *candidate);
    }
    int n_recompute = smp__count_recomputing(partition);
    if (n_recompute > 0 && config->recompute == SMP_RECOMPUTE_AUTO)
        give_up_us = 0.0; /* with less recomputation it may be faster */
    *candidate = (smp_candidate){.pipeline = config->mapping->pipeline,
                                 .ddp = config->mapping->ddp,
                                 .chunks = config->chunks,
                                 .microbatches = config->microbatches,
                                 .microbatch_size = configs->costs->microbatch_size,
                                 .schedule = config->schedule->name,
                                 .placement = config->mapping->placement,
                                 .partition = partition,
                                 .give_up_us = give_up_us,
                                 .n_recompute = n_recompute,
                                 .solver = partition->solver,
                                 .bottleneck_us = partition->bottleneck_us,
                                 .device = calloc(n_device, sizeof(int)),
                                 .stage_rank = calloc(n_stage, sizeof(int)),
                                 .rank_peak_bytes = calloc(n_rank, sizeof(int64_t))};
    if (!candidate->device || !candidate->stage_rank || !candidate->rank_peak_bytes) {
        smp_candidate_destroy(candidate);
        return smp_fail_memory((n_device + n_stage) * sizeof(int));
    }
    memcpy(candidate->device, config->mapping->device, n_device * sizeof(int));
    memcpy(candidate->stage_rank, smp__config_stage_rank(configs, config), n_stage * sizeof(int));
    *out = candidate;
    return SMP_OK;
}

smp_status smp__config_evaluate(smp__configs *configs, const smp__config *config,
                                smp_partition *partition, double give_up_us, smp_candidate **out)
{
    smp_candidate *candidate = NULL;
    SMP_TRY(make_candidate(configs, config, partition, 0.0, &candidate));
    candidate->give_up_us = give_up_us;
    smp_status status = smp__planner_judge(configs->planner, candidate);
    candidate->give_up_us = 0.0;
    if (status == SMP_OK)
        *out = candidate;
    else
        smp_candidate_destroy(candidate);
    return status;
}

/* Evaluates the candidate, unless a rank cannot fit whatever its order: then the least that its
 * ranks need stands in the place of their peaks. *known: it was evaluated. */
static smp_status measure(const smp__configs *configs, smp_candidate *candidate, bool *known)
{
    int64_t *bytes = candidate->rank_peak_bytes;
    SMP_TRY(smp__planner_least_bytes(configs->planner, candidate, bytes));
    candidate->room_bytes =
        smp__planner_room(configs->planner, candidate, bytes, &candidate->worst_rank);
    *known = candidate->room_bytes >= 0;
    return *known ? smp__planner_judge(configs->planner, candidate) : SMP_OK;
}

/* Bytes that a stage saves by recomputing, as estimated. */
static double saving_of(const smp_problem *problem, const smp_stage_load *load, int s)
{
    double live = problem->live[s], stash = (double)load->stash_bytes;
    return live * stash - (live * (double)load->in_bytes + stash);
}

/* The stage of a rank that should change next, or -1: where recomputation saves most per time, or
 * where leaving it out, which needs no more than `room`, gains most. */
static int next_stage(const smp_problem *problem, const smp_partition *partition, int rank,
                      bool more, double room, const bool *recompute)
{
    int found = -1;
    double best = 0.0;
    for (int s = 0; s < partition->n_stage; s++) {
        const smp_stage_load *load = &partition->load[s];
        if (problem->stage_rank[s] != rank || recompute[s] == more)
            continue;
        double saving = saving_of(problem, load, s);
        if (more ? saving <= 0.0 : saving > room)
            continue;
        double value = more ? saving / (load->forward_us + 1e-9) : load->forward_us + 1e-9;
        if (value > best) {
            best = value;
            found = s;
        }
    }
    return found;
}

/* Changes what recomputes on every rank by its room under `limit` (INT64_MAX: its memory). False:
 * nothing to change. */
static bool change_recompute(const smp__config *config, const smp_problem *problem,
                             const smp_candidate *candidate, bool more, int64_t limit,
                             bool *recompute)
{
    const smp_partition *partition = candidate->partition;
    bool changed = false;
    for (int r = 0; r < config->mapping->pipeline; r++) {
        int64_t memory = smp__config_memory(config, r);
        double room =
            (double)(memory < limit ? memory : limit) - (double)candidate->rank_peak_bytes[r];
        for (int s; more ? room < 0.0 : room > 0.0; changed = true) {
            s = next_stage(problem, partition, r, more, room, recompute);
            if (s < 0)
                break;
            recompute[s] = more;
            room += (more ? 1.0 : -1.0) * saving_of(problem, &partition->load[s], s);
        }
    }
    return changed;
}

static smp_status evaluate_with(smp__configs *configs, smp__config *config,
                                const smp_problem *problem, const smp_candidate *from,
                                const bool *recompute, smp_candidate **out, bool *known)
{
    smp_partition *changed = NULL;
    smp_candidate *candidate = NULL;
    SMP_TRY(smp__partition_recompute(problem, from->partition, recompute, &changed));
    SMP_TRY(make_candidate(configs, config, changed, from->give_up_us, &candidate));
    smp_status status = measure(configs, candidate, known);
    if (status == SMP_OK)
        *out = candidate;
    else
        smp_candidate_destroy(candidate);
    return status;
}

/* Better: evaluated before not, then more room. Takes the candidate over. */
static void keep_roomier(smp_candidate **best, bool *best_known, smp_candidate *candidate,
                         bool known)
{
    bool better = !*best || (known && !*best_known) ||
                  (known == *best_known && candidate->room_bytes > (*best)->room_bytes);
    if (!better) {
        smp_candidate_destroy(candidate);
        return;
    }
    smp_candidate_destroy(*best);
    *best = candidate;
    *best_known = known;
}

/* Recomputes more until the candidate fits. */
static smp_status recompute_more(smp__configs *configs, smp__config *config,
                                 const smp_problem *problem, bool *recompute,
                                 smp_candidate **candidate, bool *known)
{
    for (int i = 0; i < MAX_MORE && !(*candidate)->fits; i++) {
        smp_candidate *next = NULL;
        bool next_known;
        if (!change_recompute(config, problem, *candidate, true, INT64_MAX, recompute))
            break;
        SMP_TRY(evaluate_with(configs, config, problem, *candidate, recompute, &next, &next_known));
        keep_roomier(candidate, known, next, next_known);
    }
    return SMP_OK;
}

/* Ranks that miss without some recomputation get it back. */
static void take_back(const smp__config *config, const smp_problem *problem,
                      const smp_candidate *before, const smp_candidate *missing, int64_t limit,
                      bool *recompute)
{
    for (int s = 0; s < problem->n_stage; s++) {
        int r = problem->stage_rank[s];
        int64_t memory = smp__config_memory(config, r);
        if (missing->rank_peak_bytes[r] > (memory < limit ? memory : limit))
            recompute[s] = before->partition->load[s].recompute;
    }
}

/* Stops recomputing where there is room for it. */
static smp_status recompute_less(smp__configs *configs, smp__config *config,
                                 const smp_problem *problem, bool *recompute,
                                 smp_candidate **candidate)
{
    bool for_memory = configs->request->optimize == SMP_OPTIMIZE_MEMORY;
    int64_t limit = for_memory ? (*candidate)->peak_bytes : INT64_MAX;
    if (!change_recompute(config, problem, *candidate, false, limit, recompute))
        return SMP_OK;
    for (int i = 0; i < MAX_LESS; i++) {
        smp_candidate *trial = NULL;
        bool known;
        SMP_TRY(evaluate_with(configs, config, problem, *candidate, recompute, &trial, &known));
        bool good = known && trial->fits && trial->peak_bytes <= limit;
        if (good && trial->step_us <= (*candidate)->step_us) {
            smp_candidate_destroy(*candidate);
            *candidate = trial;
            return SMP_OK;
        }
        if (!good)
            take_back(config, problem, *candidate, trial, limit, recompute);
        bool over = good || trial->n_recompute >= (*candidate)->n_recompute;
        smp_candidate_destroy(trial);
        if (over)
            break;
    }
    return SMP_OK;
}

/* Where recomputation is a choice: more of it where the candidate misses, less where it has room. */
static smp_status tune_recompute(smp__configs *configs, smp__config *config, bool more,
                                 smp_candidate **candidate, bool *known)
{
    smp_problem problem;
    SMP_TRY(smp__config_problem(configs, config, &problem));
    if (problem.recompute != SMP_RECOMPUTE_AUTO || !problem.graph->training ||
        (*candidate)->fits == more || (!more && (*candidate)->n_recompute == 0))
        return SMP_OK;
    bool *recompute = calloc((size_t)problem.n_stage, sizeof *recompute);
    if (!recompute)
        return smp_fail_memory((size_t)problem.n_stage);
    for (int s = 0; s < problem.n_stage; s++)
        recompute[s] = (*candidate)->partition->load[s].recompute;
    smp_status status = more
                            ? recompute_more(configs, config, &problem, recompute, candidate, known)
                            : recompute_less(configs, config, &problem, recompute, candidate);
    free(recompute);
    return status;
}

/* Shrinks the limits until the candidate fits or no partition keeps them any more. */
static smp_status shrink(smp__configs *configs, smp__config *config, smp_partition *partition,
                         double give_up_us, smp_candidate **best, bool *best_known)
{
    double spare = 0.0;
    int max_shrink = config->recompute == SMP_RECOMPUTE_AUTO ? MAX_SHRINK_AUTO : MAX_SHRINK;
    for (int attempt = 0;; attempt++) {
        smp_candidate *candidate = NULL;
        bool known, was_to_fit = partition->fits;
        SMP_TRY(make_candidate(configs, config, partition, give_up_us, &candidate));
        smp_status status = measure(configs, candidate, &known);
        if (status != SMP_OK) {
            smp_candidate_destroy(candidate);
            return status;
        }
        bool fits = known && candidate->fits;
        double memory = (double)smp__config_memory(config, candidate->worst_rank);
        spare += fmax(SPARE * (double)-candidate->room_bytes / memory, STEP * (1 << attempt));
        keep_roomier(best, best_known, candidate, known);
        if (attempt == 0 && !fits)
            SMP_TRY(tune_recompute(configs, config, true, best, best_known));
        fits = *best_known && (*best)->fits;
        if (fits || !was_to_fit || attempt == max_shrink || spare >= 1.0)
            return SMP_OK;
        SMP_TRY(smp__config_partition(configs, config, spare, &partition));
    }
}

smp_status smp__config_fit(smp__configs *configs, smp__config *config, smp_partition *partition,
                           double give_up_us, smp_candidate **out, int64_t *room_bytes)
{
    smp_candidate *best = NULL;
    bool known = false;
    smp_status status = shrink(configs, config, partition, give_up_us, &best, &known);
    if (status == SMP_OK)
        status = tune_recompute(configs, config, false, &best, &known);
    if (status == SMP_OK) {
        *room_bytes = best->room_bytes;
        best->give_up_us = 0.0;
    }
    if (status != SMP_OK || !known) {
        smp_candidate_destroy(best);
        best = NULL;
    }
    if (status == SMP_OK)
        *out = best;
    return status;
}
