/* Why nothing fits, and what would.
 *
 * Why: by how much the candidate that misses by least does so, on which rank. What would: changes
 * of one option of the request, from the least intrusive to more memory, each planned before it is
 * named. An option that fixes a number is given up (auto), so that the search finds the number;
 * sizes are tried downwards. The memory that is named is the least peak of any plan that the search
 * finds for --optimize memory, and then what the request as it stands fits into. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/clock.h"
#include "graph/base/text.h"
#include "graph/yaml/yaml.h"
#include "schedule/memory/communicators.h"
#include "schedule/planner/advice/advice.h"

/* Shares of what is left of the time limit: for all, and for what comes before memory. */
#define TIME_SHARE 0.3
#define FIRST_SHARE 0.2

/* What was tried, and what of it fits. */
typedef struct advice {
    const smp_search_request *request;
    const smp__nearest *nearest;
    double deadline_s, end_s; /* of what is tried now; of all */
    smp_text text;            /* "A (step 3 ms: ...), or B (...)" */
    int tried, found;
} advice;

/* Plans a changed request; false: nothing fits, or the time is over. result: the caller's if
 * true. */
static smp_status plan(advice *a, const smp_search_request *changed, bool patient,
                       smp_planner_result *result, bool *fits)
{
    const smp__trial trial = {.faster_op = -1, .patient = patient};
    smp_search_request request = *changed;
    request.deadline_s = a->deadline_s;
    *fits = false;
    if (smp_work_past(a->deadline_s) && !patient)
        return SMP_OK;
    a->tried++;
    return smp__plan_try(&request, &trial, result, fits);
}

static void name_plan(advice *a, const smp_planner_result *result, const char *change)
{
    char step[32], live[64] = "";
    const smp_plan *plan = result->plan;
    if (result->active_microbatches > 0)
        snprintf(live, sizeof live, ", %d of them live", result->active_microbatches);
    smp_text_append(&a->text, "%s%s (step %s: %d stages * %d replicas, %d micro-batches%s, %s)",
                    a->found++ > 0 ? ", or " : "", change,
                    smp_format_us(step, sizeof step, plan->predicted.step_us), plan->n_stage,
                    plan->ddp, plan->microbatches, live, plan->schedule);
}

static smp_status try_change(advice *a, const smp_search_request *changed, bool *fits,
                             const char *format, ...) __attribute__((format(printf, 4, 5)));

static smp_status try_change(advice *a, const smp_search_request *changed, bool *fits,
                             const char *format, ...)
{
    smp_planner_result result;
    char change[160];
    va_list arguments;
    SMP_TRY(plan(a, changed, false, &result, fits));
    if (!*fits)
        return SMP_OK;
    va_start(arguments, format);
    vsnprintf(change, sizeof change, format, arguments);
    va_end(arguments);
    name_plan(a, &result, change);
    smp_planner_result_destroy(&result);
    return SMP_OK;
}

/* Options that leave less open than there is. */
static smp_status try_open(advice *a)
{
    const smp_search_request *request = a->request;
    smp_search_request r = *request;
    bool fits;
    r.options.recompute = SMP_RECOMPUTE_AUTO;
    if (request->options.recompute != SMP_RECOMPUTE_AUTO && request->graph->training)
        SMP_TRY(try_change(a, &r, &fits, "--recompute auto"));
    r = *request;
    r.options.offload_states = SMP_OFFLOAD_AUTO;
    if (request->options.offload_states == SMP_OFFLOAD_NONE && request->graph->training &&
        request->cluster->host.bytes_per_s > 0.0)
        SMP_TRY(try_change(a, &r, &fits, "--offload-states auto"));
    r = *request;
    r.options.weight_lag = 0;
    if (request->options.weight_lag > 0 && request->graph->training)
        SMP_TRY(try_change(a, &r, &fits, "--weight-lag auto"));
    r = *request;
    r.options.schedule = NULL;
    if (request->options.schedule)
        SMP_TRY(try_change(a, &r, &fits, "--pipeline auto"));
    r = *request;
    r.options.chunks = 0;
    if (request->options.chunks > 0)
        SMP_TRY(try_change(a, &r, &fits, "--chunks auto"));
    r = *request;
    r.options.microbatches = 0;
    if (request->options.microbatches > 0)
        SMP_TRY(try_change(a, &r, &fits, "--microbatches auto"));
    return SMP_OK;
}

