/* Which configurations there are: divisors of the device count, both placements, powers of two of
 * chunks and micro-batches, every schedule; what the request fixes stays fixed. No partition is
 * made here. */
#include "schedule/planner/space/configs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/clock.h"
#include "graph/base/divisor.h"
#include "graph/base/text.h"
#include "schedule/auto/list_schedule.h"
#include "schedule/plan/gradient_blocks.h"

enum { MANY_OPS = 16 /* of a stage, with which chunks are tried that few gain by */ };
enum { MOST_CHUNKS = 12 /* that divide the layers */ };
enum { MOST_UNITS = 64 }; /* stages, where more chunks only gather less at a time */
enum { HINT_BYTES = 256 };

/* A short list of values to try. */
typedef struct choices {
    int value[40];
    int n;
} choices;

static void add_choice(choices *list, int value)
{
    int i = 0;
    while (i < list->n && list->value[i] < value)
        i++;
    if (i < list->n && list->value[i] == value)
        return;
    memmove(&list->value[i + 1], &list->value[i], (size_t)(list->n - i) * sizeof(int));
    list->value[i] = value;
    list->n++;
}

/* The highest stage that an op must lie in, and the op; -1: there are no pins. */
static int32_t highest_pin(const smp_search_request *request, int32_t *op_out)
{
    int32_t highest = -1;
    smp_problem pins = {.graph = request->graph, .pin = request->pin};
    for (int32_t op = 0; op < request->graph->n_op; op++) {
        int32_t pin = smp_problem_pin(&pins, op);
        if (pin > highest) {
            highest = pin;
            *op_out = op;
        }
    }
    return highest;
}

/* How many equal layers the model has, as far as its matrices say: the common divisor of how often
 * there are such of one size. 1: none are alike. */
static int64_t count_layers(const smp_graph *graph)
{
    enum { MOST_SIZES = 16 };
    int64_t size[MOST_SIZES], times[MOST_SIZES], layers = 0;
    int n = 0;
    for (int32_t p = 0; p < graph->n_param; p++) {
        const smp_param *param = &graph->param[p];
        int i = 0;
        if (param->shape.n_dim < 2)
            continue;
        while (i < n && size[i] != param->elements)
            i++;
        if (i == MOST_SIZES)
            return 1;
        if (i == n) {
            size[n] = param->elements;
            times[n++] = 0;
        }
        times[i]++;
    }
    for (int i = 0; i < n; i++)
        if (times[i] > 1)
            layers = smp_common_divisor(layers, times[i]);
    return layers > 0 ? layers : 1;
}

static choices chunk_choices(const smp_search_request *request, int pipeline, bool gathers)
{
    choices list = {{0}, 0};
    int32_t op, max_pin = highest_pin(request, &op);
    if (request->options.chunks > 0) {
        add_choice(&list, request->options.chunks);
        return list;
    }
    add_choice(&list, 1);
    /* One rank gains nothing from several chunks, unless pins ask for more stages, or weights are
     * gathered by chunk. */
    if (pipeline > 1 || max_pin > 0 || gathers) {
        add_choice(&list, 2);
        add_choice(&list, 4);
        if ((int64_t)pipeline * 8 * MANY_OPS <= request->graph->n_op)
            add_choice(&list, 8);
        const int64_t layers = count_layers(request->graph);
        for (int v = 3; v <= MOST_CHUNKS; v++)
            if (layers % ((int64_t)pipeline * v) == 0)
                add_choice(&list, v);
    }
    for (int v = 8; gathers && v <= MOST_UNITS / pipeline; v *= 2)
        add_choice(&list, v);
    if (max_pin >= pipeline)
        add_choice(&list, max_pin / pipeline + 1);
    return list;
}

smp__least_batch smp__least_batch_of(const smp_search_request *request, int64_t size, int ddp)
{
    const int blocks = request->graph->training ? request->options.gradient_blocks : 0;
    return blocks > ddp && blocks % ddp != 0
               ? (smp__least_batch){size * blocks, smp_gradient_share(blocks, ddp)}
               : (smp__least_batch){size * ddp, 1};
}

