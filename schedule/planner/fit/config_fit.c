/* From a partition that should fit to one that does: the memory planner has the last word.
 *
 * The estimate that partitions are made with says what should recompute; what does is chosen by
 * what the schedule really needs (schedule/planner/fit/memory_fit.c). If nothing helps, partitions
 * are made anew under limits lowered by what was missing; a handful at most. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "schedule/lower/lower.h"
#include "schedule/planner/fit/fit.h"

enum { MAX_SHRINK = 5, MAX_SHRINK_AUTO = 3, TINY = 12 /* ops */, EXACT_OPS = 64 };
#define SPARE 1.02 /* times what was missing */
#define STEP 0.01  /* of the memory at least, twice as much each time: a near miss must not stall */

/* Takes the partition over, also when it fails. The first one decides on the configuration's
 * hops. */
static smp_status make_candidate(const smp__configs *configs, smp__config *config,
                                 smp_partition *partition, double give_up_us, smp_candidate **out)
{
    size_t n_device = (size_t)configs->request->options.devices,
           n_rank = (size_t)config->mapping->pipeline;
    size_t n_stage = (size_t)partition->n_stage;
    const int32_t n_op = configs->request->graph->n_op;
    smp_candidate *candidate = calloc(1, sizeof *candidate);
    if (!candidate) {
        smp_partition_destroy(partition);
        return smp_fail_memory(sizeof *candidate);
    }
    *candidate = (smp_candidate){.pipeline = config->mapping->pipeline,
                                 .ddp = config->mapping->ddp,
                                 .replicas = config->mapping->replicas,
                                 .chunks = config->chunks,
                                 .microbatches = config->microbatches,
                                 .active = config->active,
                                 .lag = config->lag,
                                 .sharding = config->sharding,
                                 .microbatch_size = configs->costs->microbatch_size,
                                 .schedule = config->schedule->name,
                                 .placement = config->mapping->placement,
                                 .partition = partition,
                                 .give_up_us = give_up_us,
                                 .n_recompute = smp__count_recomputing(partition),
                                 .horizon = config->horizon,
                                 .solver = partition->solver,
                                 .bottleneck_us = partition->bottleneck_us,
                                 .device = calloc(n_device, sizeof(int)),
                                 .stage_rank = calloc(n_stage, sizeof(int)),
                                 .rank_peak_bytes = calloc(n_rank, sizeof(int64_t)),
                                 .offload = calloc((size_t)n_op + 1, sizeof(bool))};
    if (!candidate->device || !candidate->stage_rank || !candidate->rank_peak_bytes ||
        !candidate->offload) {
        smp_candidate_destroy(candidate);
        return smp_fail_memory((n_device + n_stage) * sizeof(int));
    }
    memcpy(candidate->device, config->mapping->device, n_device * sizeof(int));
    memcpy(candidate->stage_rank, smp__config_stage_rank(configs, config), n_stage * sizeof(int));
    if (config->offload && configs->request->options.offload == SMP_OFFLOAD_ALL) {
        memset(candidate->offload, true, (size_t)n_op);
        candidate->n_offload = partition->n_stage;
    }
    const smp_status status = smp__candidate_choose_hops(configs->planner, candidate);
    config->sharding.node_replicas = candidate->sharding.node_replicas;
    if (status == SMP_OK)
        *out = candidate;
    else
        smp_candidate_destroy(candidate);
    return status;
}

/* Whether it is left to the memory what recomputes. */
static bool has_choice(const smp__configs *configs)
{
    return configs->request->options.recompute == SMP_RECOMPUTE_AUTO &&
           configs->request->graph->training;
}

/* Whether it is left to the memory what travels. */
static bool may_choose_offload(const smp__configs *configs, const smp__config *config)
{
    return config->offload && configs->request->options.offload == SMP_OFFLOAD_AUTO;
}

/* The candidate with all or none of its ops offloaded. */
static void set_offload(const smp__configs *configs, smp_candidate *candidate, bool all)
{
    for (int32_t op = 0; op < configs->request->graph->n_op; op++)
        candidate->offload[op] = all;
}

