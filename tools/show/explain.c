/* Why a plan is as it is, in plain words. Linear in stages and configurations. */
#include "tools/show/explain.h"

#include <stdio.h>
#include <string.h>

#include "schedule/memory/communicators.h"
#include "tools/show/stage_table.h"
#include "tools/show/text_table.h"

enum { SHOWN_CONFIGURATIONS = 10 };

void smp_explain_splitting(const smp_plan *plan, smp_text *text)
{
    enum { MOST = 16 };
    const smp_splitting *splitting = &plan->splitting;
    const char *as[MOST];
    int count[MOST], n = 0;
    if (splitting->devices <= 1)
        return;
    smp_text_append(text, "split: %d op%s over %d devices", splitting->n_entry,
                    splitting->n_entry == 1 ? "" : "s", splitting->devices);
    for (int32_t i = 0; i < splitting->n_entry; i++) {
        int k = 0;
        while (k < n && strcmp(as[k], splitting->entry[i].as) != 0)
            k++;
        if (k == MOST)
            continue;
        if (k == n) {
            as[n] = splitting->entry[i].as;
            count[n++] = 0;
        }
        count[k]++;
    }
    for (int k = 0; k < n; k++)
        smp_text_append(text, "%s%d %s", k == 0 ? ": " : ", ", count[k], as[k]);
    smp_text_append(text, "%s\n", n == MOST ? ", ..." : "");
}

static void explain_stage(const smp_plan *plan, const smp_stage_load *load, int s, smp_text *text)
{
    char compute[32], transfer[32], again[32];
    double compute_us = load->forward_us + load->backward_us + load->recompute_us;
    bool by_compute = compute_us >= load->transfer_us;
    smp_text_append(text, "  stage %d: compute %s, transfers %s: limited by %s", s,
                    smp_format_us(compute, sizeof compute, compute_us),
                    smp_format_us(transfer, sizeof transfer, load->transfer_us),
                    by_compute ? "compute" : "transfers");
    if (load->n_op == 1)
        smp_text_append(text, ", a single op, '%s'", plan->stage[s].op[0]);
    if (load->recompute)
        smp_text_append(text, "; %s of it recompute the forward pass, for memory",
                        smp_format_us(again, sizeof again, load->recompute_us));
    smp_text_append(text, "\n");
}

int smp__slowest_rank(const smp_plan *plan, const smp_partition *partition)
{
    int rank = 0;
    for (int r = 1; r < plan->pipeline; r++)
        rank = partition->rank_us[r] > partition->rank_us[rank] ? r : rank;
    return rank;
}

void smp_explain_bottleneck(const smp_plan *plan, const smp_partition *partition, smp_text *text)
{
    char load[32];
    const int rank = smp__slowest_rank(plan, partition);
    smp_text_append(text, "bottleneck: rank %d, %s per micro-batch\n", rank,
                    smp_format_us(load, sizeof load, plan->predicted.bottleneck_us));
    for (int s = 0; s < plan->n_stage; s++)
        if (plan->stage[s].rank == rank)
            explain_stage(plan, &partition->load[s], s, text);
}

static void explain_bound(const smp_planner_result *result, smp_text *text)
{
    const smp_plan *plan = result->plan;
    char bound[32];
    smp_text_append(
        text, "bound: no pipeline of %d rank%s has a bottleneck below %s per micro-batch%s%s%s; ",
        plan->pipeline, plan->pipeline == 1 ? "" : "s",
        smp_format_us(bound, sizeof bound, plan->predicted.lower_bound_us),
        result->bound && *result->bound ? " (proven by " : "", result->bound ? result->bound : "",
        result->bound && *result->bound ? ")" : "");
    if (plan->predicted.gap <= 1e-9)
        smp_text_append(text, "this plan meets it\n");
    else
        smp_text_append(text, "this plan is %.2f %% above it\n", 100 * plan->predicted.gap);
    if (plan->predicted.step_lower_bound_us > 0.0)
        smp_text_append(
            text,
            "bound: no partition on these %d ranks, %s, has a step below %s with %d micro-batch%s; "
            "this plan is %.2f %% above it\n",
            plan->pipeline,
            result->order.taken ? "in whatever order" : "in the order of this schedule",
            smp_format_us(bound, sizeof bound, plan->predicted.step_lower_bound_us),
            plan->microbatches, plan->microbatches == 1 ? "" : "es",
            100 * plan->predicted.step_gap);
}

int smp__weight_lag(const smp_candidate *c)
{
    const smp_schedule_kind *kind = smp_schedule_find(c->schedule);
    const smp_schedule_shape shape = {.pipeline = c->pipeline,
                                      .chunks = c->chunks,
                                      .microbatches = c->microbatches,
                                      .training = true,
                                      .active = c->active};
    return kind && kind->most_lag && kind->most_lag(&shape) > 0 ? c->lag : 0;
}