static choices microbatch_choices(const smp_search_request *request, int pipeline)
{
    choices list = {{0}, 0};
    const int ddp = request->options.devices / pipeline;
    const int64_t batch = request->options.global_batch;
    const int blocks =
        request->options.gradient_blocks > ddp ? request->options.gradient_blocks : ddp;
    const int share = smp_gradient_share(blocks, ddp);
    if (batch > 0) {
        const smp__least_batch least =
            smp__least_batch_of(request, request->options.microbatch_size, ddp);
        const int64_t m = batch / least.samples * least.microbatches;
        if (batch % least.samples == 0 &&
            (request->options.microbatches == 0 || request->options.microbatches == m))
            add_choice(&list, (int)m);
        return list;
    }
    if (request->options.microbatches > 0) {
        add_choice(&list, request->options.microbatches);
        return list;
    }
    for (int m = share; m <= 4 * pipeline || m == share; m *= 2) /* whole blocks of gradients */
        add_choice(&list, m);
    if (pipeline % share == 0)
        add_choice(&list, pipeline);
    return list;
}

/* Pins that no pipeline on these devices can have. */
static smp_status check_pins(const smp_search_request *request)
{
    int32_t op = 0, max_pin = highest_pin(request, &op);
    int pipeline = request->options.stages > 0 ? request->options.stages
                   : request->options.ddp > 0  ? request->options.devices / request->options.ddp
                                               : request->options.devices;
    int64_t stages =
        (int64_t)pipeline * (request->options.chunks > 0 ? request->options.chunks : 4);
    if (request->options.chunks == 0 && stages <= max_pin)
        return SMP_OK; /* as many chunks as pins need */
    if (max_pin >= stages)
        return smp_fail_at(
            smp_pin_where(request->graph, request->pin_where, op),
            "op '%s' is pinned to stage %d, expected 0 to %lld: %d pipeline ranks of "
            "%d chunks",
            request->graph->op[op].name, max_pin, (long long)stages - 1, pipeline,
            request->options.chunks);
    return SMP_OK;
}

static smp_status check_numbers(const smp_search_request *request)
{
    int devices = request->options.devices;
    if (request->options.gradient_blocks < 0 ||
        request->options.gradient_blocks > SMP_MAX_GRADIENT_BLOCKS)
        return smp_fail(SMP_ERR_INPUT, "gradient blocks: got %d, expected 1 to %d, or 0 for ddp",
                        request->options.gradient_blocks, SMP_MAX_GRADIENT_BLOCKS);
    if (request->options.stages < 0 || request->options.ddp < 0 || request->options.chunks < 0 ||
        request->options.microbatches < 0)
        return smp_fail(SMP_ERR_INPUT,
                        "stages, ddp, chunks, micro-batches: got %d, %d, %d, %d, expected "
                        "positive numbers, or 0 for auto",
                        request->options.stages, request->options.ddp, request->options.chunks,
                        request->options.microbatches);
    if (request->options.stages > 0 && request->options.ddp > 0 &&
        (int64_t)request->options.stages * request->options.ddp != devices)
        return smp_fail(SMP_ERR_INPUT,
                        "%d stages * %d replicas (ddp) need %lld devices, got %d: leave one of "
                        "the two out, or ask for that many devices",
                        request->options.stages, request->options.ddp,
                        (long long)request->options.stages * request->options.ddp, devices);
    int fixed = request->options.stages > 0 ? request->options.stages : request->options.ddp;
    if (fixed > 0 && devices % fixed != 0)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: got %d, expected a divisor of the number of devices, %d",
                        request->options.stages > 0 ? "stages" : "ddp", fixed, devices);
    if (request->options.chunks > 0 && request->options.chunks > request->graph->n_op)
        return smp_fail(SMP_ERR_NO_FIT, "%d chunks on a rank need as many ops: the model has %d",
                        request->options.chunks, request->graph->n_op);
    return SMP_OK;
}

static smp_status check_request(const smp_search_request *request)
{
    if (request->graph->n_op < 1)
        return smp_fail(SMP_ERR_INPUT, "model '%s' has no ops to plan", request->graph->name);
    SMP_TRY(smp__at_numbers(request, check_numbers(request)));
    if (request->options.schedule && !smp_schedule_find(request->options.schedule))
        return smp_schedule_fail_name("schedule", request->options.schedule);
    SMP_TRY(smp_partitioner_check("partitioner", request->options.partitioner));
    return check_pins(request);
}

/* What a list of configurations shares. */
typedef struct listing {
    smp__configs *configs;
    const smp__mapping *mapping;
    int chunks;
    const smp_schedule_kind *schedule;
    int32_t arrangement; /* of the three above, -1: not made yet */
} listing;