/* States in shards, of a request that has replicas or may. */
static smp_status try_shards(advice *a)
{
    smp_search_request r = *a->request;
    bool fits;
    if (r.sharding.shard == SMP_SHARD_AUTO || r.options.devices < 2 || r.options.ddp == 1 ||
        r.options.stages == r.options.devices)
        return SMP_OK;
    r.sharding.shard = SMP_SHARD_AUTO;
    r.any_shard_what = true;
    return try_change(a, &r, &fits, "--shard auto");
}

/* Without a bound the search finds the highest that fits; that is then planned as a request. */
static smp_status try_active(advice *a)
{
    smp_search_request r = *a->request;
    smp_planner_result result;
    bool fits;
    r.options.active_microbatches = 0;
    if (a->request->options.active_microbatches == 0)
        return SMP_OK;
    SMP_TRY(plan(a, &r, false, &result, &fits));
    if (!fits)
        return SMP_OK;
    r.options.active_microbatches = result.active_microbatches;
    smp_planner_result_destroy(&result);
    if (r.options.active_microbatches == 0)
        return try_change(a, &r, &fits, "no --active-microbatches");
    return try_change(a, &r, &fits, "--active-microbatches %d", r.options.active_microbatches);
}

/* What the rank that misses would keep if it kept as much per sample; then halves of that. */
static smp_status try_microbatch_size(advice *a)
{
    const smp__nearest *n = a->nearest;
    double room = (double)(n->limit_bytes - n->state_bytes);
    double grows = (double)(n->peak_bytes - n->state_bytes);
    smp_search_request r = *a->request;
    bool fits = false;
    if (r.options.microbatch_size <= 1 || room <= 0.0 || grows <= 0.0)
        return SMP_OK;
    int64_t size = (int64_t)((double)r.options.microbatch_size * room / grows);
    for (size = size < r.options.microbatch_size ? size : r.options.microbatch_size / 2;
         size > 0 && !fits; size /= 2) {
        r.options.microbatch_size = size;
        SMP_TRY(try_change(a, &r, &fits, "--microbatch-size %lld", (long long)size));
    }
    return SMP_OK;
}

/* Weights and stashes shared out over more ranks of the devices there are; over more devices. */
static smp_status try_ranks(advice *a)
{
    const smp_search_request *request = a->request;
    bool fits, both = request->options.stages > 0 && request->options.ddp > 0;
    const char *freed = both                          ? " --stages auto --ddp auto"
                        : request->options.stages > 0 ? " --stages auto"
                        : request->options.ddp > 0    ? " --ddp auto"
                                                      : "";
    smp_search_request r = *request;
    r.options.stages = r.options.ddp = 0;
    if (*freed)
        SMP_TRY(try_change(a, &r, &fits, "%s", freed + 1));
    r.options.devices = smp_cluster_devices(request->cluster);
    if (r.placement == SMP_PLACEMENT_LISTED) /* of fewer devices */
        r.placement = SMP_PLACEMENT_AUTO;
    if (r.options.devices > request->options.devices)
        SMP_TRY(try_change(a, &r, &fits, "-n %d%s", r.options.devices, freed));
    return SMP_OK;
}

int64_t smp__printed_bytes(char *buffer, size_t size, int64_t bytes)
{
    int64_t printed = 0;
    for (int64_t more = bytes; printed < bytes; more += more / 4096 + 1)
        if (!smp_parse_bytes(smp_format_bytes(buffer, size, more), &printed))
            return bytes;
    return printed;
}