static void explain_order(const smp_planner_result *result, smp_text *text)
{
    const smp_auto_outcome *order = &result->order;
    const smp_candidate *best = result->search.best;
    const int lag = smp__weight_lag(best);
    char rule[32], found[32], bound[32];
    if (best->active > 0)
        smp_text_append(text, "schedule: the rule is %s, bound to %d live micro-batches\n",
                        best->schedule, best->active);
    if (lag > 0)
        smp_text_append(text,
                        "schedule: of %s, with weight gradients of at most %d micro-batches to "
                        "come\n",
                        best->schedule, lag);
    if (lag == SMP_LAG_WHOLE)
        smp_text_append(text, "schedule: of %s, with whole backwards, for memory\n",
                        best->schedule);
    if (!order->tried)
        return;
    smp_format_us(rule, sizeof rule, order->rule_us);
    smp_format_us(found, sizeof found, order->found_us);
    smp_format_us(bound, sizeof bound, order->lower_bound_us);
    if (order->taken)
        smp_text_append(text,
                        "schedule: made for these stages, a step of %s instead of the %s of the "
                        "best rule",
                        found, rule);
    else
        smp_text_append(text, "schedule: no order saves 1 %% of the rule's step of %s", rule);
    smp_text_append(text, "; with these stages no order takes less than %s, %.1f %% less\n", bound,
                    100 * (1 - order->lower_bound_us / order->found_us));
}

/* Stages that recompute a part name it. */
static void explain_recompute(const smp_plan *plan, smp_text *text)
{
    enum { MOST = 8 };
    int n_recompute = 0;
    for (int s = 0; s < plan->n_stage; s++)
        n_recompute += smp_plan_stage_recomputes(&plan->stage[s]) > 0;
    if (n_recompute == 0)
        return;
    smp_text_append(text, "recompute: %d of %d stages, for memory\n", n_recompute, plan->n_stage);
    for (int s = 0; s < plan->n_stage; s++) {
        const smp_plan_stage *stage = &plan->stage[s];
        int32_t n = smp_plan_stage_recomputes(stage), named = 0;
        if (n == 0 || n == stage->n_op)
            continue;
        smp_text_append(
            text, "  stage %d: %d of %d ops, %.1f %% of its forward", s, (int)n, (int)stage->n_op,
            100 * stage->recompute_us / (stage->forward_us > 0 ? stage->forward_us : 1));
        for (int32_t i = 0; i < stage->n_op && named < MOST; i++)
            if (stage->recompute[i])
                smp_text_append(text, "%s %s", named++ > 0 ? "," : ":", stage->op[i]);
        smp_text_append(text, "%s\n", n > MOST ? ", ..." : "");
    }
}

/* Stages that offload a part name it. */
static void explain_offload(const smp_plan *plan, smp_text *text)
{
    enum { MOST = 8 };
    int n_offload = 0;
    char bytes[32];
    int64_t host = 0;
    for (int s = 0; s < plan->n_stage; s++)
        n_offload += smp_plan_stage_offloads(&plan->stage[s]) > 0;
    for (int r = 0; r < plan->pipeline && plan->predicted.host_bytes; r++)
        host = plan->predicted.host_bytes[r] > host ? plan->predicted.host_bytes[r] : host;
    if (plan->sharding.offload_states)
        smp_text_append(text, "offload: %s\n", smp_show_offloaded_states(plan));
    if (n_offload > 0)
        smp_text_append(text,
                        "offload: %d of %d stages, loading horizon %d; host memory of a rank at "
                        "most %s\n",
                        n_offload, plan->n_stage, plan->loading_horizon,
                        smp_format_bytes(bytes, sizeof bytes, host));
    for (int s = 0; s < plan->n_stage; s++) {
        const smp_plan_stage *stage = &plan->stage[s];
        int32_t n = smp_plan_stage_offloads(stage), named = 0;
        if (n == 0 || n == stage->n_op)
            continue;
        smp_text_append(text, "  stage %d: %d of %d ops, %s of a micro-batch", s, (int)n,
                        (int)stage->n_op,
                        smp_format_bytes(bytes, sizeof bytes, stage->offload_bytes));
        for (int32_t i = 0; i < stage->n_op && named < MOST; i++)
            if (stage->offload[i])
                smp_text_append(text, "%s %s", named++ > 0 ? "," : ":", stage->op[i]);
        smp_text_append(text, "%s\n", n > MOST ? ", ..." : "");
    }
}