smp_problem smp__arrangement_problem(const smp__configs *configs,
                                     const smp__arrangement *arrangement)
{
    const smp_search_request *request = configs->request;
    return (smp_problem){
        .graph = request->graph,
        .costs = configs->costs,
        .cluster = request->cluster,
        .n_stage = arrangement->mapping->pipeline * arrangement->chunks,
        .pipeline = arrangement->mapping->pipeline,
        .stage_rank = arrangement->stage_rank,
        .device = arrangement->mapping->counting,
        .n_replica = arrangement->mapping->n_replica,
        .state_factor = 0.25 * smp_memory_host_bytes(request->graph, request->sharding),
        .idle_factor = 0.25 * smp_memory_idle_bytes(request->graph, request->sharding),
        .live = configs->one,
        .memory_limit = configs->unlimited,
        .seed = request->options.seed,
        .pin = request->pin,
        .pin_where = request->pin_where,
        .together = request->together,
        .recompute = request->options.recompute,
        .first_look = configs->quick};
}

/* The bound that needs no partition; 0 where pins and groups contradict each other. */
static smp_status find_least_us(const smp__configs *configs, smp__arrangement *arrangement)
{
    smp_problem problem = smp__arrangement_problem(configs, arrangement);
    return smp_partition_lower_bound(&problem, &arrangement->least_us);
}

static smp_status make_arrangement(listing *l)
{
    smp__configs *configs = l->configs;
    int p = l->mapping->pipeline, n_stage = p * l->chunks;
    int *stage_rank = SMP_ARENA_NEW(configs->arena, int, (size_t)n_stage);
    int64_t *limit = SMP_ARENA_NEW(configs->arena, int64_t, (size_t)n_stage);
    if (!stage_rank || !limit)
        return SMP_ERR_NO_MEMORY;
    smp_schedule_shape shape = smp__planner_shape(configs->planner, p, l->chunks, 1,
                                                  configs->request->options.active_microbatches);
    for (int s = 0; s < n_stage; s++) {
        stage_rank[s] = smp_schedule_stage_rank(l->schedule, &shape, s);
        limit[s] = l->mapping->memory[stage_rank[s]] / l->chunks;
    }
    for (int32_t f = 0; f < configs->n_arrangement; f++) {
        const smp__arrangement *arrangement = &configs->arrangement[f];
        if (arrangement->mapping == l->mapping && arrangement->chunks == l->chunks &&
            memcmp(arrangement->stage_rank, stage_rank, (size_t)n_stage * sizeof *stage_rank) ==
                0) {
            l->arrangement = f;
            return SMP_OK;
        }
    }
    smp_work_count(SMP_WORK_OP, (double)configs->request->graph->n_op + n_stage);
    SMP_TRY(smp_array_reserve(&configs->arrangement, &configs->arrangement_capacity,
                              sizeof *configs->arrangement, (size_t)configs->n_arrangement + 1));
    l->arrangement = configs->n_arrangement++;
    smp__arrangement *arrangement = &configs->arrangement[l->arrangement];
    *arrangement = (smp__arrangement){
        .mapping = l->mapping, .chunks = l->chunks, .stage_rank = stage_rank, .limit = limit};
    return find_least_us(configs, arrangement);
}

static int first_horizon(const smp_search_request *request)
{
    return request->options.loading_horizon > 0 ? request->options.loading_horizon : 1;
}

/* Where groups differ, each stage was split for that of the rank it has in turn. */
static smp_status check_groups(const listing *l, const smp_schedule_shape *shape)
{
    const int *begin = l->configs->request->rank_begin;
    const int p = l->mapping->pipeline;
    for (int s = 0; begin && s < p * l->chunks; s++) {
        const int rank = smp_schedule_stage_rank(l->schedule, shape, s), turn = s % p;
        const int size = begin[rank + 1] - begin[rank], meant = begin[turn + 1] - begin[turn];
        if (size != meant)
            return smp_fail(SMP_ERR_NO_FIT,
                            "schedule '%s' places stage %d, of %d devices, on rank %d, which has "
                            "%d",
                            l->schedule->name, s, meant, rank, size);
    }
    return SMP_OK;
}

/* Nobody has asked for ranks or micro-batches: devices and global batch come to these. */
static bool is_of_batch(const smp_search_request *request)
{
    const smp_plan_options *o = &request->options;
    return o->global_batch > 0 && o->stages == 0 && o->ddp == 0 && o->microbatches == 0;
}

