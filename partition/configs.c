/* Which configurations there are: divisors of the device count, powers of two of chunks and
 * micro-batches, every schedule; what the request fixes stays fixed. */
#include "partition/configs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/text.h"

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

static choices chunk_choices(const smp_search_request *request, int pipeline)
{
    choices list = {{0}, 0};
    int max_pin = 0;
    if (request->chunks > 0) {
        add_choice(&list, request->chunks);
        return list;
    }
    for (int32_t op = 0; op < request->graph->n_op; op++)
        max_pin = request->graph->op[op].pin > max_pin ? request->graph->op[op].pin : max_pin;
    add_choice(&list, 1);
    /* One rank gains nothing from several chunks, unless pins ask for more stages. */
    if (pipeline > 1 || max_pin > 0) {
        add_choice(&list, 2);
        add_choice(&list, 4);
    }
    return list;
}

static choices microbatch_choices(const smp_search_request *request, int pipeline)
{
    choices list = {{0}, 0};
    if (request->microbatches > 0) {
        add_choice(&list, request->microbatches);
        return list;
    }
    for (int m = 1; m <= 4 * pipeline; m *= 2)
        add_choice(&list, m);
    add_choice(&list, pipeline);
    return list;
}

static smp_status check_request(const smp_search_request *request, const smp_schedule_model *model)
{
    int on_hand = smp_cluster_devices(request->cluster), devices = request->devices;
    if (devices < 1 || devices > on_hand)
        return smp_fail(SMP_ERR_INPUT, "devices: got %d, expected 1 to %d: the cluster has %d",
                        devices, on_hand, on_hand);
    if (request->graph->n_op < 1)
        return smp_fail(SMP_ERR_INPUT, "model '%s' has no ops to plan", request->graph->name);
    if (request->stages < 0 || request->ddp < 0 || request->chunks < 0 || request->microbatches < 0)
        return smp_fail(SMP_ERR_INPUT,
                        "stages, ddp, chunks, micro-batches: got %d, %d, %d, %d, expected "
                        "positive numbers, or 0 for auto",
                        request->stages, request->ddp, request->chunks, request->microbatches);
    if (request->stages > 0 && request->ddp > 0 &&
        (int64_t)request->stages * request->ddp != devices)
        return smp_fail(SMP_ERR_INPUT,
                        "%d stages * %d replicas (ddp) need %lld devices, got %d: leave one of "
                        "the two out, or ask for that many devices",
                        request->stages, request->ddp, (long long)request->stages * request->ddp,
                        devices);
    int fixed = request->stages > 0 ? request->stages : request->ddp;
    if (fixed > 0 && devices % fixed != 0)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: got %d, expected a divisor of the number of devices, %d",
                        request->stages > 0 ? "stages" : "ddp", fixed, devices);
    if (request->chunks > 0 && request->chunks > request->graph->n_op)
        return smp_fail(SMP_ERR_NO_FIT, "%d chunks on a rank need as many ops: the model has %d",
                        request->chunks, request->graph->n_op);
    if (request->schedule && !model->known(model->context, request->schedule)) {
        smp_text known = {0};
        for (int i = 0; model->names[i]; i++)
            smp_text_append(&known, "%s'%s'", i > 0 ? ", " : "", model->names[i]);
        smp_status status =
            smp_fail(SMP_ERR_INPUT, "schedule: got '%s', expected 'auto' or one of %s",
                     request->schedule, known.data ? known.data : "none");
        smp_text_free(&known);
        return status;
    }
    return SMP_OK;
}

int64_t smp__config_memory(const smp__configs *configs, const smp__config *config, int rank)
{
    const smp_search_request *request = configs->request;
    if (request->memory_bytes > 0)
        return request->memory_bytes;
    int64_t least = INT64_MAX;
    for (int d = 0; d < config->ddp; d++) {
        int device = config->device[d * config->pipeline + rank];
        int64_t bytes = request->cluster->device[device].memory_bytes;
        least = bytes < least ? bytes : least;
    }
    return least;
}

static smp_status describe(smp__configs *configs, smp__config *config)
{
    const smp_search_request *request = configs->request;
    const smp_schedule_model *model = configs->model;
    int p = config->pipeline, v = config->chunks;
    size_t n_stage = (size_t)p * (size_t)v;
    config->device = SMP_ARENA_NEW(configs->arena, int, (size_t)request->devices);
    config->stage_rank = SMP_ARENA_NEW(configs->arena, int, n_stage);
    config->live = SMP_ARENA_NEW(configs->arena, double, n_stage);
    config->limit = SMP_ARENA_NEW(configs->arena, int64_t, n_stage);
    if (!config->device || !config->stage_rank || !config->live || !config->limit)
        return SMP_ERR_NO_MEMORY;
    for (int d = 0; d < config->ddp; d++) {
        for (int r = 0; r < p; r++)
            config->device[d * p + r] =
                request->placement == SMP_PLACEMENT_SPREAD ? r * config->ddp + d : d * p + r;
    }
    for (int s = 0; s < p * v; s++) {
        int rank = model->stage_rank(model->context, config->schedule, p, v, s);
        int live = model->live(model->context, config->schedule, p, v, config->microbatches, rank,
                               request->graph->training);
        config->stage_rank[s] = rank;
        config->live[s] = (double)live / v;
        config->limit[s] = smp__config_memory(configs, config, rank) / v;
    }
    return SMP_OK;
}