/* The plan's stages in its order, with each means against memory alone. */
static smp_status explain_bought(const smp_planner_result *result, smp_text *text)
{
    enum { COLUMNS = 4 };
    static const char *const heads[COLUMNS] = {"<what it bought", "step", "peak", "<fits"};
    const smp_plan *plan = result->plan;
    smp__table t;
    int64_t highest = 0;
    if (result->n_bought == 0)
        return SMP_OK;
    for (int r = 0; r < plan->pipeline; r++)
        if (plan->predicted.peak_bytes[r] > highest)
            highest = plan->predicted.peak_bytes[r];
    SMP_TRY(smp__table_open(&t, COLUMNS, result->n_bought + 1, heads));
    for (int i = 0; i <= result->n_bought; i++) {
        const bool last = i == result->n_bought;
        const smp_bought *b = &result->bought[last ? 0 : i];
        smp__table_put(&t, "<%s%s", last ? "the plan" : b->means, last || i == 0 ? "" : " alone");
        smp__table_put_us(&t, last ? plan->predicted.step_us : b->step_us);
        smp__table_put_bytes(&t, last ? highest : b->peak_bytes);
        smp__table_put(&t, "<%s", (last ? result->room_bytes : b->room_bytes) >= 0 ? "yes" : "no");
    }
    return smp__table_print(&t, text);
}

static void explain_memory(const smp_planner_result *result, smp_text *text)
{
    const smp_plan *plan = result->plan;
    int64_t highest = 0;
    char peak[32], room[32], beside[SMP_BESIDE_CHARS];
    for (int r = 0; r < plan->pipeline; r++)
        if (plan->predicted.peak_bytes[r] > highest)
            highest = plan->predicted.peak_bytes[r];
    smp_text_append(text, "memory: peak %s, least room %s on rank %d%s\n",
                    smp_format_bytes(peak, sizeof peak, highest),
                    smp_format_bytes(room, sizeof room, result->room_bytes), result->tight_rank,
                    smp_beside_communicators(beside, plan->predicted.communicator_bytes));
    explain_recompute(plan, text);
    explain_offload(plan, text);
}

static void explain_search(const smp_search_result *search, smp_text *text)
{
    if (search->timed_out)
        smp_text_append(text, "effort: all of it was spent; more might find a better plan or prove "
                              "this one\n");
    smp_text_append(text, "search: %d configurations: %d simulated", search->n_config,
                    search->n_tried);
    if (search->n_pruned_time > 0)
        smp_text_append(text, ", %d cannot be faster", search->n_pruned_time);
    if (search->n_pruned_memory > 0)
        smp_text_append(text, ", %d cannot fit", search->n_pruned_memory);
    if (search->n_no_pipeline > 0)
        smp_text_append(text, ", %d against pins, groups or the number of ops",
                        search->n_no_pipeline);
    if (search->n_skipped > 0)
        smp_text_append(text, ", %d not looked at for want of effort", search->n_skipped);
    smp_text_append(text, "\n");
}

const char *smp__placement_word(smp_placement placement)
{
    static const char *const word[] = {
        [SMP_PLACEMENT_CLUSTER] = "cluster",
        [SMP_PLACEMENT_SPREAD] = "spread",
        [SMP_PLACEMENT_LISTED] = "listed",
    };
    return word[placement];
}

static void put_configuration(smp__table *t, const smp_candidate *c, int row)
{
    smp__table_put(t, "%d", row);
    smp__table_put(t, "%d", c->pipeline);
    smp__table_put(t, "%d", c->ddp);
    smp__table_put(t, "%d", c->chunks);
    char live[32] = "", lag[32] = "";
    const int most = smp__weight_lag(c);
    if (c->active > 0)
        snprintf(live, sizeof live, ", %d live", c->active);
    if (most > 0)
        snprintf(lag, sizeof lag, ", lag %d", most);
    if (most == SMP_LAG_WHOLE)
        snprintf(lag, sizeof lag, ", whole");
    smp__table_put(t, "<%s%s%s", c->schedule, live, lag);
    smp__table_put(t, "%d", c->microbatches);
    smp__table_put(t, "<%s", smp__placement_word(c->placement));
    double samples = c->replicas * c->microbatches * (double)c->microbatch_size;
    smp__table_put_us(t, c->step_us);
    smp__table_put(t, "%.1f", c->step_us > 0 ? 1e6 * samples / c->step_us : 0.0);
    smp__table_put_us(t, c->bottleneck_us);
    smp__table_put_bytes(t, c->peak_bytes);
    smp__table_put(t, "%d", c->n_recompute);
    smp__table_put(t, "<%s", c->fits ? "yes" : "no");
}