/* ... and what to change is what was asked for; "" if more was. */
static void hint_at_batch(const smp_search_request *request, char hint[HINT_BYTES])
{
    const int group = request->splitting.devices;
    char groups[32] = "devices";
    if (group > 1)
        snprintf(groups, sizeof groups, "groups of %d devices", group);
    hint[0] = '\0';
    if (is_of_batch(request))
        snprintf(hint, HINT_BYTES,
                 "; %d %s and a global batch of %lld samples leave no shorter pipeline: another "
                 "number of devices, or a global batch that more replicas divide, may",
                 request->options.devices, groups, (long long)request->options.global_batch);
}

/* Is the plan of a size that is any use? */
static smp_status check_size(const listing *l, const smp_schedule_shape *shape)
{
    const smp_search_request *request = l->configs->request;
    char hint[HINT_BYTES];
    if ((int64_t)shape->pipeline * shape->chunks <= SMP_MAX_FORWARDS / shape->microbatches)
        return SMP_OK;
    hint_at_batch(request, hint);
    return smp_fail(is_of_batch(request) ? SMP_ERR_NO_FIT : SMP_ERR_INPUT,
                    "schedule '%s': %d ranks * %d chunks * %d micro-batches, expected at most "
                    "%d forward actions%s",
                    l->schedule->name, shape->pipeline, shape->chunks, shape->microbatches,
                    SMP_MAX_FORWARDS, hint);
}

/* Appends the configuration if the schedule can run it; else records the first reason. */
static smp_status add_config(listing *l, int microbatches, smp_sharding sharding)
{
    smp__configs *configs = l->configs;
    const smp_search_request *request = configs->request;
    int p = l->mapping->pipeline;
    const int blocks = smp__planner_blocks(configs->planner, l->mapping->ddp);
    smp_work_count(SMP_WORK_LAYOUT, 4); /* of about as much work */
    smp_schedule_shape shape = smp__planner_shape(configs->planner, p, l->chunks, microbatches,
                                                  request->options.active_microbatches);
    smp_status status = SMP_OK;
    if ((int64_t)p * l->chunks > request->graph->n_op)
        status =
            smp_fail(SMP_ERR_NO_FIT,
                     "%d ranks * %d chunks need as many ops: the model has %d, enough for %d "
                     "%s",
                     p, l->chunks, request->graph->n_op,
                     p <= request->graph->n_op ? request->graph->n_op / p : request->graph->n_op,
                     p <= request->graph->n_op ? "chunks" : "ranks of 1 chunk");
    if (status == SMP_OK)
        status = check_size(l, &shape);
    if (status == SMP_OK)
        status = smp__planner_check(l->schedule, &shape);
    if (status == SMP_OK)
        status = check_groups(l, &shape);
    if (status == SMP_OK)
        status = smp_gradient_blocks_check(blocks, l->mapping->ddp, microbatches);
    if (status == SMP_OK)
        status = smp_gradient_joint_check(blocks, l->mapping->ddp, request->graph);
    if (status == SMP_OK)
        status = smp_shard_check(sharding.shard, l->mapping->ddp);
    if (status == SMP_OK && sharding.node_replicas > 0)
        status = smp_hops_check(sharding, l->mapping->ddp);
    if (status == SMP_OK && sharding.node_replicas > 0)
        status = smp_gradient_hops_check(blocks, l->mapping->ddp, sharding.node_replicas);
    if (status == SMP_ERR_INPUT || status == SMP_ERR_NO_FIT) {
        smp__configs_note(configs, smp__at_numbers(request, status));
        return SMP_OK;
    }
    SMP_TRY(status);
    if (l->arrangement < 0)
        SMP_TRY(make_arrangement(l));
    SMP_TRY(smp_array_reserve(&configs->config, &configs->capacity, sizeof *configs->config,
                              (size_t)configs->n + 1));
    configs->config[configs->n++] = (smp__config){
        .mapping = l->mapping,
        .chunks = l->chunks,
        .microbatches = microbatches,
        .active = request->options.active_microbatches,
        .lag = request->options.weight_lag,
        .sharding = sharding,
        .state_factor = 0.25 * smp_memory_host_bytes(request->graph, sharding),
        .idle_factor = 0.25 * smp_memory_idle_bytes(request->graph, sharding),
        .schedule = l->schedule,
        .recompute = request->options.recompute,
        .offload = request->options.offload == SMP_OFFLOAD_ALL && smp__may_offload(request),
        .horizon = first_horizon(request),
        .arrangement = l->arrangement};
    return SMP_OK;
}

