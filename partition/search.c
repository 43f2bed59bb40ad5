/* The search over configurations: partitions first, then simulation of those that can still win.
 *
 * What can still win. Let T be the least time per sample found so far among candidates that fit. A
 * configuration whose lower bound is above 1.01 T cannot come within 1 % of the best. One whose
 * bound is not below the time of a fitting candidate with fewer micro-batches cannot win either:
 * wherever it is within 1 % of the best, so is that candidate. All others are simulated. When memory
 * is minimised the bound is that of the peak: weights, gradients and optimizer state of the fullest
 * rank, and the fair share of them before the partition is known. */
#include "partition/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "partition/configs.h"

#define CLOSE 1.01 /* within 1 % counts as equal */
enum { MAX_SHRINK = 3 };

void smp_candidate_destroy(smp_candidate *candidate)
{
    if (!candidate)
        return;
    free(candidate->device);
    free(candidate->stage_rank);
    smp_partition_destroy(candidate->partition);
    free(candidate);
}

void smp_search_result_destroy(smp_search_result *result)
{
    smp_candidate_destroy(result->best);
    for (int i = 0; i < result->n_tried; i++)
        smp_candidate_destroy(result->tried[i]);
    free(result->tried);
    *result = (smp_search_result){0};
}

static double samples_of(const smp_candidate *candidate)
{
    return (double)candidate->ddp * (double)candidate->microbatch_size;
}

/* Microseconds per sample, as the objective counts it. */
static double time_of(const smp_search_request *request, const smp_candidate *candidate)
{
    if (request->objective == SMP_OBJECTIVE_BOTTLENECK)
        return candidate->partition->bottleneck_us / samples_of(candidate);
    return candidate->step_us / candidate->microbatches / samples_of(candidate);
}

/* Takes the partition over, also when it fails. */
static smp_status make_candidate(const smp__configs *configs, const smp__config *config,
                                 smp_partition *partition, smp_candidate **out)
{
    size_t n_device = (size_t)configs->request->devices;
    size_t n_stage = (size_t)partition->n_stage;
    smp_candidate *candidate = calloc(1, sizeof *candidate);
    if (!candidate) {
        smp_partition_destroy(partition);
        return smp_fail_memory(sizeof *candidate);
    }
    *candidate = (smp_candidate){.pipeline = config->pipeline,
                                 .ddp = config->ddp,
                                 .chunks = config->chunks,
                                 .microbatches = config->microbatches,
                                 .microbatch_size = configs->costs->microbatch_size,
                                 .schedule = config->schedule,
                                 .partition = partition,
                                 .device = calloc(n_device, sizeof *candidate->device),
                                 .stage_rank = calloc(n_stage, sizeof *candidate->stage_rank)};
    if (!candidate->device || !candidate->stage_rank) {
        smp_candidate_destroy(candidate);
        return smp_fail_memory((n_device + n_stage) * sizeof *candidate->device);
    }
    memcpy(candidate->device, config->device, n_device * sizeof *candidate->device);
    memcpy(candidate->stage_rank, config->stage_rank, n_stage * sizeof *candidate->stage_rank);
    *out = candidate;
    return SMP_OK;
}

/* A candidate that was simulated, and what it is judged by. */
typedef struct entry {
    smp_candidate *candidate;
    double time; /* per sample */
    int32_t index;
} entry;

typedef struct search {
    smp__configs configs;
    entry *entry;
    int32_t n;
    double least_time, least_peak; /* over entries that fit */
} search;

/* True if a configuration can neither be within 1 % of the best nor decide what the best is. */
static bool cannot_win(const search *s, int microbatches, double least_time, double least_peak)
{
    if (s->configs.request->optimize == SMP_OPTIMIZE_MEMORY)
        return least_peak > CLOSE * s->least_peak;
    if (least_time > CLOSE * s->least_time)
        return true;
    for (int32_t i = 0; i < s->n; i++) {
        const smp_candidate *candidate = s->entry[i].candidate;
        if (candidate->fits && candidate->microbatches < microbatches &&
            s->entry[i].time <= least_time)
            return true;
    }
    return false;
}

