/* What would help most, by planning it: the same numbers with one thing changed, and the gain is
 * the share of the time per sample that the plan so made saves. Each change is something that the
 * owner of a model or a cluster can do. A handful of searches over one configuration each, as long
 * as the time for hints lasts. */
#include "schedule/planner/advice/hints.h"

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

#define LEAST_GAIN 1e-3
/* The share of what planning took; and seconds. */
#define TIME_SHARE 0.3
#define LEAST_TIME_S 0.3

typedef struct hinting {
    const smp_search_request *request; /* that made the result */
    const smp_planner_result *result;
    smp_search_request base; /* with the numbers of the plan */
    double time;             /* of the plan, per sample */
    unsigned kinds;          /* bits */
    smp_hint *hint;
    int n;
    smp_arena *arena; /* scratch */
} hinting;

static double gain_of(const hinting *h, double time)
{
    return h->time > 0.0 ? 1.0 - time / h->time : 0.0;
}

/* The request that has the plan's numbers. An order of its own is searched for only where any rule
 * may be. */
static void fix_numbers(hinting *h)
{
    const smp_plan *plan = h->result->plan;
    smp_search_request *r = &h->base;
    *r = *h->request;
    r->options.devices = plan->devices;
    r->options.stages = plan->pipeline;
    r->options.ddp = plan->ddp;
    r->options.chunks = plan->chunks;
    r->options.microbatches = plan->microbatches;
    r->sharding.shard = plan->sharding.shard;
    r->sharding.what = plan->sharding.what;
    r->sharding.prefetch = plan->sharding.prefetch;
    r->options.offload_states = plan->sharding.offload_states ? SMP_OFFLOAD_ALL : SMP_OFFLOAD_NONE;
    r->placement = plan->placement;
    r->device = plan->device;
    if (!h->result->order.taken)
        r->options.schedule = h->result->search.best->schedule;
    if (r->deadline_s > 0.0)
        r->deadline_s = smp_work_s() + fmax(TIME_SHARE * h->result->planning_s, LEAST_TIME_S);
}

/* What the change gains, and what it takes on the fullest rank; no gain where there is no such
 * plan, or no time for it. */
static smp_status plan(hinting *h, const smp_search_request *changed, int32_t faster_op,
                       double *gain, int64_t *peak_bytes)
{
    const smp__trial trial = {.faster_op = faster_op};
    smp_planner_result result;
    bool found;
    *gain = 0.0;
    *peak_bytes = 0;
    if (h->n == SMP_HINTS_MAX || smp_work_past(h->base.deadline_s))
        return SMP_OK;
    SMP_TRY(smp__plan_try(changed, &trial, &result, &found));
    if (!found)
        return SMP_OK;
    *gain = gain_of(h, smp_plan_sample_us(changed, result.plan));
    for (int r = 0; r < result.plan->pipeline; r++)
        if (result.plan->predicted.peak_bytes[r] > *peak_bytes)
            *peak_bytes = result.plan->predicted.peak_bytes[r];
    smp_planner_result_destroy(&result);
    return SMP_OK;
}

