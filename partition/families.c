/* Partitions of configurations. Without memory limits a partition depends on the pipeline and the
 * placement of stages alone, so configurations share it; where it does not fit, the limits of the
 * configuration become constraints of a new one. */
#include "partition/configs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static smp_problem problem_of(const smp__configs *configs, const smp__config *config)
{
    const smp_search_request *request = configs->request;
    return (smp_problem){.graph = request->graph,
                         .costs = configs->costs,
                         .cluster = request->cluster,
                         .n_stage = config->pipeline * config->chunks,
                         .pipeline = config->pipeline,
                         .stage_rank = config->stage_rank,
                         .device = config->device,
                         .state_factor = request->graph->training ? 4.0 : 1.0,
                         .live = config->live,
                         .memory_limit = config->limit,
                         .seed = request->seed,
                         .pin = request->pin,
                         .glue = request->glue,
                         .recompute = request->recompute,
                         .deadline_s = request->deadline_s};
}

static smp_status solve_family(smp__configs *configs, const smp__config *config,
                               smp__family *family)
{
    size_t n_stage = (size_t)config->pipeline * (size_t)config->chunks;
    int64_t *unlimited = SMP_ARENA_NEW(configs->arena, int64_t, n_stage);
    if (!unlimited)
        return SMP_ERR_NO_MEMORY;
    for (size_t s = 0; s < n_stage; s++)
        unlimited[s] = INT64_MAX;
    smp_problem problem = problem_of(configs, config);
    problem.memory_limit = unlimited;
    return smp__variants_solve(&problem, configs->request->partitioner, &family->variants);
}

/* The variants under limits of `scale` times those of the configuration: as solved before for the
 * same live counts, or now. Limits follow from the family. */
static smp_status limited_variants(smp__configs *configs, const smp__config *config, double scale,
                                   const smp__variants **out)
{
    smp_problem problem = problem_of(configs, config);
    smp__family *family = &configs->family[config->family];
    size_t n_stage = (size_t)problem.n_stage;
    for (smp__limited *l = family->limited; l; l = l->next) {
        if (l->scale == scale && memcmp(l->live, config->live, n_stage * sizeof *l->live) == 0) {
            *out = &l->variants;
            return SMP_OK;
        }
    }
    smp__limited *limited = SMP_ARENA_NEW(configs->arena, smp__limited, 1);
    int64_t *limit = SMP_ARENA_NEW(configs->arena, int64_t, n_stage);
    if (!limited || !limit)
        return SMP_ERR_NO_MEMORY;
    for (size_t s = 0; s < n_stage; s++) {
        double bytes = (double)config->limit[s] * scale;
        limit[s] = bytes < 0x1p62 ? (int64_t)bytes : INT64_MAX;
    }
    problem.memory_limit = limit;
    SMP_TRY(smp__variants_solve(&problem, configs->request->partitioner, &limited->variants));
    limited->scale = scale;
    limited->live = config->live;
    limited->next = family->limited;
    family->limited = limited;
    *out = &limited->variants;
    return SMP_OK;
}

/* Evaluates a shared partition under the configuration's own live counts and limits. */
static smp_status own_copy(const smp_problem *problem, const smp_partition *shared,
                           smp_partition **out)
{
    SMP_TRY(smp_partition_evaluate(problem, shared->stage, out));
    (*out)->solver = shared->solver;
    (*out)->lower_bound_us = shared->lower_bound_us;
    return SMP_OK;
}

static smp_status solve_within(smp__configs *configs, const smp__config *config, double scale,
                               smp_partition **out)
{
    smp_problem problem = problem_of(configs, config);
    const smp__variants *variants;
    const smp_partition *shared;
    SMP_TRY(limited_variants(configs, config, scale, &variants));
    SMP_TRY(smp__variants_choose(&problem, variants, config->microbatches, &shared));
    return own_copy(&problem, shared, out);
}

smp_status smp__config_partition(smp__configs *configs, const smp__config *config, double spare,
                                 smp_partition **out)
{
    if (spare > 0.0)
        return solve_within(configs, config, 1.0 - spare, out);
    smp_problem problem = problem_of(configs, config);
    const smp_partition *shared = NULL;
    const smp__variants *variants = &configs->family[config->family].variants;
    SMP_TRY(smp__variants_choose(&problem, variants, config->microbatches, &shared));
    SMP_TRY(own_copy(&problem, shared, out));
    if ((*out)->fits)
        return SMP_OK;
    smp_partition_destroy(*out);
    return solve_within(configs, config, 1.0, out);
}