/* Bytes that rank r keeps for ever. */
static double least_peak_of(const search *s, const smp__config *config,
                            const smp_partition *partition)
{
    double least = 0.0, factor = s->configs.request->graph->training ? 4.0 : 1.0;
    for (int r = 0; r < config->pipeline; r++) {
        double bytes = 0.0; /* a weight that two stages of a rank share counts once: take the larger */
        for (int st = 0; st < partition->n_stage; st++) {
            if (config->stage_rank[st] == r)
                bytes = fmax(bytes, (double)partition->load[st].weight_bytes);
        }
        least = fmax(least, factor * bytes);
    }
    return least;
}

static double least_time_of(const search *s, const smp__config *config,
                            const smp_partition *partition)
{
    double samples = (double)config->ddp * (double)s->configs.costs->microbatch_size;
    if (s->configs.request->objective == SMP_OBJECTIVE_BOTTLENECK)
        return partition->bottleneck_us / samples;
    return smp__config_least_step_us(config, partition) / config->microbatches / samples;
}

/* Simulates; where the exact peak is too high although the estimate was not, tries again with the
 * limits lowered by what was missing. */
static smp_status simulate(search *s, const smp__config *config, smp_partition *partition,
                           smp_candidate **out)
{
    const smp_search_request *request = s->configs.request;
    const smp_schedule_model *model = s->configs.model;
    smp_candidate *best = NULL;
    double spare = 0.0;
    for (int attempt = 0;; attempt++) {
        smp_candidate *candidate = NULL;
        smp_status status = make_candidate(&s->configs, config, partition, &candidate);
        if (status == SMP_OK)
            status = model->evaluate(model->context, request, s->configs.costs, candidate);
        if (status != SMP_OK) {
            smp_candidate_destroy(candidate);
            smp_candidate_destroy(best);
            return status;
        }
        bool retry = !candidate->fits && partition->fits && attempt < MAX_SHRINK;
        double memory =
            (double)smp__config_memory(&s->configs, config, candidate->worst_rank);
        spare += 1.02 * (double)-candidate->room_bytes / memory;
        if (!best || candidate->room_bytes > best->room_bytes) {
            smp_candidate_destroy(best);
            best = candidate;
        } else {
            smp_candidate_destroy(candidate);
        }
        if (!retry || spare >= 1.0)
            break;
        status = smp__config_partition(&s->configs, config, spare, &partition);
        if (status != SMP_OK) {
            smp_candidate_destroy(best);
            return status;
        }
    }
    *out = best;
    return SMP_OK;
}

/* An op with no kernel has no place in the memory planner: there the estimate is what counts. */
static void apply_estimate(const search *s, const smp__config *config, smp_candidate *candidate)
{
    const smp_partition *partition = candidate->partition;
    for (int r = 0; r < config->pipeline; r++) {
        int64_t bytes = 0;
        for (int st = 0; st < partition->n_stage; st++) {
            if (config->stage_rank[st] == r)
                bytes = smp__add_bytes(bytes, partition->load[st].memory_bytes);
        }
        int64_t room = smp__config_memory(&s->configs, config, r) - bytes;
        if (bytes > candidate->peak_bytes)
            candidate->peak_bytes = bytes;
        if (room < candidate->room_bytes) {
            candidate->room_bytes = room;
            candidate->worst_rank = r;
        }
    }
    candidate->fits = candidate->room_bytes >= 0;
}

static smp_status try_config(search *s, int32_t index)
{
    const smp__config *config = &s->configs.config[index];
    const smp__family *family = &s->configs.family[config->family];
    smp_partition *partition = NULL;
    smp_candidate *candidate = NULL;
    double samples = (double)config->ddp * (double)s->configs.costs->microbatch_size;
    const smp_partition *any =
        family->variants.split ? family->variants.split : family->variants.together;
    if (cannot_win(s, config->microbatches, any->lower_bound_us / samples, 0.0))
        return SMP_OK;
    SMP_TRY(smp__config_partition(&s->configs, config, 0.0, &partition));
    if (cannot_win(s, config->microbatches, least_time_of(s, config, partition),
                   least_peak_of(s, config, partition))) {
        smp_partition_destroy(partition);
        return SMP_OK;
    }
    SMP_TRY(simulate(s, config, partition, &candidate));
    if (smp_graph_has_opaque(s->configs.request->graph))
        apply_estimate(s, config, candidate);
    s->entry[s->n] = (entry){candidate, time_of(s->configs.request, candidate), index};
    if (candidate->fits) {
        s->least_time = fmin(s->least_time, s->entry[s->n].time);
        s->least_peak = fmin(s->least_peak, (double)candidate->peak_bytes);
    }
    s->n++;
    return SMP_OK;
}
