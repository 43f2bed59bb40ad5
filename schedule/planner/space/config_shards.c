/* Which shards configurations have, and which of them have to be looked at.
 *
 * To keep states of the optimizer in shards takes no longer than not to: replicas exchange as many
 * bytes, and each updates less. So every degree of that may be the fastest. Gradients in shards,
 * then weights, then weights gathered right before they are used each save more memory and no time:
 * they are looked at where memory binds the one before them, the `wholer` one. Weights in so many
 * chunks that nothing else has them have no such one. States in host memory cost the travel of
 * gradients and weights, and the host's update, or on a GPU what of these forwards do not hide: if
 * they hide all, the device's own update is saved, well below 1 % of a step, as the host takes a
 * hundred times as long for it. Any of these is looked at with them where memory binds the one
 * without. Where the least memory is asked for all are looked at.
 *
 * Of few degrees (few_shards) the optimizer's states go over all replicas or nowhere: whole
 * states are no faster and take more memory, so none has those, but the winner where it can. What
 * else is in shards is over all replicas, or those of a node, whose links are faster.
 * O(n log n). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "schedule/lower/shard_actions.h"
#include "schedule/planner/space/configs.h"

static void add(smp__shardings *list, smp_sharding sharding)
{
    if (list->n < SMP__MAX_SHARDINGS)
        list->item[list->n++] = sharding;
}

/* Weights gathered ahead of use, and right before it, where that is left open. */
static void add_weights(const smp__planner *planner, smp_sharding sharding, smp__shardings *list)
{
    add(list, sharding);
    if (planner->any_prefetch && sharding.prefetch > 0) {
        sharding.prefetch = 0;
        add(list, sharding);
    }
}

/* Replicas that share a node, at most; 1: not more than one, or all. */
static int node_degree(const smp__planner *planner, int ddp)
{
    int most = planner->request.cluster->devices_per_node;
    most = most < ddp - 1 ? most : ddp - 1;
    while (most > 1 && ddp % most != 0)
        most--;
    return most > 1 ? most : 1;
}

bool smp__sharding_is_whole(const smp__planner *planner, smp_sharding sharding)
{
    return sharding.shard <= 1 || (planner->few_shards && sharding.what == SMP_SHARD_OPTIMIZER);
}

static void add_degree(const smp__planner *planner, int shard, smp_shard_what least,
                       smp__shardings *list)
{
    const smp_search_request *request = &planner->request;
    const bool any = request->any_shard_what, training = request->graph->training;
    smp_sharding sharding = request->sharding;
    sharding.shard = shard;
    for (int what = (int)least; what <= SMP_SHARD_WEIGHTS; what++) {
        sharding.what = (smp_shard_what)what;
        if ((!any && sharding.what != request->sharding.what) ||
            (!training && sharding.what != SMP_SHARD_WEIGHTS))
            continue;
        if (sharding.what == SMP_SHARD_WEIGHTS)
            add_weights(planner, sharding, list);
        else
            add(list, sharding);
    }
}

void smp__shardings_list(const smp__planner *planner, int ddp, smp__shardings *out)
{
    const smp_search_request *request = &planner->request;
    int64_t degree = 2;
    out->n = 0;
    const bool few = planner->few_shards && ddp > 1;
    const bool optimizer =
        request->graph->training &&
        (request->any_shard_what || request->sharding.what == SMP_SHARD_OPTIMIZER);
    if (smp_shards(request->sharding, SMP_SHARD_WEIGHTS, request->graph->training))
        add_weights(planner, request->sharding, out);
    else if (!few || !optimizer)
        add(out, request->sharding);
    for (; planner->any_shard && !few && degree <= ddp; degree *= 2)
        if (ddp % degree == 0)
            add_degree(planner, (int)degree, SMP_SHARD_OPTIMIZER, out);
    if (few && node_degree(planner, ddp) > 1)
        add_degree(planner, node_degree(planner, ddp), SMP_SHARD_GRADIENTS, out);
    if (planner->any_shard && ddp > 1 && (few || degree / 2 != ddp))
        add_degree(planner, ddp, SMP_SHARD_OPTIMIZER, out);
    for (int i = 0, n = out->n; planner->any_states && i < n; i++) {
        smp_sharding away = out->item[i];
        away.offload_states = true;
        add(out, away);
    }
}