/* The change is a hint, in these words, if it gains enough. */
static smp_status try_change(hinting *h, smp_hint_kind kind, const smp_search_request *changed,
                             int32_t faster_op, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

static smp_status try_change(hinting *h, smp_hint_kind kind, const smp_search_request *changed,
                             int32_t faster_op, const char *format, ...)
{
    double gain;
    int64_t peak_bytes;
    va_list arguments;
    SMP_TRY(plan(h, changed, faster_op, &gain, &peak_bytes));
    if (!(gain >= LEAST_GAIN))
        return SMP_OK;
    smp_hint *hint = &h->hint[h->n++];
    *hint = (smp_hint){.kind = kind,
                       .gain = gain,
                       .pipeline = changed->options.stages,
                       .ddp = changed->options.ddp,
                       .chunks = changed->options.chunks,
                       .microbatches = changed->options.microbatches,
                       .schedule = changed->options.schedule,
                       .memory_bytes = changed->options.memory_bytes,
                       .op = faster_op};
    va_start(arguments, format);
    vsnprintf(hint->text, sizeof hint->text, format, arguments);
    va_end(arguments);
    return SMP_OK;
}

/* The stage that takes most of the slowest rank. */
static int slowest_stage(const smp_candidate *best)
{
    const double *rank_us = best->partition->rank_us;
    int slowest = 0, stage = -1;
    for (int r = 1; r < best->pipeline; r++)
        slowest = rank_us[r] > rank_us[slowest] ? r : slowest;
    for (int s = 0; s < best->partition->n_stage; s++)
        if (best->stage_rank[s] == slowest &&
            (stage < 0 || best->partition->load[s].load_us > best->partition->load[stage].load_us))
            stage = s;
    return stage;
}

/* Share of a stage's compute that its largest op takes; *op: that op. */
static double largest_share(const hinting *h, const smp_costs *costs, int stage, int32_t *op)
{
    double sum = 0.0, largest = -1.0;
    for (int32_t i = 0; i < h->request->graph->n_op; i++) {
        if (h->result->search.best->partition->stage[i] != stage)
            continue;
        const smp_op_cost *cost = &costs->op[i];
        double us = cost->forward_us + cost->backward_us;
        sum += us;
        if (us > largest) {
            largest = us;
            *op = i;
        }
    }
    return sum > 0.0 ? largest / sum : 0.0;
}

/* The slowest rank is one op, or nearly: in half the time. */
static smp_status hint_faster_op(hinting *h)
{
    int32_t op = -1;
    int stage = slowest_stage(h->result->search.best);
    smp_costs *costs = NULL;
    SMP_TRY(smp_costs_build(h->request->graph, h->request->cluster, h->request->profile,
                            h->result->plan->microbatch_size, &costs));
    double share = largest_share(h, costs, stage, &op);
    smp_costs_destroy(costs);
    return share < 0.5
               ? SMP_OK
               : try_change(h, SMP_HINT_FASTER_OP, &h->base, op,
                            "op '%.120s' in half the time: it takes %.0f %% of stage %d on the "
                            "slowest rank",
                            h->request->graph->op[op].name, 100.0 * share, stage);
}

/* Groups, pins and what is to stay together may be what keeps ranks from taking the same time. */
static smp_status hint_free_ops(hinting *h)
{
    smp_graph graph = *h->request->graph;
    smp_search_request r = h->base;
    smp_op *op = SMP_ARENA_NEW(h->arena, smp_op, (size_t)graph.n_op);
    bool bound = r.pin || r.together;
    if (!op)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < graph.n_op; i++) {
        op[i] = graph.op[i];
        bound |= op[i].pin >= 0 || op[i].group >= 0;
        op[i].pin = op[i].group = -1;
    }
    if (!bound)
        return SMP_OK;
    graph.op = op;
    r.graph = &graph;
    r.pin = r.together = NULL;
    return try_change(h, SMP_HINT_FREE_OPS, &r, -1, "no groups, pins and cuts");
}

/* Twice the micro-batches: the pipeline fills and drains once for twice the samples. */
static smp_status hint_microbatches(hinting *h)
{
    smp_search_request r = h->base;
    if (r.options.microbatches > INT32_MAX / 2 || r.options.objective != SMP_OBJECTIVE_STEP)
        return SMP_OK;
    r.options.microbatches *= 2;
    return try_change(h, SMP_HINT_MICROBATCHES, &r, -1, "%d micro-batches instead of %d",
                      r.options.microbatches, h->base.options.microbatches);
}

/* Only where memory asks for it. */
static smp_status hint_recompute(hinting *h)
{
    smp_search_request r = h->base;
    if (r.options.recompute != SMP_RECOMPUTE_ALL || !r.graph->training)
        return SMP_OK;
    r.options.recompute = SMP_RECOMPUTE_AUTO;
    return try_change(h, SMP_HINT_RECOMPUTE, &r, -1,
                      "--recompute auto: only where memory asks for it");
}

/* Without a limit; then with as much as that took, which is what is named. */
static smp_status hint_less_recompute(hinting *h)
{
    smp_search_request r = h->base;
    char size[32], beside[SMP_BESIDE_CHARS];
    double gain;
    int64_t peak_bytes;
    if (h->result->search.best->n_recompute == 0 || r.options.recompute != SMP_RECOMPUTE_AUTO)
        return SMP_OK;
    r.options.memory_bytes = SMP_MAX_BYTES;
    SMP_TRY(plan(h, &r, -1, &gain, &peak_bytes));
    if (!(gain >= LEAST_GAIN))
        return SMP_OK;
    r.options.memory_bytes = smp__printed_bytes(size, sizeof size, peak_bytes);
    return try_change(
        h, SMP_HINT_MEMORY, &r, -1, "%s of memory per device%s, to recompute less", size,
        smp_beside_communicators(beside, h->result->plan->predicted.communicator_bytes));
}

/* A configuration that was simulated, is faster and needs a little more memory: the one that gains
 * most for its bytes. */