smp_status smp__configs_add_bound(smp__configs *configs, int32_t index, int active, int lag)
{
    SMP_TRY(smp_array_reserve(&configs->config, &configs->capacity, sizeof *configs->config,
                              (size_t)configs->n + 1));
    smp__config *config = &configs->config[configs->n];
    *config = configs->config[index];
    config->active = active;
    config->lag = lag;
    config->recompute = configs->request->options.recompute;
    config->offload = configs->request->options.offload == SMP_OFFLOAD_ALL && config->offload;
    config->horizon = first_horizon(configs->request);
    config->live = NULL;
    config->standing = SMP__OPEN;
    config->binds = config->alone = false;
    config->wholer = -1;
    config->smallest = configs->n++;
    return SMP_OK;
}

smp_status smp__configs_add_order(smp__configs *configs, int32_t index, const int *listed)
{
    const smp__config *from = &configs->config[index];
    listing l = {.configs = configs, .chunks = from->chunks, .schedule = from->schedule};
    SMP_TRY(smp__mapping_get(configs, from->mapping->pipeline, SMP_PLACEMENT_LISTED, listed,
                             &l.mapping));
    SMP_TRY(make_arrangement(&l));
    SMP_TRY(smp__configs_add_bound(configs, index, from->active, from->lag));
    smp__config *config = &configs->config[configs->n - 1];
    config->mapping = l.mapping;
    config->arrangement = l.arrangement;
    return SMP_OK;
}

static bool has_choice(const choices *list, int value)
{
    for (int i = 0; i < list->n; i++)
        if (list->value[i] == value)
            return true;
    return false;
}

/* gathered: as many chunks are of use to weights that are gathered, no others. */
static smp_status add_shardings(listing *l, int microbatches, const smp__shardings *shardings,
                                bool gathered)
{
    const bool training = l->configs->request->graph->training;
    for (int i = 0; i < shardings->n; i++)
        if (!gathered || smp_shards(shardings->item[i], SMP_SHARD_WEIGHTS, training))
            SMP_TRY(add_config(l, microbatches, shardings->item[i]));
    return SMP_OK;
}

static smp_status list_mapping(smp__configs *configs, const smp__mapping *mapping)
{
    const smp_search_request *request = configs->request;
    const smp_schedule_kind *fixed[2] = {smp_schedule_find(request->options.schedule), NULL};
    const smp_schedule_kind *const *kinds = request->options.schedule ? fixed : smp_schedules();
    choices few = chunk_choices(request, mapping->pipeline, false);
    choices chunks =
        chunk_choices(request, mapping->pipeline, smp__shardings_gather(configs->planner));
    choices microbatches = microbatch_choices(request, mapping->pipeline);
    smp__shardings shardings;
    smp__shardings_list(configs->planner, mapping->ddp, &shardings);
    for (int v = 0; v < chunks.n; v++) {
        for (int i = 0; kinds[i]; i++) {
            listing l = {.configs = configs,
                         .mapping = mapping,
                         .chunks = chunks.value[v],
                         .schedule = kinds[i],
                         .arrangement = -1};
            for (int m = 0; m < microbatches.n; m++)
                SMP_TRY(add_shardings(&l, microbatches.value[m], &shardings,
                                      !has_choice(&few, chunks.value[v])));
        }
    }
    return SMP_OK;
}

static smp_status list_pipeline(smp__configs *configs, int pipeline)
{
    const smp_search_request *request = configs->request;
    bool both = request->placement == SMP_PLACEMENT_AUTO;
    const smp__mapping *first, *second;
    SMP_TRY(smp__mapping_get(configs, pipeline, both ? SMP_PLACEMENT_CLUSTER : request->placement,
                             request->device, &first));
    SMP_TRY(list_mapping(configs, first));
    if (!both)
        return SMP_OK;
    SMP_TRY(smp__mapping_get(configs, pipeline, SMP_PLACEMENT_SPREAD, NULL, &second));
    return smp__mapping_alike(first, second, request->cluster) ? SMP_OK
                                                               : list_mapping(configs, second);
}

smp_status smp__configs_list_mapping(smp__configs *configs, const smp__mapping *mapping)
{
    int32_t first = configs->n;
    SMP_TRY(list_mapping(configs, mapping));
    return smp__configs_relate(configs, first);
}

