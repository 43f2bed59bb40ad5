/* Partitions of configurations. Without memory limits a partition depends on the pipeline, the
 * placement and the ranks of stages alone, so configurations share it; where it does not fit, the
 * limits of the configuration become constraints of a new one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "schedule/planner/fit/fit.h"

/* One solver may take this share of the time that is left. */
#define SOLVER_SHARE 0.25

smp_status smp__config_problem(smp__configs *configs, smp__config *config, smp_problem *out)
{
    const smp__arrangement *arrangement = &configs->arrangement[config->arrangement];
    *out = smp__arrangement_problem(configs, arrangement);
    if (!config->live) {
        int p = config->mapping->pipeline;
        smp_schedule_shape shape = smp__config_shape(configs, config);
        double *live = SMP_ARENA_NEW(configs->arena, double, (size_t)out->n_stage);
        double *here = SMP_ARENA_NEW(configs->arena, double, (size_t)out->n_stage);
        double *of_rank = SMP_ARENA_NEW(configs->arena, double, (size_t)p);
        if (!live || !here || !of_rank)
            return SMP_ERR_NO_MEMORY;
        for (int r = 0; r < p; r++)
            of_rank[r] = smp__live_microbatches(config->schedule, &shape, r);
        for (int s = 0; s < out->n_stage; s++) {
            live[s] = of_rank[arrangement->stage_rank[s]];
            here[s] = fmin(live[s], config->horizon + 2.0);
        }
        config->live = live;
        config->here = here;
    }
    out->live = config->offload ? config->here : config->live;
    out->state_factor = config->state_factor;
    out->idle_factor = config->idle_factor;
    out->recompute = config->recompute;
    out->memory_limit = arrangement->limit;
    return SMP_OK;
}

/* Until when one solver may run. */
static double solver_deadline_s(const smp__configs *configs)
{
    return smp__budget_share(&configs->planner->budget, SOLVER_SHARE);
}

smp_status smp__arrangement_solve(smp__configs *configs, smp__config *config, bool *exists)
{
    smp__arrangement *arrangement = &configs->arrangement[config->arrangement];
    if (!arrangement->solved) {
        smp_problem problem = smp__arrangement_problem(configs, arrangement);
        problem.deadline_s = solver_deadline_s(configs);
        arrangement->solved = true;
        arrangement->status = smp__variants_solve(&problem, configs->request->options.partitioner,
                                                  &arrangement->variants);
        if (arrangement->status != SMP_OK)
            smp__configs_note(configs, arrangement->status);
    }
    *exists = arrangement->status == SMP_OK;
    bool none = arrangement->status == SMP_ERR_NO_FIT || arrangement->status == SMP_ERR_INPUT;
    return none ? SMP_OK : arrangement->status;
}

/* The variants under limits of `scale` times those of the configuration: as solved before for the
 * same live counts, or now. */
static smp_status limited_variants(smp__configs *configs, smp__config *config, double scale,
                                   const smp__variants **out)
{
    smp_problem problem;
    SMP_TRY(smp__config_problem(configs, config, &problem));
    smp__arrangement *arrangement = &configs->arrangement[config->arrangement];
    size_t n_stage = (size_t)problem.n_stage;
    for (smp__limited *l = arrangement->limited; l; l = l->next) {
        if (l->scale == scale && l->recompute == config->recompute &&
            l->state_factor == config->state_factor && l->idle_factor == config->idle_factor &&
            memcmp(l->live, problem.live, n_stage * sizeof *l->live) == 0) {
            *out = &l->variants;
            return SMP_OK;
        }
    }
    smp__limited *limited = SMP_ARENA_NEW(configs->arena, smp__limited, 1);
    int64_t *limit = SMP_ARENA_NEW(configs->arena, int64_t, n_stage);
    if (!limited || !limit)
        return SMP_ERR_NO_MEMORY;
    for (size_t s = 0; s < n_stage; s++) {
        double bytes = (double)arrangement->limit[s] * scale;
        limit[s] = bytes < 0x1p62 ? (int64_t)bytes : INT64_MAX;
    }
    problem.memory_limit = limit;
    problem.deadline_s = solver_deadline_s(configs);
    SMP_TRY(
        smp__variants_solve(&problem, configs->request->options.partitioner, &limited->variants));
    limited->scale = scale;
    limited->state_factor = config->state_factor;
    limited->idle_factor = config->idle_factor;
    limited->recompute = config->recompute;
    limited->live = problem.live;
    limited->next = arrangement->limited;
    arrangement->limited = limited;
    *out = &limited->variants;
    return SMP_OK;
}

