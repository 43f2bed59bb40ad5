/* The search over configurations: partitions first, then simulation of those that can still win.
 *
 * What can still win. Let T be the least time per sample found so far among candidates that fit. A
 * configuration whose lower bound is above 1.01 T cannot come within 1 % of the best. One whose
 * bound is not below the time of a fitting candidate with fewer micro-batches cannot win either:
 * wherever it is within 1 % of the best, so is that candidate. All others are simulated. When
 * memory is minimised the bound is that of the peak: weights, gradients and optimizer state of the
 * fullest rank, and the fair share of them before the partition is known. */
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
    double least_time, least_peak; /* over entries that fit; INFINITY: none */
    double least_overload;         /* over configurations that no partition fits */
    int32_t overloaded;            /* which one */
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

/* Bytes that the fullest rank keeps for ever, at least. */
static double least_peak_of(const search *s, const smp__config *config,
                            const smp_partition *partition)
{
    double least = 0.0, factor = s->configs.request->graph->training ? 4.0 : 1.0;
    for (int r = 0; r < config->pipeline; r++) {
        double bytes = 0.0; /* of one stage: others of the rank may share its weights */
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
        double memory = (double)smp__config_memory(&s->configs, config, candidate->worst_rank);
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

/* Simulates and keeps the result. Takes the partition over. */
static smp_status add_entry(search *s, int32_t index, smp_partition *partition)
{
    smp_candidate *candidate = NULL;
    SMP_TRY(simulate(s, &s->configs.config[index], partition, &candidate));
    s->entry[s->n] = (entry){candidate, time_of(s->configs.request, candidate), index};
    if (candidate->fits) {
        s->least_time = fmin(s->least_time, s->entry[s->n].time);
        s->least_peak = fmin(s->least_peak, (double)candidate->peak_bytes);
    }
    s->n++;
    return SMP_OK;
}

/* What all ranks must keep, over all memory there is: above 1 no partition fits. Weights, gradients
 * and optimizer state are certain; of the stashes, which the memory planner may lay out better than
 * the costs say, a half is counted. */
static double overload_of(const search *s, const smp__config *config)
{
    const smp_graph *graph = s->configs.request->graph;
    double weights = 0.0, stash = 0.0, memory = 0.0, live = INFINITY;
    for (int32_t p = 0; p < graph->n_param; p++)
        weights += 4.0 * (double)graph->param[p].elements;
    for (int32_t op = 0; op < graph->n_op; op++) {
        if (graph->op[op].n_param == 0)
            weights += (double)s->configs.costs->op[op].weight_bytes;
        stash += (double)s->configs.costs->op[op].stash_bytes;
    }
    for (int st = 0; st < config->pipeline * config->chunks; st++)
        live = fmin(live, config->live[st]);
    for (int r = 0; r < config->pipeline; r++)
        memory += (double)smp__config_memory(&s->configs, config, r);
    double factor = graph->training ? 4.0 : 1.0;
    return (factor * weights + 0.5 * live * stash) / fmax(memory, 1.0);
}

/* Before the partition is known: micro-batches through the slowest rank, or one through all ops,
 * forward and backward as far as its input gradients (which take half of it if not less). */
static double least_time_of_any(const search *s, const smp__config *config)
{
    const smp_graph *graph = s->configs.request->graph;
    const smp__variants *variants = &s->configs.family[config->family].variants;
    const smp_partition *any = variants->split ? variants->split : variants->together;
    double samples = (double)config->ddp * (double)s->configs.costs->microbatch_size;
    double pass_us = 0.0, fastest = INFINITY;
    if (s->configs.request->objective == SMP_OBJECTIVE_BOTTLENECK)
        return any->lower_bound_us / samples;
    for (int32_t op = 0; op < graph->n_op; op++) {
        const smp_op_cost *cost = &s->configs.costs->op[op];
        pass_us += cost->forward_us + fmin(cost->backward_input_us, 0.5 * cost->backward_us);
    }
    for (int r = 0; r < config->pipeline; r++)
        fastest =
            fmin(fastest, smp_device_slowdown(s->configs.request->cluster, config->device[r]));
    return fmax(any->lower_bound_us, pass_us * fastest / config->microbatches) / samples;
}

static smp_status try_config(search *s, int32_t index)
{
    const smp__config *config = &s->configs.config[index];
    smp_partition *partition = NULL;
    if (cannot_win(s, config->microbatches, least_time_of_any(s, config), 0.0))
        return SMP_OK;
    double overload = overload_of(s, config);
    if (overload > 1.0) {
        if (overload < s->least_overload) {
            s->least_overload = overload;
            s->overloaded = index;
        }
        return SMP_OK;
    }
    if (s->configs.request->optimize == SMP_OPTIMIZE_MEMORY)
        SMP_TRY(smp__config_least_memory(&s->configs, config, &partition));
    else
        SMP_TRY(smp__config_partition(&s->configs, config, 0.0, &partition));
    if (cannot_win(s, config->microbatches, least_time_of(s, config, partition),
                   least_peak_of(s, config, partition))) {
        smp_partition_destroy(partition);
        return SMP_OK;
    }
    return add_entry(s, index, partition);
}

/* Nothing could be simulated: the least overloaded configuration stands for all. */
static smp_status try_overloaded(search *s)
{
    smp_partition *partition = NULL;
    SMP_TRY(smp__config_partition(&s->configs, &s->configs.config[s->overloaded], 0.0, &partition));
    return add_entry(s, s->overloaded, partition);
}

static int sign(double a, double b)
{
    return (a > b) - (a < b);
}

/* How an entry ranks: those that fit first, of them those within 1 % of the best. */
typedef struct rank_key {
    int tier; /* 0: close to the best, 1: fits, 2: does not fit */
    double first, second, third;
    int32_t index;
    smp_candidate *candidate;
} rank_key;

static int compare_keys(const void *left, const void *right)
{
    const rank_key *a = left, *b = right;
    int order = a->tier - b->tier;
    if (order == 0)
        order = sign(a->first, b->first);
    if (order == 0)
        order = sign(a->second, b->second);
    if (order == 0)
        order = sign(a->third, b->third);
    return order ? order : (a->index > b->index) - (a->index < b->index);
}

static rank_key key_of(const search *s, const entry *entry)
{
    const smp_candidate *c = entry->candidate;
    bool for_memory = s->configs.request->optimize == SMP_OPTIMIZE_MEMORY;
    double peak = (double)c->peak_bytes, m = (double)c->microbatches * c->ddp;
    rank_key key = {2, -(double)c->room_bytes, m, entry->time, entry->index, entry->candidate};
    if (!c->fits)
        return key;
    bool close = for_memory ? peak <= CLOSE * s->least_peak : entry->time <= CLOSE * s->least_time;
    key.tier = close ? 0 : 1;
    if (for_memory) {
        key.first = close ? entry->time : peak;
        key.second = close ? m : entry->time;
        key.third = close ? peak : m;
    } else {
        key.first = close ? m : entry->time;
        key.second = close ? peak : m;
        key.third = close ? entry->time : peak;
    }
    return key;
}

static smp_status copy_without_partition(const smp_candidate *from, smp_candidate **out)
{
    size_t n_device = (size_t)from->pipeline * (size_t)from->ddp;
    size_t n_stage = (size_t)from->pipeline * (size_t)from->chunks;
    smp_candidate *copy = calloc(1, sizeof *copy);
    if (!copy)
        return smp_fail_memory(sizeof *copy);
    *copy = *from;
    copy->partition = NULL;
    copy->device = calloc(n_device, sizeof *copy->device);
    copy->stage_rank = calloc(n_stage, sizeof *copy->stage_rank);
    if (!copy->device || !copy->stage_rank) {
        smp_candidate_destroy(copy);
        return smp_fail_memory((n_device + n_stage) * sizeof *copy->device);
    }
    memcpy(copy->device, from->device, n_device * sizeof *copy->device);
    memcpy(copy->stage_rank, from->stage_rank, n_stage * sizeof *copy->stage_rank);
    *out = copy;
    return SMP_OK;
}

/* Sorts what was tried and moves it into the result, or says why nothing fits. */
static smp_status finish(search *s, smp_search_result *out)
{
    smp_search_result result = {0};
    smp_status status = SMP_OK;
    rank_key *key = calloc((size_t)s->n, sizeof *key);
    result.tried = calloc((size_t)s->n, sizeof *result.tried);
    if (!key || !result.tried) {
        status = smp_fail_memory((size_t)s->n * sizeof *key);
        goto done;
    }
    for (int32_t i = 0; i < s->n; i++)
        key[i] = key_of(s, &s->entry[i]);
    qsort(key, (size_t)s->n, sizeof *key, compare_keys);
    if (!key[0].candidate->fits) {
        status =
            smp__search_no_fit(&s->configs, &s->configs.config[key[0].index], key[0].candidate);
        goto done;
    }
    status = copy_without_partition(key[0].candidate, &result.tried[0]);
    if (status != SMP_OK)
        goto done;
    result.best = key[0].candidate;
    for (int32_t i = 1; i < s->n; i++) {
        smp_partition_destroy(key[i].candidate->partition);
        key[i].candidate->partition = NULL;
        result.tried[i] = key[i].candidate;
    }
    result.n_tried = s->n;
    s->n = 0;
    *out = result;
done:
    free(key);
    if (status != SMP_OK)
        free(result.tried);
    return status;
}

smp_status smp_search(const smp_search_request *request, const smp_costs *costs,
                      const smp_schedule_model *model, smp_search_result *out)
{
    search s = {.least_time = INFINITY, .least_peak = INFINITY, .least_overload = INFINITY};
    SMP_TRY(smp__configs_list(request, costs, model, &s.configs));
    smp_status status = SMP_OK;
    s.entry = calloc((size_t)s.configs.n, sizeof *s.entry);
    if (!s.entry)
        status = smp_fail_memory((size_t)s.configs.n * sizeof *s.entry);
    for (int32_t i = 0; i < s.configs.n && status == SMP_OK; i++)
        status = try_config(&s, i);
    if (status == SMP_OK && s.n == 0)
        status = try_overloaded(&s);
    if (status == SMP_OK)
        status = finish(&s, out);
    for (int32_t i = 0; i < s.n; i++)
        smp_candidate_destroy(s.entry[i].candidate);
    free(s.entry);
    smp__configs_free(&s.configs);
    return status;
}