smp_status smp__config_least_memory(smp__configs *configs, const smp__config *config,
                                    smp_partition **out)
{
    smp_partition *least;
    double fill = 0.0;
    /* Limits that nothing can respect: what comes back is the least full. */
    SMP_TRY(solve_within(configs, config, 1e-9, &least));
    for (int s = 0; s < least->n_stage; s++)
        fill =
            fmax(fill, (double)least->load[s].memory_bytes / fmax((double)config->limit[s], 1.0));
    smp_partition_destroy(least);
    return solve_within(configs, config, 1.01 * fill, out);
}

double smp__config_least_step_us(const smp__config *config, const smp_partition *partition)
{
    double least_us = 0.0;
    for (int r = 0; r < config->pipeline; r++) {
        double compute_us = 0.0, before_us = 0.0;
        bool begun = false;
        for (int s = 0; s < partition->n_stage; s++) {
            const smp_stage_load *load = &partition->load[s];
            if (config->stage_rank[s] == r) {
                begun = true;
                compute_us += load->forward_us + load->backward_us;
            } else if (!begun) {
                before_us += load->forward_us;
            }
        }
        least_us = fmax(least_us, config->microbatches * compute_us + before_us);
    }
    return least_us;
}

static double total_load(const smp_partition *partition)
{
    double total_us = 0.0;
    for (int s = 0; s < partition->n_stage; s++)
        total_us += partition->load[s].load_us;
    return total_us;
}

/* What the configuration will come to, roughly: micro-batches through the bottleneck and one
 * through the others, of which several chunks hide a part. */
static double estimate(const smp__configs *configs, const smp__config *config,
                       const smp_partition *partition)
{
    const smp_search_request *request = configs->request;
    double samples = (double)config->ddp * (double)configs->costs->microbatch_size;
    if (request->optimize == SMP_OPTIMIZE_MEMORY) {
        double most = 0.0;
        for (int s = 0; s < partition->n_stage; s++)
            most = fmax(most, 4.0 * (double)partition->load[s].weight_bytes +
                                  config->live[s] * (double)partition->load[s].stash_bytes);
        return most * config->chunks;
    }
    if (request->objective == SMP_OBJECTIVE_BOTTLENECK)
        return partition->bottleneck_us / samples;
    double fill_us = fmax(total_load(partition) - partition->bottleneck_us, 0.0) / config->chunks;
    return (partition->bottleneck_us + fill_us / config->microbatches) / samples;
}

static int compare_doubles(double a, double b)
{
    return (a > b) - (a < b);
}

static int compare_configs(const void *left, const void *right)
{
    const smp__config *a = left, *b = right;
    if (a->family != b->family) {
        int order = compare_doubles(a->family_estimate, b->family_estimate);
        return order ? order : (a->family > b->family) - (a->family < b->family);
    }
    int order = compare_doubles(a->estimate, b->estimate);
    if (order == 0)
        order = (a->microbatches > b->microbatches) - (a->microbatches < b->microbatches);
    return order ? order : strcmp(a->schedule, b->schedule);
}

smp_status smp__families_solve(smp__configs *configs)
{
    smp_status first_failure = SMP_OK;
    char message[1024];
    int32_t kept = 0, solved = 0;
    for (int32_t i = 0; i < configs->n; i++) {
        smp__config config = configs->config[i];
        smp__family *family = &configs->family[config.family];
        if (config.family == solved) { /* families are numbered as they first appear */
            solved++;
            family->estimate = INFINITY;
            family->status = solve_family(configs, &config, family);
            if (family->status != SMP_OK && first_failure == SMP_OK) {
                first_failure = family->status;
                snprintf(message, sizeof message, "%s", smp_last_error());
            }
        }
        if (family->status != SMP_OK && family->status != SMP_ERR_NO_FIT &&
            family->status != SMP_ERR_INPUT)
            return family->status;
        if (family->status != SMP_OK)
            continue;
        smp_problem problem = problem_of(configs, &config);
        const smp_partition *partition;
        SMP_TRY(smp__variants_choose(&problem, &family->variants, config.microbatches, &partition));
        config.estimate = estimate(configs, &config, partition);
        family->estimate = fmin(family->estimate, config.estimate);
        configs->config[kept++] = config;
    }
    configs->n = kept;
    if (kept == 0)
        return smp_fail(first_failure, "%s", message);
    for (int32_t i = 0; i < kept; i++)
        configs->config[i].family_estimate = configs->family[configs->config[i].family].estimate;
    qsort(configs->config, (size_t)kept, sizeof *configs->config, compare_configs);
    return SMP_OK;
}

void smp__configs_free(smp__configs *configs)
{
    for (int32_t f = 0; f < configs->n_family; f++) {
        smp__variants_destroy(&configs->family[f].variants);
        for (smp__limited *l = configs->family[f].limited; l; l = l->next)
            smp__variants_destroy(&l->variants);
    }
    free(configs->family);
    free(configs->config);
    smp_arena_destroy(configs->arena);
    *configs = (smp__configs){0};
}