static void take_origin(smp_partition *partition, const smp_partition *from)
{
    partition->solver = from->solver;
    partition->lower_bound_us = fmin(from->lower_bound_us, partition->bottleneck_us);
    partition->bound = from->bound;
    partition->timed_out = from->timed_out;
}

/* Evaluates a shared partition under the configuration's own live counts and limits. */
static smp_status own_copy(const smp_problem *problem, const smp_partition *shared,
                           smp_partition **out)
{
    SMP_TRY(smp_partition_evaluate(problem, shared->stage, out));
    take_origin(*out, shared);
    return SMP_OK;
}

smp_status smp__partition_recompute(const smp_problem *problem, const smp_partition *partition,
                                    const bool *recompute, smp_partition **out)
{
    smp_problem forced = *problem;
    forced.recomputes = recompute;
    return own_copy(&forced, partition, out);
}

/* What a solver proves under limits holds for its estimate of memory alone: the bound is that of
 * the arrangement, without limits. */
static void forget_limits(const smp__configs *configs, const smp__config *config,
                          smp_partition *partition)
{
    const smp__variants *free_of = &configs->arrangement[config->arrangement].variants;
    const smp_partition *any = free_of->split ? free_of->split : free_of->together;
    if (!any || any->lower_bound_us > partition->lower_bound_us)
        return;
    partition->lower_bound_us = any->lower_bound_us;
    partition->bound = any->bound;
}

/* Where it is a choice nothing recomputes yet; whether the partition fits by what it then may.
 * After a failure the partition is gone. */
static smp_status settle_nothing(const smp__configs *configs, smp__config *config,
                                 const smp_problem *problem, smp_partition **partition)
{
    smp_partition *settled = NULL;
    bool fits = (*partition)->fits;
    if (config->recompute != SMP_RECOMPUTE_AUTO || smp__count_recomputing(*partition) == 0)
        return SMP_OK;
    smp_status status = smp__partition_recompute(problem, *partition, configs->no_op, &settled);
    if (status == SMP_OK)
        settled->fits = fits;
    smp_partition_destroy(*partition);
    *partition = settled;
    return status;
}

/* Limits of `scale` times the configuration's, with what these limits ask to recompute. */
static smp_status solve_within(smp__configs *configs, smp__config *config, double scale,
                               smp_partition **out)
{
    smp_problem problem;
    SMP_TRY(smp__config_problem(configs, config, &problem));
    const smp__variants *variants;
    const smp_partition *shared;
    SMP_TRY(limited_variants(configs, config, scale, &variants));
    SMP_TRY(smp__variants_choose(&problem, variants, config->microbatches, &shared));
    SMP_TRY(own_copy(&problem, shared, out));
    forget_limits(configs, config, *out);
    return SMP_OK;
}

smp_status smp__config_best_partition(smp__configs *configs, smp__config *config,
                                      smp_partition **out)
{
    const smp_search_request *request = configs->request;
    smp_problem problem;
    *out = NULL;
    if (!configs->quick)
        return SMP_OK;
    SMP_TRY(smp__config_problem(configs, config, &problem));
    problem.first_look = false;
    problem.deadline_s = solver_deadline_s(configs);
    SMP_TRY(smp_partition_solve(&problem, request->options.partitioner, config->microbatches, out));
    forget_limits(configs, config, *out);
    return settle_nothing(configs, config, &problem, out);
}