static smp_status hint_other(hinting *h)
{
    const smp_search_result *search = &h->result->search;
    const smp_candidate *found = NULL;
    smp_search_request r = h->base;
    char size[32], beside[SMP_BESIDE_CHARS];
    double best_worth = 0.0;
    for (int i = 0; i < search->n_tried; i++) {
        const smp_candidate *c = search->tried[i];
        double gain = gain_of(h, smp__search_time(h->request, c));
        double worth = gain / fmax((double)-c->room_bytes, 1.0);
        if (c->fits || gain < LEAST_GAIN || worth <= best_worth)
            continue;
        best_worth = worth;
        found = c;
    }
    if (!found)
        return SMP_OK;
    r.options.stages = found->pipeline;
    r.options.ddp = found->ddp;
    r.options.chunks = found->chunks;
    r.options.microbatches = found->microbatches;
    r.options.schedule = found->schedule;
    /* candidates that were tried keep no list: the search finds one again */
    r.placement = found->placement == SMP_PLACEMENT_LISTED ? SMP_PLACEMENT_AUTO : found->placement;
    r.options.memory_bytes = smp__printed_bytes(size, sizeof size, found->peak_bytes);
    return try_change(
        h, SMP_HINT_MEMORY, &r, -1,
        "%s of memory per device%s: then %d stages * %d replicas, %d micro-batches, %s fit", size,
        smp_beside_communicators(
            beside, smp__communicator_bytes(&r, found->pipeline, found->ddp, found->sharding)),
        found->pipeline * found->chunks, found->ddp, found->microbatches, found->schedule);
}

/* The same links `factor` times as fast. */
static smp_status speed_up(const hinting *h, double factor, smp_link_spec *link)
{
    double *point_us = SMP_ARENA_NEW(h->arena, double, (size_t)link->n_point);
    if (!point_us)
        return SMP_ERR_NO_MEMORY;
    for (int i = 0; i < link->n_point; i++)
        point_us[i] = link->point_us[i] / factor;
    link->point_us = point_us;
    link->latency_us /= factor;
    link->bytes_per_s *= factor;
    return SMP_OK;
}

static smp_status hint_link(hinting *h, smp_hint_kind kind, double intra, double inter,
                            const char *text)
{
    smp_cluster cluster = *h->request->cluster;
    smp_search_request r = h->base;
    SMP_TRY(speed_up(h, intra, &cluster.intra_node));
    SMP_TRY(speed_up(h, inter, &cluster.inter_node));
    r.cluster = &cluster;
    return try_change(h, kind, &r, -1, "%s", text);
}

static smp_status hint_links(hinting *h)
{
    int n = h->n;
    SMP_TRY(hint_link(h, SMP_HINT_FREE_LINKS, 1e9, 1e9,
                      "transfers and reductions that cost nothing: the most that links give"));
    if (h->n == n)
        return SMP_OK;
    SMP_TRY(hint_link(h, SMP_HINT_INTRA_LINK, 2.0, 1.0, "links within nodes twice as fast"));
    if (h->request->cluster->nodes == 1)
        return SMP_OK;
    return hint_link(h, SMP_HINT_INTER_LINK, 1.0, 2.0, "links between nodes twice as fast");
}

static int compare_hints(const void *left, const void *right)
{
    const smp_hint *a = left, *b = right;
    int order = (a->gain < b->gain) - (a->gain > b->gain);
    return order ? order : (int)a->kind - (int)b->kind;
}

static smp_status try_all(hinting *h)
{
    static const struct {
        smp_hint_kind kind;
        smp_status (*attempt)(hinting *h);
    } hints[] = {{SMP_HINT_MICROBATCHES, hint_microbatches}, {SMP_HINT_RECOMPUTE, hint_recompute},
                 {SMP_HINT_MEMORY, hint_less_recompute},     {SMP_HINT_MEMORY, hint_other},
                 {SMP_HINT_FASTER_OP, hint_faster_op},       {SMP_HINT_FREE_OPS, hint_free_ops},
                 {SMP_HINT_FREE_LINKS, hint_links}};
    for (size_t i = 0; i < sizeof hints / sizeof hints[0]; i++)
        if (h->kinds >> hints[i].kind & 1)
            SMP_TRY(hints[i].attempt(h));
    return SMP_OK;
}

smp_status smp_planner_hints(const smp_search_request *request, const smp_planner_result *result,
                             unsigned kinds, smp_hint *hint, int *n)
{
    *n = 0;
    if (request->rank_begin) /* whatever changes, its groups are those of these numbers */
        return SMP_OK;
    hinting h = {.request = request,
                 .result = result,
                 .time = smp_plan_sample_us(request, result->plan),
                 .kinds = kinds,
                 .hint = hint,
                 .arena = smp_arena_create()};
    fix_numbers(&h);
    smp_status status = h.arena ? try_all(&h) : SMP_ERR_NO_MEMORY;
    smp_arena_destroy(h.arena);
    if (status != SMP_OK)
        return status;
    qsort(hint, (size_t)h.n, sizeof *hint, compare_hints);
    *n = h.n;
    return SMP_OK;
}