/* "8, weights, states in host memory" */
static void put_sharding(int shard, smp_shard_what what, bool states_away, smp_text *text)
{
    if (shard > 1)
        smp_text_append(text, "%d, %s%s", shard, smp_shard_what_name(what),
                        states_away ? ", " : "");
    else if (!states_away)
        smp_text_append(text, "none");
    if (states_away)
        smp_text_append(text, "states in host memory");
}

const char *smp__shards_miss(const smp_shard_tried *tried)
{
    if (tried->n_slow > 0)
        return "cannot be faster";
    if (tried->n_large + tried->n_tried > 0)
        return "does not fit";
    return tried->n_open > 0 ? "not looked at for want of effort" : "less in shards or away fits";
}

/* Every degree of --shard auto, and of --offload-states auto: the best of its configurations, or
 * why there is none. */
static void explain_shards(const smp_planner_result *result, smp_text *text)
{
    if (result->search.n_shard > 0)
        smp_text_append(text, "shards: taken is what %s\n",
                        result->plan->sharding.shard > 1 || result->plan->sharding.offload_states
                            ? "stands in the plan"
                            : "needs none");
    for (int i = 0; i < result->search.n_shard; i++) {
        const smp_shard_tried *tried = &result->search.shard[i];
        char peak[32];
        smp_text_append(text, "  ");
        put_sharding(tried->shard, tried->what, tried->offload_states, text);
        smp_text_append(text, ": ");
        if (tried->fits)
            smp_text_append(text, "%.1f samples/s, peak %s\n", 1e6 / tried->sample_us,
                            smp_format_bytes(peak, sizeof peak, tried->peak_bytes));
        else
            smp_text_append(text, "%s\n", smp__shards_miss(tried));
    }
}

static void explain_hidden(const smp_planner_result *result, smp_text *text)
{
    char all[32], hidden[32];
    if (result->exchange_us <= 0)
        return;
    smp_text_append(text,
                    "overlap: of %s in which groups exchange gradients, per micro-batch, weight "
                    "gradients hide %s\n",
                    smp_format_us(all, sizeof all, result->exchange_us),
                    smp_format_us(hidden, sizeof hidden, result->hidden_us));
}

smp_status smp_explain_plan(const smp_planner_result *result, smp_text *text)
{
    enum { N = 13 };
    static const char *const heads[N + 1] = {
        "#",    "pipeline",  "ddp",        "chunks", "<schedule", "m",     "<placement",
        "step", "samples/s", "bottleneck", "peak",   "recompute", "<fits", "<shards"};
    const smp_search_result *search = &result->search;
    const bool shards = search->n_shard > 0;
    const smp_partition *partition = search->best->partition;
    int shown = search->n_tried < SHOWN_CONFIGURATIONS ? search->n_tried : SHOWN_CONFIGURATIONS;
    smp__table t;
    smp_text_append(text, "solver: %s found the partition\n",
                    partition->solver && *partition->solver ? partition->solver : "-");
    smp_explain_splitting(result->plan, text);
    explain_hidden(result, text);
    smp_explain_bottleneck(result->plan, partition, text);
    explain_bound(result, text);
    explain_order(result, text);
    explain_memory(result, text);
    SMP_TRY(explain_bought(result, text));
    explain_shards(result, text);
    explain_search(search, text);
    smp_text_append(text,
                    "best %d of %d configurations (m: micro-batches; recompute: stages that do):\n",
                    shown, search->n_tried);
    SMP_TRY(smp__table_open(&t, shards ? N + 1 : N, shown, heads));
    bool whole = true;
    for (int i = 0; i < shown; i++) {
        const smp_candidate *tried = search->tried[i];
        put_configuration(&t, tried, i + 1);
        if (!shards)
            continue;
        smp_text cell = {0};
        put_sharding(tried->sharding.shard, tried->sharding.what, tried->sharding.offload_states,
                     &cell);
        smp__table_put(&t, "<%s", cell.data ? cell.data : "");
        whole &= !cell.failed;
        smp_text_free(&cell);
    }
    const smp_status status = smp__table_print(&t, text);
    return whole ? status : SMP_ERR_NO_MEMORY;
}

smp_status smp_explain_hints(const smp_search_request *request, const smp_planner_result *result,
                             smp_text *text)
{
    smp_hint hint[SMP_HINTS_MAX];
    int n = 0;
    SMP_TRY(smp_planner_hints(request, result, SMP_HINTS_ALL, hint, &n));
    smp_text_append(text, "what would help most:%s\n",
                    n == 0 ? " nothing that was tried saves 0.1 %" : "");
    for (int i = 0; i < n; i++)
        smp_text_append(text, "  %s: %.1f %% less time per sample\n", hint[i].text,
                        100 * hint[i].gain);
    return text->failed ? smp_fail_memory(text->capacity) : SMP_OK;
}