/* Counts the stages of which anything travels. */
static void count_offload(const smp__configs *configs, smp_candidate *candidate)
{
    const smp_partition *partition = candidate->partition;
    candidate->n_offload = 0;
    for (int s = 0; s < partition->n_stage; s++) {
        bool any = false;
        for (int32_t op = 0; op < configs->request->graph->n_op && !any; op++)
            any = partition->stage[op] == s && candidate->offload[op];
        candidate->n_offload += any;
    }
}

/* The candidate with exactly these ops recomputing. `recompute` may be its own. */
static smp_status set_recompute(const smp_problem *problem, const bool *recompute,
                                smp_candidate *candidate)
{
    smp_partition *changed = NULL;
    SMP_TRY(smp__partition_recompute(problem, candidate->partition, recompute, &changed));
    smp_partition_destroy(candidate->partition);
    candidate->partition = changed;
    candidate->bottleneck_us = changed->bottleneck_us;
    candidate->n_recompute = smp__count_recomputing(changed);
    return SMP_OK;
}

/* Evaluates the candidate with what recomputes in it, unless a rank cannot fit whatever its order:
 * then the least that its ranks need stands in the place of their peaks. *known: it was
 * evaluated. */
static smp_status measure(const smp__configs *configs, smp_candidate *candidate, bool *known)
{
    int64_t *bytes = candidate->rank_peak_bytes;
    SMP_TRY(smp__planner_least_bytes(configs->planner, candidate, bytes));
    candidate->room_bytes =
        smp__planner_room(configs->planner, candidate, bytes, &candidate->worst_rank);
    *known = candidate->room_bytes >= 0;
    return *known ? smp__planner_judge(configs->planner, candidate) : SMP_OK;
}

/* No rank takes more than it has to: with everything recomputing, or nothing, or everything
 * offloaded. */
static smp_status find_cap(smp__configs *configs, const smp_problem *problem, smp__means means,
                           smp_candidate *candidate, int64_t *cap)
{
    for (int i = 0; i < 3; i++) {
        if (i == 0 ? !means.recompute : i == 1 && !means.offload)
            continue;
        if (means.offload)
            set_offload(configs, candidate, i == 1);
        if (means.recompute)
            SMP_TRY(set_recompute(problem, i == 0 ? configs->all_ops : configs->no_op, candidate));
        SMP_TRY(smp__planner_judge(configs->planner, candidate));
        *cap = candidate->peak_bytes < *cap ? candidate->peak_bytes : *cap;
    }
    return SMP_OK;
}

/* The candidate with everything recomputing, or offloaded: what of `least` [pipeline] that makes
 * less. */
static smp_status lower_least(smp__configs *configs, const smp_problem *problem, bool offload,
                              smp_candidate *candidate, int64_t *least)
{
    int64_t *bytes = candidate->rank_peak_bytes;
    if (offload)
        set_offload(configs, candidate, true);
    else
        SMP_TRY(set_recompute(problem, configs->all_ops, candidate));
    SMP_TRY(smp__planner_least_bytes(configs->planner, candidate, bytes));
    for (int r = 0; r < candidate->pipeline; r++)
        least[r] = bytes[r] < least[r] ? bytes[r] : least[r];
    if (offload)
        set_offload(configs, candidate, false);
    else
        SMP_TRY(set_recompute(problem, configs->no_op, candidate));
    return SMP_OK;
}

/* Room that the ranks have at least where each recomputes or offloads everything or nothing; < 0:
 * hardly any choice fits. Of a candidate with nothing of that, and the least that it needs. */