/* Roughly the time of a step. */
static double step_of(const smp_partition *partition, int microbatches)
{
    double total_us = 0.0;
    for (int s = 0; s < partition->n_stage; s++)
        total_us += partition->load[s].load_us;
    return microbatches * partition->bottleneck_us + total_us;
}

/* Keeps the better of two partitions in *best and destroys the other. */
static void keep_faster(smp_partition **best, smp_partition *other, int microbatches)
{
    double now = step_of(*best, microbatches), then = step_of(other, microbatches);
    bool better = other->fits &&
                  (!(*best)->fits || then < now ||
                   (then == now && smp__count_recomputing(other) < smp__count_recomputing(*best)));
    if (!(*best)->fits && !other->fits)
        better = true; /* made under the limits: it misses by less */
    smp_partition_destroy(better ? *best : other);
    if (better)
        *best = other;
}

bool smp__config_may_keep_all(const smp__configs *configs, const smp_problem *problem)
{
    double least = INFINITY, memory = 0.0;
    for (int s = 0; s < problem->n_stage; s++) {
        least = fmin(least, problem->live[s]);
        memory += (double)problem->memory_limit[s];
    }
    return problem->state_factor * configs->totals.weight_bytes +
               least * configs->totals.stash_bytes <=
           memory;
}

smp_status smp__config_partition(smp__configs *configs, smp__config *config, double spare,
                                 smp_partition **out)
{
    smp_problem problem;
    SMP_TRY(smp__config_problem(configs, config, &problem));
    if (spare > 0.0) {
        SMP_TRY(solve_within(configs, config, 1.0 - spare, out));
        return settle_nothing(configs, config, &problem, out);
    }
    const smp_partition *shared = NULL;
    const smp__variants *variants = &configs->arrangement[config->arrangement].variants;
    smp_partition *best = NULL, *other = NULL;
    SMP_TRY(smp__variants_choose(&problem, variants, config->microbatches, &shared));
    SMP_TRY(own_copy(&problem, shared, &best));
    bool by_choice = problem.recompute == SMP_RECOMPUTE_AUTO;
    if (best->fits && !(by_choice && smp__count_recomputing(best) > 0)) {
        *out = best;
        return SMP_OK;
    }
    smp_status status = solve_within(configs, config, 1.0, &other);
    if (status != SMP_OK) {
        smp_partition_destroy(best);
        return status;
    }
    keep_faster(&best, other, config->microbatches);
    *out = best;
    return settle_nothing(configs, config, &problem, out);
}

bool smp__config_is_free(const smp__configs *configs, const smp__config *config,
                         const smp_partition *partition)
{
    const smp__variants *variants = &configs->arrangement[config->arrangement].variants;
    const smp_partition *free_of[] = {variants->together, variants->split};
    size_t bytes = (size_t)configs->request->graph->n_op * sizeof *partition->stage;
    for (int i = 0; i < 2; i++) {
        if (free_of[i] && memcmp(free_of[i]->stage, partition->stage, bytes) == 0)
            return true;
    }
    return false;
}

smp_status smp__config_least_memory(smp__configs *configs, smp__config *config, smp_partition **out)
{
    smp_problem problem;
    const smp__variants *variants;
    const smp_partition *least;
    double fill = 0.0;
    const smp__arrangement *arrangement = &configs->arrangement[config->arrangement];
    SMP_TRY(smp__config_problem(configs, config, &problem));
    /* Limits that nothing can respect: what comes back is the least full. */
    SMP_TRY(limited_variants(configs, config, 1e-9, &variants));
    SMP_TRY(smp__variants_choose(&problem, variants, config->microbatches, &least));
    for (int s = 0; s < least->n_stage; s++)
        fill = fmax(fill,
                    (double)least->load[s].memory_bytes / fmax((double)arrangement->limit[s], 1.0));
    SMP_TRY(solve_within(configs, config, 1.01 * fill, out));
    return settle_nothing(configs, config, &problem, out);
}