bool smp__shardings_gather(const smp__planner *planner)
{
    const smp_search_request *request = &planner->request;
    if (planner->any_shard)
        return request->any_shard_what || request->sharding.what == SMP_SHARD_WEIGHTS;
    return smp_shards(request->sharding, SMP_SHARD_WEIGHTS, request->graph->training);
}

static int compare_pointers(const void *a, const void *b)
{
    return ((uintptr_t)a > (uintptr_t)b) - ((uintptr_t)a < (uintptr_t)b);
}

/* By all but micro-batches. */
static int compare_kinds(const smp__config *a, const smp__config *b)
{
    int order = compare_pointers(a->mapping, b->mapping);
    if (order == 0)
        order = compare_pointers(a->schedule, b->schedule);
    if (order == 0)
        order = (a->chunks > b->chunks) - (a->chunks < b->chunks);
    if (order == 0)
        order = (a->active > b->active) - (a->active < b->active);
    if (order == 0)
        order = (a->lag > b->lag) - (a->lag < b->lag);
    return order ? order : smp__compare_shardings(a->sharding, b->sharding);
}

int smp__compare_shardings(smp_sharding a, smp_sharding b)
{
    int order = (a.shard > b.shard) - (a.shard < b.shard);
    if (order == 0)
        order = (a.what > b.what) - (a.what < b.what);
    if (order == 0)
        order = a.offload_states - b.offload_states;
    return order ? order : (b.prefetch > a.prefetch) - (b.prefetch < a.prefetch);
}

typedef struct indexed {
    const smp__config *config;
    int32_t index;
} indexed;

static int compare_indexed(const void *left, const void *right)
{
    const smp__config *a = ((const indexed *)left)->config, *b = ((const indexed *)right)->config;
    int order = compare_kinds(a, b);
    return order ? order
                 : (a->microbatches > b->microbatches) - (a->microbatches < b->microbatches);
}

/* That with states on the device, or with other shards, and where chunks make no difference but to
 * what is gathered, fewer. */
static int32_t find_wholer(const smp__configs *configs, const smp__config *config,
                           const indexed *sorted)
{
    const smp__planner *planner = configs->planner;
    const smp_search_request *request = configs->request;
    smp__config wanted = *config;
    smp_sharding *sharding = &wanted.sharding;
    if (request->options.optimize == SMP_OPTIMIZE_MEMORY)
        return -1;
    if (planner->any_states && sharding->offload_states)
        sharding->offload_states = false;
    else if (sharding->shard <= 1)
        return -1;
    else if (sharding->prefetch < request->sharding.prefetch)
        sharding->prefetch = request->sharding.prefetch;
    else if (!planner->any_shard || !request->any_shard_what)
        return -1;
    else if (!request->graph->training)
        *sharding = request->sharding;
    else if (sharding->what == SMP_SHARD_OPTIMIZER)
        return -1;
    else
        sharding->what--;
    if (planner->few_shards && sharding->what == SMP_SHARD_OPTIMIZER)
        sharding->shard = config->mapping->ddp;
    for (; wanted.chunks > 0; wanted.chunks /= 2) {
        const indexed key = {.config = &wanted};
        const indexed *found =
            bsearch(&key, sorted, (size_t)configs->n, sizeof *sorted, compare_indexed);
        if (found)
            return found->index;
    }
    return -1;
}

smp_status smp__configs_relate(smp__configs *configs, int32_t first)
{
    const size_t n = (size_t)configs->n;
    indexed *sorted = calloc(n + 1, sizeof *sorted);
    if (!sorted)
        return smp_fail_memory(n * sizeof *sorted);
    for (int32_t i = 0; i < configs->n; i++)
        sorted[i] = (indexed){&configs->config[i], i};
    qsort(sorted, n, sizeof *sorted, compare_indexed);
    for (int32_t i = 0, smallest = 0; i < configs->n; i++) {
        if (i == 0 || compare_kinds(sorted[i].config, sorted[i - 1].config) != 0)
            smallest = sorted[i].index;
        if (sorted[i].index >= first)
            configs->config[sorted[i].index].smallest = smallest;
    }
    for (int32_t i = first; i < configs->n; i++)
        configs->config[i].wholer = find_wholer(configs, &configs->config[i], sorted);
    free(sorted);
    return SMP_OK;
}
