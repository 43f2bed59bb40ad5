/* In which order configurations are looked at: by what they will come to, roughly. It decides
 * nothing but the effort, unless the effort ends. O(n log n). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "schedule/lower/shard_actions.h"
#include "schedule/planner/search/search_state.h"
#include "schedule/simulate/update_price.h"

enum { MAX_THOROUGH = 1 << 14 }; /* configurations * ops that are not looked at quickly first */
enum { MOST_COUNTED = 1 << 12 /* forwards of a rank; of more a gather each */ };

/* Bytes that ranks keep for ever, all together, as the costs count them. */
static double estimate_kept(const smp__configs *configs, const smp__config *config)
{
    const double weight_bytes = configs->totals.weight_bytes;
    double kept = config->state_factor * weight_bytes;
    if (smp_shards(config->sharding, SMP_SHARD_WEIGHTS, configs->request->graph->training))
        kept += weight_bytes * fmin(1.0, (config->sharding.prefetch + 2.0) / config->chunks);
    return kept;
}

/* Bytes of all ranks over all memory. Live micro-batches are asked of three ranks: this only
 * decides the order. */
static bool is_doubtful(const smp__configs *configs, const smp__config *config)
{
    const smp_search_request *request = configs->request;
    smp_schedule_shape shape = smp__config_shape(configs, config);
    int p = config->mapping->pipeline;
    int ranks[3] = {0, p / 2, p - 1};
    double live = 0.0;
    for (int i = 0; i < 3; i++)
        live += smp__live_microbatches(config->schedule, &shape, ranks[i]) / 3.0;
    if (request->graph->training && request->options.recompute != SMP_RECOMPUTE_NONE)
        live = fmin(live, 1.0);
    return estimate_kept(configs, config) + live * configs->totals.stash_bytes >
           (double)config->mapping->memory_all;
}

/* The part of its forwards that the first rank, which mostly has most to keep, makes again. */
static double estimate_recompute(const smp__configs *configs, const smp__config *config)
{
    const smp_search_request *request = configs->request;
    if (!request->graph->training || request->options.recompute != SMP_RECOMPUTE_AUTO)
        return 0.0;
    const smp_schedule_shape shape = smp__config_shape(configs, config);
    const int p = config->mapping->pipeline;
    const double stashed =
        smp__live_microbatches(config->schedule, &shape, 0) * configs->totals.stash_bytes / p;
    const double missing =
        estimate_kept(configs, config) / p + stashed - (double)config->mapping->memory[0];
    return missing <= 0.0 ? 0.0 : fmin(1.0, missing / fmax(stashed, 1.0));
}

static double link_us(const smp_cluster *cluster, bool inside, double bytes)
{
    return smp_link_us(inside ? &cluster->intra_node : &cluster->inter_node, (int64_t)bytes);
}

/* How many gathers of chunks the first rank makes in a step. */
static smp_status count_gathers(const smp__configs *configs, const smp__config *config,
                                int64_t *gathers)
{
    const smp_schedule_shape shape = smp__config_shape(configs, config);
    const int64_t forwards = (int64_t)shape.chunks * shape.microbatches;
    smp_program order = {0};
    *gathers = shape.chunks;
    if (!configs->planner->any_shard ||
        !smp_shards(config->sharding, SMP_SHARD_WEIGHTS, shape.training))
        return SMP_OK;
    *gathers = 2 * forwards;
    if (forwards > MOST_COUNTED)
        return SMP_OK;
    smp_status status = config->schedule->order(&shape, 0, &order);
    if (status == SMP_OK)
        status = smp_shard_gathers(&order, shape.chunks, shape.sharding.prefetch, gathers);
    smp_program_free(&order);
    return status;
}

/* Time of a rank's messages with weights and gradients in a step, roughly: gathering and scattering
 * inside a group, then the sums over groups, chunk by chunk. */