static smp_status least_room(smp__configs *configs, const smp_problem *problem, smp__means means,
                             smp_candidate *candidate, int64_t *room_bytes)
{
    int64_t *bytes = candidate->rank_peak_bytes;
    const size_t size = (size_t)candidate->pipeline * sizeof *bytes;
    int64_t *without = malloc(2 * size), *least = without + candidate->pipeline;
    smp_status status = without ? SMP_OK : smp_fail_memory(2 * size);
    if (status == SMP_OK) {
        memcpy(without, bytes, size);
        memcpy(least, bytes, size);
    }
    if (status == SMP_OK && means.recompute)
        status = lower_least(configs, problem, false, candidate, least);
    if (status == SMP_OK && means.offload)
        status = lower_least(configs, problem, true, candidate, least);
    if (status == SMP_OK)
        *room_bytes = smp__planner_room(configs->planner, candidate, least, &candidate->worst_rank);
    if (status == SMP_OK)
        memcpy(bytes, without, size);
    free(without);
    return status;
}

/* Chooses what recomputes and travels under the programs of the candidate's rule. */
static smp_status choose_means(smp__configs *configs, const smp_problem *problem, smp__means means,
                               const smp_candidate *candidate, int64_t cap, bool exactly)
{
    smp__planner *planner = configs->planner;
    size_t n = (size_t)candidate->pipeline;
    smp_program *program = calloc(n, sizeof *program);
    if (!program)
        return smp_fail_memory(n * sizeof *program);
    smp_status status = smp__planner_hold(planner, candidate->partition, candidate->offload);
    const smp_schedule_shape shape = smp__held_shape(planner, candidate);
    if (status == SMP_OK)
        status =
            smp_lower(smp_schedule_find(candidate->schedule), &shape, planner->held.flow, program);
    if (status == SMP_OK)
        status = smp__fit_memory(planner, problem, candidate, program, means, cap, exactly);
    for (size_t r = 0; r < n; r++)
        smp_program_free(&program[r]);
    free(program);
    return status;
}

/* Whether the step takes too long with what recomputes now, which is less work than to lay it out
 * or to choose more: then it counts as evaluated, and nothing is said about its memory. */
static smp_status find_slow(const smp__configs *configs, smp_candidate *candidate, bool *slow)
{
    size_t n = (size_t)candidate->pipeline;
    *slow = false;
    if (candidate->give_up_us <= 0.0)
        return SMP_OK;
    SMP_TRY(smp__planner_step_us(configs->planner, candidate, &candidate->step_us));
    *slow = candidate->step_us > candidate->give_up_us;
    if (!*slow)
        return SMP_OK;
    memset(candidate->rank_peak_bytes, 0, n * sizeof *candidate->rank_peak_bytes);
    candidate->room_bytes = smp__planner_room(configs->planner, candidate,
                                              candidate->rank_peak_bytes, &candidate->worst_rank);
    candidate->fits = true;
    return SMP_OK;
}

/* Evaluates the candidate; where it is a choice, with as little recomputed and offloaded as fits.
 * *known: as for measure. `exactly`: the last op counts. */
static smp_status settle(smp__configs *configs, smp__config *config, bool exactly,
                         smp_candidate *candidate, bool *known)
{
    smp_problem problem;
    int64_t cap = INT64_MAX;
    const smp__means means = {has_choice(configs), may_choose_offload(configs, config)};
    if (!means.recompute && !means.offload)
        return measure(configs, candidate, known);
    SMP_TRY(smp__config_problem(configs, config, &problem));
    if (configs->request->options.optimize == SMP_OPTIMIZE_MEMORY)
        SMP_TRY(find_cap(configs, &problem, means, candidate, &cap));
    if (means.recompute && candidate->n_recompute > 0)
        SMP_TRY(set_recompute(&problem, configs->no_op, candidate));
    if (means.offload) {
        set_offload(configs, candidate, false);
        candidate->n_offload = 0;
    }
    SMP_TRY(measure(configs, candidate, known));
    if (candidate->room_bytes >= 0 && candidate->peak_bytes <= cap)
        return SMP_OK;
    if (!*known && problem.graph->n_op > TINY) { /* else a mixture may fit where neither does */
        int64_t room_bytes = 0;
        SMP_TRY(least_room(configs, &problem, means, candidate, &room_bytes));
        if (room_bytes < 0) {
            candidate->room_bytes = room_bytes;
            return SMP_OK;
        }
    }
    bool slow;
    SMP_TRY(find_slow(configs, candidate, &slow));
    *known |= slow;
    if (slow)
        return SMP_OK;
    SMP_TRY(choose_means(configs, &problem, means, candidate, cap,
                         exactly || problem.graph->n_op <= TINY));
    if (means.recompute)
        SMP_TRY(set_recompute(&problem, candidate->partition->recompute, candidate));
    count_offload(configs, candidate);
    return measure(configs, candidate, known);
}