static smp_status find_family(smp__configs *configs, smp__config *config)
{
    size_t bytes = (size_t)config->pipeline * (size_t)config->chunks * sizeof(int);
    for (int32_t f = 0; f < configs->n_family; f++) {
        const smp__family *family = &configs->family[f];
        if (family->pipeline == config->pipeline && family->chunks == config->chunks &&
            memcmp(family->stage_rank, config->stage_rank, bytes) == 0) {
            config->family = f;
            return SMP_OK;
        }
    }
    SMP_TRY(smp_array_reserve(&configs->family, &configs->family_capacity, sizeof *configs->family,
                              (size_t)configs->n_family + 1));
    config->family = configs->n_family;
    configs->family[configs->n_family++] = (smp__family){
        .pipeline = config->pipeline, .chunks = config->chunks, .stage_rank = config->stage_rank};
    return SMP_OK;
}

/* Appends the configuration if the schedule can run it; else records the first reason. */
static smp_status add_config(smp__configs *configs, smp__config config, smp_status *first_failure,
                             char *first_message, size_t size)
{
    const smp_search_request *request = configs->request;
    const smp_schedule_model *model = configs->model;
    smp_status status = SMP_OK;
    if ((int64_t)config.pipeline * config.chunks > request->graph->n_op)
        status = smp_fail(SMP_ERR_NO_FIT, "%d ranks * %d chunks need as many ops: the model has %d",
                          config.pipeline, config.chunks, request->graph->n_op);
    if (status == SMP_OK)
        status = model->check(model->context, config.schedule, config.pipeline, config.chunks,
                              config.microbatches, request->graph->training);
    if (status == SMP_ERR_INPUT || status == SMP_ERR_NO_FIT) {
        if (*first_failure == SMP_OK) {
            *first_failure = status;
            snprintf(first_message, size, "%s", smp_last_error());
        }
        return SMP_OK;
    }
    if (status != SMP_OK)
        return status;
    SMP_TRY(describe(configs, &config));
    SMP_TRY(find_family(configs, &config));
    SMP_TRY(smp_array_reserve(&configs->config, &configs->capacity, sizeof config,
                              (size_t)configs->n + 1));
    configs->config[configs->n++] = config;
    return SMP_OK;
}

static smp_status list_pipeline(smp__configs *configs, int pipeline, smp_status *first_failure,
                                char *first_message, size_t size)
{
    const smp_search_request *request = configs->request;
    const char *fixed[2] = {request->schedule, NULL};
    const char *const *names = request->schedule ? fixed : configs->model->names;
    choices chunks = chunk_choices(request, pipeline);
    choices microbatches = microbatch_choices(request, pipeline);
    for (int v = 0; v < chunks.n; v++) {
        for (int i = 0; names[i]; i++) {
            for (int m = 0; m < microbatches.n; m++) {
                smp__config config = {.pipeline = pipeline,
                                      .ddp = request->devices / pipeline,
                                      .chunks = chunks.value[v],
                                      .microbatches = microbatches.value[m],
                                      .schedule = names[i]};
                SMP_TRY(add_config(configs, config, first_failure, first_message, size));
            }
        }
    }
    return SMP_OK;
}

static smp_status list_all(smp__configs *configs)
{
    const smp_search_request *request = configs->request;
    smp_status first_failure = SMP_OK;
    char message[1024];
    for (int p = 1; p <= request->devices; p++) {
        if (request->devices % p != 0 || (request->stages > 0 && p != request->stages) ||
            (request->ddp > 0 && request->devices / p != request->ddp))
            continue;
        SMP_TRY(list_pipeline(configs, p, &first_failure, message, sizeof message));
    }
    return configs->n > 0 ? SMP_OK : smp_fail(first_failure, "%s", message);
}

smp_status smp__configs_list(const smp_search_request *request, const smp_costs *costs,
                             const smp_schedule_model *model, smp__configs *out)
{
    *out = (smp__configs){
        .request = request, .costs = costs, .model = model, .arena = smp_arena_create()};
    smp_status status = out->arena ? check_request(request, model) : SMP_ERR_NO_MEMORY;
    if (status == SMP_OK)
        status = list_all(out);
    if (status == SMP_OK)
        status = smp__families_solve(out);
    if (status != SMP_OK)
        smp__configs_free(out);
    return status;
}