static double traffic_us(const smp__configs *configs, const smp__config *config, int64_t gathers)
{
    const smp_search_request *request = configs->request;
    const smp_cluster *cluster = request->cluster;
    const smp__mapping *mapping = config->mapping;
    const double bytes = configs->totals.weight_bytes / mapping->pipeline / config->chunks;
    const double shard = config->sharding.shard, groups = mapping->ddp / shard;
    const int last = mapping->device[(config->sharding.shard - 1) * mapping->pipeline];
    const bool inside =
        mapping->device[0] / cluster->devices_per_node == last / cluster->devices_per_node;
    const int sums = request->graph->training ? config->chunks : 0;
    double us = 0.0;
    if (shard > 1)
        us += ((double)gathers + sums) * link_us(cluster, inside, bytes * (shard - 1) / shard);
    if (groups > 1)
        us += 2.0 * sums *
              link_us(cluster, cluster->nodes == 1, bytes / shard * (groups - 1) / groups);
    return us;
}

/* What ranks wait for where the host updates their weights, at most. */
static double host_update_us(const smp__configs *configs, const smp__config *config)
{
    const smp_search_request *request = configs->request;
    if (!config->sharding.offload_states || !request->graph->training)
        return 0.0;
    return configs->totals.weight_bytes / config->mapping->pipeline *
           smp_host_update_us_per_byte(request->cluster, request->graph->target, config->sharding);
}

/* What the configuration will come to, roughly: micro-batches through the bottleneck and one
 * through the others, of which several chunks hide a part. */
static double estimate_of(const smp__configs *configs, const smp__config *config, int64_t gathers)
{
    const smp__totals *totals = &configs->totals;
    double bottleneck_us = configs->arrangement[config->arrangement].least_us;
    double fill_us = fmax(totals->compute_us * config->mapping->fastest - bottleneck_us, 0.0);
    double least_us = smp__config_least_us_of_any(configs, config);
    double samples = config->mapping->replicas * (double)configs->costs->microbatch_size;
    if (configs->request->options.optimize == SMP_OPTIMIZE_MEMORY)
        return (config->state_factor * totals->weight_bytes + totals->stash_bytes) /
               config->mapping->pipeline;
    if (configs->request->options.objective == SMP_OBJECTIVE_BOTTLENECK)
        return least_us;
    const double forward = totals->forward_us / fmax(totals->compute_us, 1e-9);
    const bool large = configs->request->graph->n_op > SMP__SMALL_OPS;
    if (large && config->mapping->pipeline > 1) /* stages end half an op late */
        least_us += 0.5 * config->chunks * totals->largest_us * config->mapping->fastest / samples;
    const double rest_us = fill_us / config->chunks + traffic_us(configs, config, gathers) +
                           host_update_us(configs, config);
    least_us += estimate_recompute(configs, config) * forward * bottleneck_us / samples;
    return least_us + rest_us / config->microbatches / samples;
}

static bool differ_in_shards(const smp__configs *configs, int32_t a, int32_t b)
{
    const smp__config *x = &configs->config[a], *y = &configs->config[b];
    return x->arrangement == y->arrangement && x->schedule == y->schedule &&
           x->microbatches == y->microbatches;
}

static int compare_configs(const void *left, const void *right)
{
    const smp__config *a = left, *b = right;
    int order = (int)a->standing - (int)b->standing;
    if (order == 0)
        order = smp__compare_doubles(a->family_estimate, b->family_estimate);
    if (order == 0)
        order = (a->arrangement > b->arrangement) - (a->arrangement < b->arrangement);
    if (order == 0)
        order = smp__compare_doubles(a->estimate, b->estimate);
    if (order == 0)
        order = (a->microbatches > b->microbatches) - (a->microbatches < b->microbatches);
    if (order == 0)
        order = strcmp(a->schedule->name, b->schedule->name);
    return order ? order : smp__compare_shardings(a->sharding, b->sharding);
}

/* Configurations that differ in shards alone, listed one after the other, take about as long: of
 * those the most promising is looked at, before the others of any. */
