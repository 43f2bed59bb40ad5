/* Why nothing fits, and what would: by how much the nearest candidate misses, on which rank, and
 * which single changes would make room there, as far as the numbers of that rank tell. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "graph/base/text.h"
#include "schedule/planner/configs.h"

/* The rank that misses: what it keeps for ever, and what grows with micro-batches. */
typedef struct shortage {
    const smp__configs *configs;
    const smp__config *config;
    const smp_candidate *nearest;
    int rank;
    double limit, peak; /* bytes */
    double state;       /* weights, gradients, optimizer state */
    double stash;       /* of one live micro-batch */
    double in;          /* received for one */
    double live;        /* micro-batches */
} shortage;

static shortage describe_rank(const smp__configs *configs, const smp__config *config,
                              const smp_candidate *nearest)
{
    shortage s = {
        .configs = configs, .config = config, .nearest = nearest, .rank = nearest->worst_rank};
    smp_schedule_shape shape = smp__config_shape(configs, config);
    double factor = smp_state_factor(configs->request->graph);
    s.limit = (double)smp__config_memory(config, s.rank);
    s.peak = s.limit - (double)nearest->room_bytes;
    for (int stage = 0; stage < nearest->partition->n_stage; stage++) {
        const smp_stage_load *load = &nearest->partition->load[stage];
        if (nearest->stage_rank[stage] != s.rank)
            continue;
        s.state += factor * (double)load->weight_bytes;
        s.stash += (double)load->stash_bytes;
        s.in += (double)load->in_bytes;
        s.live = smp__live_microbatches(config->schedule, &shape, s.rank);
    }
    return s;
}

static void append_hint(smp_text *text, int *n, const char *hint)
{
    smp_text_append(text, "%s%s", *n > 0 ? ", or " : "", hint);
    (*n)++;
}

/* More pipeline ranks: weights and stashes are shared out further. */
static void hint_stages(const shortage *s, smp_text *text, int *n)
{
    const smp_search_request *request = s->configs->request;
    char hint[160];
    double need = ceil(s->config->mapping->pipeline * s->peak / fmax(s->limit, 1.0));
    if (need <= s->config->mapping->pipeline || need * s->config->chunks > request->graph->n_op)
        return;
    if (s->config->mapping->pipeline < request->devices && need <= request->devices) {
        snprintf(hint, sizeof hint, "more pipeline stages (about %.0f) and fewer replicas", need);
    } else {
        snprintf(hint, sizeof hint, "more devices (about %.0f pipeline stages)", need);
    }
    append_hint(text, n, hint);
}

static void hint_microbatch_size(const shortage *s, smp_text *text, int *n)
{
    int64_t size = s->nearest->microbatch_size;
    if (size <= 1 || s->state >= s->limit || s->peak <= s->state)
        return;
    int64_t fits = (int64_t)((double)size * (s->limit - s->state) / (s->peak - s->state));
    if (fits < 1 || fits >= size)
        return;
    char hint[120];
    snprintf(hint, sizeof hint, "micro-batches of %lld samples instead of %lld", (long long)fits,
             (long long)size);
    append_hint(text, n, hint);
}

/* Fewer micro-batches where they were fixed, or a schedule that keeps fewer alive. */
static void hint_microbatches(const shortage *s, smp_text *text, int *n)
{
    const smp__config *config = s->config;
    const smp_search_request *request = s->configs->request;
    smp_schedule_shape shape = smp__config_shape(s->configs, config), fewer = shape;
    char hint[120];
    double missing = s->peak - s->limit;
    for (int m = config->microbatches - 1; m >= 1 && request->microbatches > 0; m--) {
        fewer.microbatches = m;
        double live = smp__live_microbatches(config->schedule, &fewer, s->rank);
        if ((s->live - live) * s->stash < missing)
            continue;
        snprintf(hint, sizeof hint, "%d micro-batches instead of %d", m, config->microbatches);
        append_hint(text, n, hint);
        break;
    }
    for (int i = 0; smp_schedules()[i] && request->schedule; i++) {
        const smp_schedule_kind *kind = smp_schedules()[i];
        if (kind == config->schedule || smp__planner_check(kind, &shape) != SMP_OK)
            continue;
        double live = smp__live_microbatches(kind, &shape, s->rank);
        if ((s->live - live) * s->stash < missing)
            continue;
        snprintf(hint, sizeof hint, "the schedule '%s'", kind->name);
        append_hint(text, n, hint);
    }
}

/* A schedule that keeps as few micro-batches alive as it is told to. */
static void hint_active(const shortage *s, smp_text *text, int *n)
{
    smp_schedule_shape shape = smp__config_shape(s->configs, s->config), bounded = shape;
    char hint[120];
    for (int i = 0; smp_schedules()[i]; i++) {
        const smp_schedule_kind *kind = smp_schedules()[i];
        int last = 0; /* rules that take no bound keep more than 1 alive, or fit as they are */
        if (smp__planner_check(kind, &shape) != SMP_OK)
            continue;
        for (int active = 1; active < s->live; active++) {
            bounded.active = active;
            double live = smp__live_microbatches(kind, &bounded, s->rank);
            if (live > active || (s->live - live) * s->stash < s->peak - s->limit)
                break;
            last = active;
        }
        if (last == 0)
            continue;
        snprintf(hint, sizeof hint, "%s with --active-microbatches %d", kind->name, last);
        append_hint(text, n, hint);
        return;
    }
}

/* The stashes of all but one micro-batch made again from what the stage received. */
static void hint_recompute(const shortage *s, smp_text *text, int *n)
{
    const smp_search_request *request = s->configs->request;
    double saved = s->live * (s->stash - s->in) - s->stash;
    if (request->recompute == SMP_RECOMPUTE_NONE && request->graph->training &&
        saved >= s->peak - s->limit)
        append_hint(text, n, "recomputation");
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
    char peak[32], limit[32], missing[32], state[32], stash[32];
    smp_text text = {0};
    int n = 0;
    smp_format_bytes(peak, sizeof peak, (int64_t)s.peak);
    smp_format_bytes(limit, sizeof limit, (int64_t)s.limit);
    smp_format_bytes(missing, sizeof missing, -nearest->room_bytes);
    smp_format_bytes(state, sizeof state, (int64_t)s.state);
    smp_format_bytes(stash, sizeof stash, (int64_t)s.stash);
    smp_text_append(&text, "model '%s' does not fit: ", configs->request->graph->name);
    append_stages(&s, &text);
    smp_text_append(&text,
                    " on rank %d of %d need%s %s, %s more than the device's %s (%s for weights and "
                    "what training keeps of them, %s for each of %.4g live micro-batches); the "
                    "nearest of all that was tried: %d stages * %d replicas, %d micro-batches of "
                    "%lld, %s. It would fit with ",
                    s.rank, config->mapping->pipeline, config->chunks > 1 ? "" : "s", peak, missing,
                    limit, state, stash, s.live, config->mapping->pipeline * config->chunks,
                    config->mapping->ddp, config->microbatches, (long long)nearest->microbatch_size,
                    config->schedule->name);
    hint_recompute(&s, &text, &n);
    hint_active(&s, &text, &n);
    hint_stages(&s, &text, &n);
    hint_microbatch_size(&s, &text, &n);
    hint_microbatches(&s, &text, &n);
    smp_text_append(&text, "%s%s of memory per device", n > 0 ? ", or " : "", peak);
    smp_status status =
        text.failed ? smp_fail_memory(text.capacity) : smp_fail(SMP_ERR_NO_FIT, "%s", text.data);
    smp_text_free(&text);
    return status;
}