/* No configuration makes the batch that is asked for: the nearest that some make. */
static smp_status fail_batch(const smp_search_request *request)
{
    const smp_plan_options *o = &request->options;
    const int64_t batch = o->global_batch, most = INT64_MAX / 4;
    int64_t below = 0, above = most;
    for (int p = 1; p <= o->devices; p++) {
        const int64_t ddp = o->devices / p;
        if (o->devices % p != 0 || (o->stages > 0 && p != o->stages) ||
            (o->ddp > 0 && ddp != o->ddp))
            continue;
        const smp__least_batch least = smp__least_batch_of(request, o->microbatch_size, (int)ddp);
        const int64_t step = least.samples, m = o->microbatches / least.microbatches;
        const int64_t low = m > 0 ? m * step : batch / step * step;
        const int64_t high = m > 0 ? m * step : low + step;
        below = low <= batch && low > below ? low : below;
        above = high >= batch && high < above ? high : above;
    }
    char near[64] = "";
    if (below > 0)
        snprintf(near, sizeof near, "%lld", (long long)below);
    if (above < most)
        snprintf(near + strlen(near), sizeof near - strlen(near), "%s%lld", below > 0 ? ", " : "",
                 (long long)above);
    return smp_fail(
        SMP_ERR_NO_FIT,
        "a global batch of %lld samples: no micro-batches of %lld on these devices make "
        "it; nearest: %s",
        (long long)batch, (long long)o->microbatch_size, near);
}

static smp_status list_all(smp__configs *configs)
{
    const smp_search_request *request = configs->request;
    char hint[HINT_BYTES];
    for (int p = 1; p <= request->options.devices; p++) {
        if (request->options.devices % p != 0 ||
            (request->options.stages > 0 && p != request->options.stages) ||
            (request->options.ddp > 0 && request->options.devices / p != request->options.ddp))
            continue;
        if (p > request->graph->n_op) {
            hint_at_batch(request, hint);
            smp__configs_note(
                configs,
                smp__at_numbers(request, smp_fail(SMP_ERR_NO_FIT,
                                                  "%d pipeline ranks need as many ops: the model "
                                                  "has %d%s",
                                                  p, request->graph->n_op, hint)));
            break;
        }
        SMP_TRY(list_pipeline(configs, p));
    }
    if (configs->n == 0 && configs->first_failure == SMP_OK)
        return fail_batch(request);
    if (configs->n == 0)
        return smp_fail(configs->first_failure, "%s", configs->first_message);
    configs->first_failure = SMP_OK; /* why some shapes cannot be is no reason for the others */
    return SMP_OK;
}

void smp__configs_note(smp__configs *configs, smp_status status)
{
    if (configs->first_failure != SMP_OK)
        return;
    configs->first_failure = status;
    snprintf(configs->first_message, sizeof configs->first_message, "%s", smp_last_error());
}

static smp_status make_free_limits(smp__configs *configs)
{
    size_t n = (size_t)configs->request->graph->n_op; /* no pipeline has more stages */
    configs->one = SMP_ARENA_NEW(configs->arena, double, n);
    configs->unlimited = SMP_ARENA_NEW(configs->arena, int64_t, n);
    configs->no_op = SMP_ARENA_NEW(configs->arena, bool, n);
    configs->all_ops = SMP_ARENA_NEW(configs->arena, bool, n);
    if (!configs->one || !configs->unlimited || !configs->no_op || !configs->all_ops)
        return SMP_ERR_NO_MEMORY;
    for (size_t i = 0; i < n; i++) {
        configs->one[i] = 1.0;
        configs->unlimited[i] = INT64_MAX;
        configs->all_ops[i] = true;
    }
    return SMP_OK;
}

smp_status smp__configs_list(smp__planner *planner, smp__configs *out)
{
    *out = (smp__configs){.planner = planner,
                          .request = &planner->request,
                          .costs = planner->costs,
                          .arena = smp_arena_create()};
    smp_status status = out->arena ? check_request(out->request) : SMP_ERR_NO_MEMORY;
    if (status == SMP_OK)
        status = make_free_limits(out);
    if (status == SMP_OK)
        status = list_all(out);
    if (status != SMP_OK)
        smp__configs_free(out);
    return status;
}

void smp__configs_free(smp__configs *configs)
{
    for (int32_t f = 0; f < configs->n_arrangement; f++) {
        smp__variants_destroy(&configs->arrangement[f].variants);
        for (smp__limited *l = configs->arrangement[f].limited; l; l = l->next)
            smp__variants_destroy(&l->variants);
    }
    free(configs->arrangement);
    free(configs->config);
    smp_arena_destroy(configs->arena);
    *configs = (smp__configs){0};
}
