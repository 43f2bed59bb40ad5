/* What a search says of itself: what became of each degree of sharding, and why nothing fits. */
#include <string.h>

#include "graph/base/text.h"
#include "schedule/memory/communicators.h"
#include "schedule/planner/search/search_state.h"

static bool is_better(const smp_search_request *request, const smp_shard_tried *best, double time,
                      int64_t peak_bytes)
{
    if (!best->fits || request->options.optimize == SMP_OPTIMIZE_SPEED)
        return !best->fits || time < best->sample_us;
    return peak_bytes < best->peak_bytes ||
           (peak_bytes == best->peak_bytes && time < best->sample_us);
}

/* As the lines of degrees stand. */
static int compare_lines(const smp_shard_tried *a, const smp_shard_tried *b)
{
    int order = a->offload_states - b->offload_states;
    if (order == 0)
        order = (a->what > b->what) - (a->what < b->what);
    return order ? order : (a->shard > b->shard) - (a->shard < b->shard);
}

/* The line of a degree, added where there is none yet; NULL: there are too many. */
static smp_shard_tried *find_line(smp_search_result *result, smp_sharding sharding)
{
    const smp_shard_tried line = {.shard = sharding.shard,
                                  .what = sharding.shard > 1 ? sharding.what : SMP_SHARD_OPTIMIZER,
                                  .offload_states = sharding.offload_states};
    int i = 0;
    while (i < result->n_shard && compare_lines(&result->shard[i], &line) < 0)
        i++;
    if (i < result->n_shard && compare_lines(&result->shard[i], &line) == 0)
        return &result->shard[i];
    if (result->n_shard == SMP_MAX_SHARDS_TRIED)
        return NULL;
    memmove(&result->shard[i + 1], &result->shard[i],
            (size_t)(result->n_shard++ - i) * sizeof *result->shard);
    result->shard[i] = line;
    return &result->shard[i];
}

void smp__search_list_shards(const smp__search *s, smp_search_result *result)
{
    const smp_search_request *request = s->configs.request;
    for (int32_t i = 0; i < s->configs.n; i++) {
        const smp__config *config = &s->configs.config[i];
        smp_shard_tried *line = find_line(result, config->sharding);
        if (!line)
            continue;
        line->n_tried += config->standing == SMP__SIMULATED;
        line->n_slow += config->standing == SMP__TOO_SLOW;
        line->n_large += smp__config_is_too_large(config);
        line->n_open += smp__config_is_open(config);
    }
    for (int32_t i = 0; i < s->n; i++) {
        const smp_candidate *c = s->entry[i].candidate;
        smp_shard_tried *line = find_line(result, c->sharding);
        const bool unknown = c->fits && c->peak_bytes == 0; /* too slow to look at its memory */
        if (!line)
            continue;
        line->n_slow += unknown;
        if (!c->fits || unknown || !is_better(request, line, s->entry[i].time, c->peak_bytes))
            continue;
        line->fits = true;
        line->sample_us = s->entry[i].time;
        line->peak_bytes = c->peak_bytes;
    }
}

/* The rank that misses: what it keeps for ever, and what grows with micro-batches. */
typedef struct shortage {
    const smp__config *config;
    const smp_candidate *nearest;
    int rank;
    double limit, peak; /* bytes, ... */
    int64_t beside;     /* ... and what communicators take */
    double state;       /* weights, gradients, optimizer state */
    double stash;       /* of one live micro-batch */
    double live;        /* micro-batches */
} shortage;

static shortage describe_rank(const smp__configs *configs, const smp__config *config,
                              const smp_candidate *nearest)
{
    shortage s = {.config = config, .nearest = nearest, .rank = nearest->worst_rank};
    smp_schedule_shape shape = smp__config_shape(configs, config);
    s.limit = (double)smp__planner_limit(configs->planner, nearest, s.rank);
    s.beside = smp__communicator_bytes(configs->request, nearest->pipeline, nearest->ddp,
                                       nearest->sharding);
    s.peak = s.limit - (double)nearest->room_bytes;
    for (int stage = 0; stage < nearest->partition->n_stage; stage++) {
        const smp_stage_load *load = &nearest->partition->load[stage];
        if (nearest->stage_rank[stage] != s.rank)
            continue;
        s.state += config->state_factor * (double)(load->weight_bytes - load->idle_bytes) +
                   config->idle_factor * (double)load->idle_bytes;
        s.stash += (double)load->stash_bytes;
        s.live = smp__live_microbatches(config->schedule, &shape, s.rank);
    }
    return s;
}

/* Stages of the rank: "stage 3", "stages 1, 5". */
static void append_stages(const shortage *s, smp_text *text)
{
    int n = 0;
    for (int stage = 0; stage < s->nearest->partition->n_stage; stage++)
        n += s->nearest->stage_rank[stage] == s->rank;
    smp_text_append(text, "stage%s", n > 1 ? "s" : "");
    n = 0;
    for (int stage = 0; stage < s->nearest->partition->n_stage; stage++) {
        if (s->nearest->stage_rank[stage] == s->rank)
            smp_text_append(text, "%s %d", n++ > 0 ? "," : "", stage);
    }
}

smp_status smp__search_no_fit(const smp__configs *configs, const smp__config *config,
                              const smp_candidate *nearest)
{
    shortage s = describe_rank(configs, config, nearest);
    smp__nearest *noted = &configs->planner->nearest;
    char peak[32], limit[32], missing[32], state[32], stash[32], beside[SMP_BESIDE_CHARS];
    smp_text text = {0};
    if (!noted->known)
        *noted = (smp__nearest){.known = true,
                                .peak_bytes = (int64_t)s.peak,
                                .state_bytes = (int64_t)s.state,
                                .limit_bytes = (int64_t)s.limit};
    smp_format_bytes(peak, sizeof peak, (int64_t)s.peak);
    smp_format_bytes(limit, sizeof limit, (int64_t)s.limit);
    smp_format_bytes(missing, sizeof missing, -nearest->room_bytes);
    smp_format_bytes(state, sizeof state, (int64_t)s.state);
    smp_format_bytes(stash, sizeof stash, (int64_t)s.stash);
    smp_text_append(&text, "model '%s' does not fit: ", configs->request->graph->name);
    append_stages(&s, &text);
    smp_text_append(
        &text,
        " on rank %d of %d need%s %s, %s more than the device's %s%s (%s for weights and "
        "what training keeps of them, %s for each of %.4g live micro-batches); the "
        "nearest of all that was tried: %d stages * %d replicas, %d micro-batches of "
        "%lld, %s",
        s.rank, config->mapping->pipeline, config->chunks > 1 ? "" : "s", peak, missing, limit,
        smp_beside_communicators(beside, s.beside), state, stash, s.live,
        config->mapping->pipeline * config->chunks, config->mapping->ddp, config->microbatches,
        (long long)nearest->microbatch_size, config->schedule->name);
    if (config->sharding.shard > 1)
        smp_text_append(&text, ", %s in shards of %d",
                        config->sharding.what == SMP_SHARD_OPTIMIZER   ? "the optimizer's states"
                        : config->sharding.what == SMP_SHARD_GRADIENTS ? "gradients"
                                                                       : "weights",
                        config->sharding.shard);
    if (config->sharding.offload_states)
        smp_text_append(&text, ", the optimizer's states in host memory");
    smp_status status =
        text.failed ? smp_fail_memory(text.capacity) : smp_fail(SMP_ERR_NO_FIT, "%s", text.data);
    smp_text_free(&text);
    return status;
}