/* The memory that a search for the least finds; 0: none, or no time for it. */
static smp_status find_least(advice *a, double *least_bytes)
{
    smp_search_request r = *a->request;
    smp_planner_result result;
    bool fits;
    *least_bytes = 0.0;
    r.options.optimize = SMP_OPTIMIZE_MEMORY;
    r.options.memory_bytes = SMP_MAX_BYTES;
    SMP_TRY(plan(a, &r, false, &result, &fits));
    if (!fits)
        return SMP_OK;
    *least_bytes = (double)result.search.best->peak_bytes;
    smp_planner_result_destroy(&result);
    return SMP_OK;
}

/* What the nearest needs, whatever the time; or less where the request fits into less. */
static smp_status try_memory(advice *a)
{
    static const double more[] = {1.0, 1.02, 1.1, 1.3};
    smp_search_request r = *a->request;
    smp_planner_result result, smaller;
    char size[32], change[64];
    double least_bytes;
    bool fits, found;
    r.options.memory_bytes = smp__printed_bytes(size, sizeof size, a->nearest->peak_bytes);
    SMP_TRY(plan(a, &r, true, &result, &found));
    double most_bytes = found ? (double)r.options.memory_bytes : (double)SMP_MAX_BYTES;
    snprintf(change, sizeof change, "%s of memory per device", size);
    smp_status status = find_least(a, &least_bytes);
    for (size_t i = 0; status == SMP_OK && least_bytes > 0.0 && i < sizeof more / sizeof *more;
         i++) {
        r.options.memory_bytes =
            smp__printed_bytes(size, sizeof size, (int64_t)(more[i] * least_bytes));
        if ((double)r.options.memory_bytes >= most_bytes)
            break;
        status = plan(a, &r, false, &smaller, &fits);
        if (status != SMP_OK || !fits)
            continue;
        if (found)
            smp_planner_result_destroy(&result);
        result = smaller;
        found = true;
        snprintf(change, sizeof change, "%s of memory per device", size);
        break;
    }
    if (found) {
        char words[sizeof change + SMP_BESIDE_CHARS], beside[SMP_BESIDE_CHARS];
        snprintf(words, sizeof words, "%s%s", change,
                 smp_beside_communicators(beside, result.plan->predicted.communicator_bytes));
        name_plan(a, &result, words);
        smp_planner_result_destroy(&result);
    }
    return status;
}

/* A plan that needs less, in the memory that there is. */
static smp_status try_less(advice *a)
{
    smp_search_request r = *a->request;
    bool fits;
    r.options.optimize = SMP_OPTIMIZE_MEMORY;
    return a->request->options.optimize == SMP_OPTIMIZE_SPEED
               ? try_change(a, &r, &fits, "--optimize memory")
               : SMP_OK;
}

static smp_status try_all(advice *a)
{
    SMP_TRY(try_open(a));
    SMP_TRY(try_active(a));
    SMP_TRY(try_shards(a));
    SMP_TRY(try_microbatch_size(a));
    SMP_TRY(try_ranks(a));
    SMP_TRY(try_less(a));
    a->deadline_s = a->end_s;
    return try_memory(a);
}

smp_status smp__plan_advise(const smp_search_request *request, const smp__nearest *nearest)
{
    double now_s = smp_work_s();
    advice a = {.request = request, .nearest = nearest};
    char *why = strdup(smp_last_error());
    if (!why)
        return smp_fail_memory(strlen(smp_last_error()) + 1);
    if (request->deadline_s > 0.0) {
        double left_s = fmax(request->deadline_s - now_s, 0.0);
        a.deadline_s = now_s + FIRST_SHARE * left_s;
        a.end_s = now_s + TIME_SHARE * left_s;
    }
    smp_status status = try_all(&a);
    if (status == SMP_OK && a.text.failed)
        status = smp_fail_memory(a.text.capacity);
    else if (status == SMP_OK && a.found > 0)
        status = smp_fail(SMP_ERR_NO_FIT, "%s. It would fit with %s", why, a.text.data);
    else if (status == SMP_OK)
        status = smp_fail(SMP_ERR_NO_FIT, "%s. Of %d changes that were planned none fits%s", why,
                          a.tried, smp_work_past(a.deadline_s) ? " (all effort spent)" : "");
    smp_text_free(&a.text);
    free(why);
    return status;
}