static void defer_shards(smp__configs *configs)
{
    for (int32_t i = 0, end; i < configs->n; i = end) {
        int32_t first = i;
        for (end = i; end < configs->n && differ_in_shards(configs, i, end); end++) {
            const smp__config *config = &configs->config[end], *best = &configs->config[first];
            if (config->standing < best->standing ||
                (config->standing == best->standing && config->estimate < best->estimate))
                first = end;
        }
        for (int32_t j = i; j < end; j++)
            if (j != first)
                configs->config[j].standing++;
    }
}

/* Families that share an arrangement one after the other, by their best member. In a large search,
 * which the effort may end, each by itself: a family whose best member promises much has others
 * that leave ranks idle most of the time, and those can wait. */
static void sort_configs(smp__configs *configs)
{
    for (int doubtful = 0; doubtful < 2; doubtful++) {
        for (int32_t f = 0; f < configs->n_arrangement; f++)
            configs->arrangement[f].estimate = INFINITY;
        for (int32_t i = 0; i < configs->n; i++) {
            smp__arrangement *arrangement = &configs->arrangement[configs->config[i].arrangement];
            if (smp__config_is_doubtful(&configs->config[i]) == (doubtful == 1))
                arrangement->estimate = fmin(arrangement->estimate, configs->config[i].estimate);
        }
        for (int32_t i = 0; i < configs->n; i++)
            if (smp__config_is_doubtful(&configs->config[i]) == (doubtful == 1))
                configs->config[i].family_estimate =
                    configs->quick ? configs->config[i].estimate
                                   : configs->arrangement[configs->config[i].arrangement].estimate;
    }
    if (configs->quick)
        defer_shards(configs);
    qsort(configs->config, (size_t)configs->n, sizeof *configs->config, compare_configs);
}

/* Configurations but for what is in shards; 0: only one. */
static int32_t count_whole(const smp__configs *configs)
{
    int32_t n = 0;
    const smp__planner *planner = configs->planner;
    for (int32_t i = 0; i < configs->n; i++) {
        const smp_sharding a = configs->config[i].sharding, b = configs->config[0].sharding;
        n += planner->few_shards
                 ? smp__sharding_is_whole(planner, a) && a.offload_states == b.offload_states
                 : smp__compare_shardings(a, b) == 0;
    }
    return configs->n > 1 ? n : 0;
}

smp_status smp__search_estimate(smp__configs *configs, int32_t first)
{
    for (int32_t i = first; i < configs->n; i++) {
        smp__config *config = &configs->config[i];
        int64_t gathers;
        SMP_TRY(count_gathers(configs, config, &gathers));
        config->standing = is_doubtful(configs, config) ? SMP__OPEN_DOUBTFUL : SMP__OPEN;
        config->estimate = estimate_of(configs, config, gathers);
    }
    return SMP_OK;
}

static smp_status estimate_best(smp__planner *planner, double *out)
{
    smp__configs configs;
    SMP_TRY(smp__configs_list(planner, &configs));
    const smp_status status = smp__search_order(&configs);
    if (status == SMP_OK && !smp__config_is_doubtful(&configs.config[0]))
        *out = configs.config[0].estimate;
    smp__configs_free(&configs);
    return status;
}

smp_status smp__plan_estimate(const smp_search_request *request, double *out)
{
    smp__planner planner;
    *out = INFINITY;
    smp_status status = smp__planner_open(request, &planner);
    if (status == SMP_OK) {
        status = estimate_best(&planner, out);
        smp__planner_close(&planner);
    }
    return status == SMP_ERR_NO_FIT || status == SMP_ERR_INPUT ? SMP_OK : status;
}

smp_status smp__search_order(smp__configs *configs)
{
    SMP_TRY(smp__totals_make(configs->request, configs->costs, &configs->totals));
    configs->quick = smp__is_brief(configs->planner) ||
                     (int64_t)count_whole(configs) * configs->request->graph->n_op > MAX_THOROUGH;
    SMP_TRY(smp__search_estimate(configs, 0));
    sort_configs(configs);
    return smp__configs_relate(configs, 0);
}