smp_status smp__config_evaluate(smp__configs *configs, smp__config *config,
                                smp_partition *partition, double give_up_us, smp_candidate **out)
{
    smp_candidate *candidate = NULL;
    bool slow, known = true;
    SMP_TRY(make_candidate(configs, config, partition, give_up_us, &candidate));
    smp_status status = find_slow(configs, candidate, &slow);
    if (status == SMP_OK && !slow)
        status = settle(configs, config, false, candidate, &known);
    if (status == SMP_OK && !known)
        status = smp__planner_judge(configs->planner, candidate);
    candidate->give_up_us = 0.0;
    if (status == SMP_OK)
        *out = candidate;
    else
        smp_candidate_destroy(candidate);
    return status;
}

smp_status smp__config_settle(smp__configs *configs, smp__config *config, smp_candidate *candidate)
{
    bool known;
    return settle(configs, config, true, candidate, &known);
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
        bool exactly = configs->request->graph->n_op <= EXACT_OPS;
        smp_status status = settle(configs, config, exactly, candidate, &known);
        if (status != SMP_OK) {
            smp_candidate_destroy(candidate);
            return status;
        }
        double memory = (double)smp__config_memory(config, candidate->worst_rank);
        spare += fmax(SPARE * (double)-candidate->room_bytes / memory, STEP * (1 << attempt));
        keep_roomier(best, best_known, candidate, known);
        bool fits = *best_known && (*best)->fits;
        if (fits || !was_to_fit || attempt == max_shrink || spare >= 1.0 ||
            smp__budget_loses_patience(&configs->planner->budget))
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

#define FASTER 0.999    /* times the step: worth another sharding */
#define AS_FAST_AS 1.01 /* worth whole states */

/* Takes the other sharding if its step is at most so many times as long, and it fits. */
static smp_status try_sharding(smp__configs *configs, smp__config *config, smp_sharding other,
                               double most, smp_candidate *candidate)
{
    smp__planner *planner = configs->planner;
    const smp_sharding kept = candidate->sharding;
    const double step_us = candidate->step_us;
    double other_us = step_us;
    candidate->sharding = other;
    smp_status status = smp__planner_step_us(planner, candidate, &other_us);
    if (status == SMP_OK && other_us < most * step_us) {
        SMP_TRY(smp__planner_judge(planner, candidate));
        if (candidate->fits) {
            config->sharding = other;
            return SMP_OK;
        }
        candidate->sharding = kept;
        return smp__planner_judge(planner, candidate);
    }
    candidate->sharding = kept;
    return status;
}

/* The candidate with another horizon, fitted anew; it stays as it was unless that is faster by a
 * part in a thousand, and fits. kept: scratch, [2 * n_op]. */
static smp_status try_horizon(smp__configs *configs, smp__config *config, int horizon,
                              smp_candidate *candidate, bool *kept)
{
    const size_t n_op = (size_t)configs->request->graph->n_op;
    const double step_us = candidate->step_us;
    const int old = candidate->horizon;
    smp_problem problem;
    bool known;
    memcpy(kept, candidate->offload, n_op);
    memcpy(kept + n_op, candidate->partition->recompute, n_op);
    candidate->horizon = config->horizon = horizon;
    SMP_TRY(settle(configs, config, false, candidate, &known));
    if (known && candidate->fits && candidate->n_offload > 0 &&
        candidate->step_us < 0.999 * step_us)
        return SMP_OK;
    candidate->horizon = config->horizon = old;
    memcpy(candidate->offload, kept, n_op);
    count_offload(configs, candidate);
    if (has_choice(configs)) {
        SMP_TRY(smp__config_problem(configs, config, &problem));
        SMP_TRY(set_recompute(&problem, kept + n_op, candidate));
    }
    return smp__planner_judge(configs->planner, candidate);
}

smp_status smp__config_tune_horizon(smp__configs *configs, smp__config *config,
                                    smp_candidate *candidate)
{
    const smp_search_request *request = configs->request;
    if (!candidate || !candidate->fits || candidate->n_offload == 0 ||
        request->options.loading_horizon > 0 || request->options.optimize == SMP_OPTIMIZE_MEMORY)
        return SMP_OK;
    bool *kept = malloc(2 * (size_t)request->graph->n_op + 1);
    smp_status status = kept ? SMP_OK : smp_fail_memory(2 * (size_t)request->graph->n_op);
    for (int horizon = 1; status == SMP_OK && horizon <= 4; horizon *= 2)
        if (horizon != candidate->horizon && !smp__budget_is_over(&configs->planner->budget) &&
            !smp__budget_loses_patience(&configs->planner->budget))
            status = try_horizon(configs, config, horizon, candidate, kept);
    free(kept);
    return status;
}

/* The candidate's partition may not be the one by which its hops were chosen. */
static smp_status tune_hops(smp__configs *configs, smp__config *config, smp_candidate *candidate)
{
    int choice[SMP_HOPS_CHOICES];
    const int n = smp__candidate_hops(configs->planner, candidate, choice);
    for (int i = 0; i < n; i++) {
        smp_sharding other = candidate->sharding;
        other.node_replicas = choice[i];
        if (choice[i] != candidate->sharding.node_replicas)
            SMP_TRY(try_sharding(configs, config, other, FASTER, candidate));
    }
    return SMP_OK;
}

/* Of few degrees none has whole states. But of replicas that each have them one that has drifted is
 * found, and a job goes on without one: so where they fit, and a step takes no longer, they are
 * taken. */
static smp_status try_whole_states(smp__configs *configs, smp__config *config,
                                   smp_candidate *candidate)
{
    smp_sharding other = candidate->sharding;
    other.shard = 1;
    if (!configs->planner->few_shards || candidate->sharding.shard <= 1 ||
        candidate->sharding.what != SMP_SHARD_OPTIMIZER)
        return SMP_OK;
    return try_sharding(configs, config, other, AS_FAST_AS, candidate);
}

smp_status smp__config_tune(smp__configs *configs, smp__config *config, smp_candidate *candidate)
{
    const smp__planner *planner = configs->planner;
    const bool weights =
        smp_shards(candidate->sharding, SMP_SHARD_WEIGHTS, configs->request->graph->training);
    smp_sharding other;
    if (candidate->ddp == 1 || configs->request->options.optimize == SMP_OPTIMIZE_MEMORY)
        return SMP_OK;
    if (planner->request.sharding.node_replicas == SMP_HOPS_AUTO)
        SMP_TRY(tune_hops(configs, config, candidate));
    other = candidate->sharding;
    other.bucket_bytes = 0;
    if (candidate->sharding.bucket_bytes < 0 &&
        smp__candidate_sharding(planner, candidate).bucket_bytes > 0)
        SMP_TRY(try_sharding(configs, config, other, FASTER, candidate));
    other = candidate->sharding;
    other.prefetch = SMP_PREFETCH_DEFAULT + 1;
    if (weights && planner->any_prefetch && candidate->chunks >= 3 &&
        candidate->sharding.prefetch == SMP_PREFETCH_DEFAULT)
        SMP_TRY(try_sharding(configs, config, other, FASTER, candidate));
    return try_whole_states(configs, config, candidate);
}
