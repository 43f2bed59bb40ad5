/* Why a plan is as it is, as one JSON object: the parts of explain.c and explain_tensor.c, each
 * under a key of its own (README.md beside this file). Linear in stages and configurations. */
#include <inttypes.h>
#include <string.h>

#include "tools/show/explain.h"
#include "tools/show/picture.h"

/* A key or an item, after a comma unless it is the first of its object or list. */
static void put_next(smp_text *json)
{
    const char last = json->length > 0 ? json->data[json->length - 1] : '{';
    if (last != '{' && last != '[')
        smp_text_append(json, ", ");
}

static void put_name(smp_text *json, const char *key)
{
    put_next(json);
    smp_text_append(json, "\"%s\": ", key);
}

static void put_integer(smp_text *json, const char *key, int64_t value)
{
    put_name(json, key);
    smp_text_append(json, "%" PRId64, value);
}

static void put_number(smp_text *json, const char *key, double value)
{
    put_name(json, key);
    smp_text_append_double(json, value);
}

static void put_truth(smp_text *json, const char *key, bool value)
{
    put_name(json, key);
    smp_text_append(json, value ? "true" : "false");
}

static void put_words(smp_text *json, const char *key, const char *value)
{
    put_name(json, key);
    smp_text_append_quoted(json, value);
}

static void open_part(smp_text *json, const char *key, char bracket)
{
    put_name(json, key);
    smp_text_append(json, "%c", bracket);
}

static void open_item(smp_text *json)
{
    put_next(json);
    smp_text_append(json, "{");
}

static void close_part(smp_text *json, char bracket)
{
    smp_text_append(json, "%c", bracket);
}

/* What fits has a rate and a peak, what does not has neither. */
static void put_outcome(smp_text *json, bool fits, double sample_us, int64_t peak_bytes,
                        const char *why_not)
{
    if (fits) {
        put_number(json, "samples_per_s", 1e6 / sample_us);
        put_integer(json, "peak_bytes", peak_bytes);
    }
    put_words(json, "outcome", fits ? "fits" : why_not);
}

static void put_splittings(const smp_tensor_result *made, smp_text *json)
{
    if (made->n_tried <= 1)
        return;
    open_part(json, "splittings", '[');
    for (int i = 0; i < made->n_tried; i++) {
        const smp_tensor_tried *tried = &made->tried[i];
        open_item(json);
        put_integer(json, "tensor", tried->tensor);
        if (tried->least > 0) {
            put_integer(json, "least_tensor", tried->least);
        } else if (tried->tensor > 1) {
            put_number(json, "memory_counts", tried->memory_price);
            put_truth(json, "all_compared", tried->exact);
        }
        put_integer(json, "ops_split", tried->n_split);
        put_integer(json, "ops_in_pieces", tried->n_pieces);
        put_outcome(json, tried->fits, tried->sample_us, tried->peak_bytes,
                    smp__splitting_miss(tried));
        close_part(json, '}');
    }
    close_part(json, ']');
}

/* As the lines of text that stand for it there. */
static smp_status put_lines(smp_text *json, const char *key, const smp_text *text)
{
    open_part(json, key, '[');
    for (char *line = text->data; line && *line;) {
        char *end = strchr(line, '\n');
        if (end)
            *end = '\0';
        put_next(json);
        smp_text_append_quoted(json, line);
        line = end ? end + 1 : NULL;
    }
    close_part(json, ']');
    return text->failed ? smp_fail_memory(text->capacity) : SMP_OK;
}

static void put_split(const smp_plan *plan, smp_text *json)
{
    const smp_splitting *splitting = &plan->splitting;
    if (splitting->devices <= 1)
        return;
    open_part(json, "split", '{');
    put_integer(json, "devices", splitting->devices);
    open_part(json, "ops", '{');
    for (int32_t i = 0; i < splitting->n_entry; i++) {
        int32_t count = 0, first = 0;
        while (strcmp(splitting->entry[first].as, splitting->entry[i].as) != 0)
            first++;
        for (int32_t k = i; first == i && k < splitting->n_entry; k++)
            count += strcmp(splitting->entry[k].as, splitting->entry[i].as) == 0;
        if (first == i)
            put_integer(json, splitting->entry[i].as, count);
    }
    close_part(json, '}');
    close_part(json, '}');
}

static void put_bottleneck(const smp_plan *plan, const smp_partition *partition, smp_text *json)
{
    const int rank = smp__slowest_rank(plan, partition);
    open_part(json, "bottleneck", '{');
    put_integer(json, "rank", rank);
    put_number(json, "us", plan->predicted.bottleneck_us);
    open_part(json, "stages", '[');
    for (int s = 0; s < plan->n_stage; s++) {
        const smp_stage_load *load = &partition->load[s];
        const double compute_us = load->forward_us + load->backward_us + load->recompute_us;
        if (plan->stage[s].rank != rank)
            continue;
        open_item(json);
        put_integer(json, "stage", s);
        put_integer(json, "ops", load->n_op);
        put_number(json, "compute_us", compute_us);
        put_number(json, "transfer_us", load->transfer_us);
        put_number(json, "recompute_us", load->recompute ? load->recompute_us : 0.0);
        put_words(json, "limited_by", compute_us >= load->transfer_us ? "compute" : "transfers");
        close_part(json, '}');
    }
    close_part(json, ']');
    close_part(json, '}');
}

static void put_bounds(const smp_planner_result *result, smp_text *json)
{
    const smp_predicted *is = &result->plan->predicted;
    open_part(json, "bounds", '{');
    put_number(json, "bottleneck_us", is->lower_bound_us);
    put_number(json, "gap", is->gap);
    put_words(json, "proven_by", result->bound ? result->bound : "");
    if (is->step_lower_bound_us > 0.0) {
        put_number(json, "step_us", is->step_lower_bound_us);
        put_number(json, "step_gap", is->step_gap);
    }
    close_part(json, '}');
}

static void put_order(const smp_planner_result *result, smp_text *json)
{
    const smp_auto_outcome *order = &result->order;
    const smp_candidate *best = result->search.best;
    const int lag = smp__weight_lag(best);
    open_part(json, "schedule", '{');
    put_words(json, "rule", best->schedule);
    if (best->active > 0)
        put_integer(json, "active_microbatches", best->active);
    if (lag == SMP_LAG_WHOLE)
        put_truth(json, "whole_backwards", true);
    else if (lag > 0)
        put_integer(json, "weight_lag", lag);
    if (order->tried) {
        open_part(json, "searched", '{');
        put_truth(json, "taken", order->taken);
        put_number(json, "rule_us", order->rule_us);
        put_number(json, "found_us", order->found_us);
        put_number(json, "lower_bound_us", order->lower_bound_us);
        close_part(json, '}');
    }
    close_part(json, '}');
}

/* Stages of which something recomputes, or travels. */
static void put_stages(const smp_plan *plan, const char *key, bool travels, smp_text *json)
{
    open_part(json, key, '[');
    for (int s = 0; s < plan->n_stage; s++) {
        const smp_plan_stage *stage = &plan->stage[s];
        const bool *which = travels ? stage->offload : stage->recompute;
        const int32_t n =
            travels ? smp_plan_stage_offloads(stage) : smp_plan_stage_recomputes(stage);
        if (n == 0)
            continue;
        open_item(json);
        put_integer(json, "stage", s);
        if (travels)
            put_integer(json, "bytes", stage->offload_bytes);
        else
            put_number(json, "us", stage->recompute_us);
        open_part(json, "ops", '[');
        for (int32_t i = 0; i < stage->n_op; i++) {
            if (!which[i])
                continue;
            put_next(json);
            smp_text_append_quoted(json, stage->op[i]);
        }
        close_part(json, ']');
        close_part(json, '}');
    }
    close_part(json, ']');
}

static void put_memory(const smp_planner_result *result, smp_text *json)
{
    const smp_plan *plan = result->plan;
    int64_t highest = 0, host = 0;
    for (int r = 0; r < plan->pipeline; r++) {
        const int64_t area_bytes = plan->predicted.host_bytes ? plan->predicted.host_bytes[r] : 0;
        highest = plan->predicted.peak_bytes[r] > highest ? plan->predicted.peak_bytes[r] : highest;
        host = area_bytes > host ? area_bytes : host;
    }
    open_part(json, "memory", '{');
    put_integer(json, "peak_bytes", highest);
    put_integer(json, "room_bytes", result->room_bytes);
    put_integer(json, "rank", result->tight_rank);
    close_part(json, '}');
    put_stages(plan, "recompute", false, json);
    open_part(json, "offload", '{');
    put_truth(json, "states", plan->sharding.offload_states);
    put_integer(json, "host_bytes", host);
    put_stages(plan, "stages", true, json);
    close_part(json, '}');
    open_part(json, "bought", '[');
    for (int i = 0; i < result->n_bought; i++) {
        const smp_bought *bought = &result->bought[i];
        open_item(json);
        put_words(json, "means", bought->means);
        put_number(json, "step_us", bought->step_us);
        put_integer(json, "peak_bytes", bought->peak_bytes);
        put_truth(json, "fits", bought->room_bytes >= 0);
        close_part(json, '}');
    }
    close_part(json, ']');
}

static void put_sharding(int shard, smp_shard_what what, bool states_away, smp_text *json)
{
    put_integer(json, "shard", shard > 1 ? shard : 1);
    if (shard > 1)
        put_words(json, "shard_what", smp_shard_what_name(what));
    put_truth(json, "offload_states", states_away);
}

static void put_shards(const smp_search_result *search, smp_text *json)
{
    if (search->n_shard == 0)
        return;
    open_part(json, "shards", '[');
    for (int i = 0; i < search->n_shard; i++) {
        const smp_shard_tried *tried = &search->shard[i];
        open_item(json);
        put_sharding(tried->shard, tried->what, tried->offload_states, json);
        put_outcome(json, tried->fits, tried->sample_us, tried->peak_bytes,
                    smp__shards_miss(tried));
        close_part(json, '}');
    }
    close_part(json, ']');
}

static void put_search(const smp_search_result *search, smp_text *json)
{
    open_part(json, "search", '{');
    put_integer(json, "configurations", search->n_config);
    put_integer(json, "simulated", search->n_tried);
    put_integer(json, "cannot_be_faster", search->n_pruned_time);
    put_integer(json, "cannot_fit", search->n_pruned_memory);
    put_integer(json, "against_pins", search->n_no_pipeline);
    put_integer(json, "not_looked_at", search->n_skipped);
    put_truth(json, "timed_out", search->timed_out);
    close_part(json, '}');
}

static void put_configurations(const smp_search_result *search, smp_text *json)
{
    open_part(json, "configurations", '[');
    for (int i = 0; i < search->n_tried && i < SMP_SEARCH_LISTED; i++) {
        const smp_candidate *c = search->tried[i];
        const double samples = c->replicas * c->microbatches * (double)c->microbatch_size;
        open_item(json);
        put_integer(json, "pipeline", c->pipeline);
        put_integer(json, "ddp", c->ddp);
        put_integer(json, "chunks", c->chunks);
        put_words(json, "schedule", c->schedule);
        put_integer(json, "active_microbatches", c->active);
        put_integer(json, "weight_lag", smp__weight_lag(c));
        put_integer(json, "microbatches", c->microbatches);
        put_words(json, "placement", smp__placement_word(c->placement));
        put_sharding(c->sharding.shard, c->sharding.what, c->sharding.offload_states, json);
        put_number(json, "step_us", c->step_us);
        put_number(json, "samples_per_s", c->step_us > 0 ? 1e6 * samples / c->step_us : 0.0);
        put_number(json, "bottleneck_us", c->bottleneck_us);
        put_integer(json, "peak_bytes", c->peak_bytes);
        put_integer(json, "stages_that_recompute", c->n_recompute);
        put_truth(json, "fits", c->fits);
        close_part(json, '}');
    }
    close_part(json, ']');
}

static smp_status put_hints(const smp_tensor_result *made, smp_text *json)
{
    smp_hint hint[SMP_HINTS_MAX];
    int n = 0;
    SMP_TRY(smp_planner_hints(&made->request, &made->result, SMP_HINTS_ALL, hint, &n));
    open_part(json, "hints", '[');
    for (int i = 0; i < n; i++) {
        open_item(json);
        put_words(json, "change", hint[i].text);
        put_number(json, "gain", hint[i].gain);
        close_part(json, '}');
    }
    close_part(json, ']');
    return SMP_OK;
}

/* What holds of any plan: how ops are split, what limits it, the drawing. */
static smp_status put_plan(const smp_plan *plan, const smp_partition *partition,
                           const smp_graph *graph, smp_text *json)
{
    smp_text drawn = {0};
    put_split(plan, json);
    put_bottleneck(plan, partition, json);
    smp_status status = smp_plan_draw_text(plan, graph, 0, &drawn);
    if (status == SMP_OK)
        status = put_lines(json, "drawing", &drawn);
    smp_text_free(&drawn);
    return status;
}

/* The last bracket of the plan's object makes room for another key. */
static void open_explanation(smp_text *json)
{
    char *last = json->data ? strrchr(json->data, '}') : NULL;
    if (last) {
        *last = '\0';
        json->length = (size_t)(last - json->data);
    }
    open_part(json, "explanation", '{');
}

static smp_status close_explanation(smp_text *json, smp_status status)
{
    smp_text_append(json, "}}\n");
    return status == SMP_OK && json->failed ? smp_fail_memory(json->capacity) : status;
}

smp_status smp_explain_json(const smp_tensor_result *made, smp_text *json)
{
    const smp_planner_result *result = &made->result;
    const smp_search_result *search = &result->search;
    const char *solver = search->best->partition->solver;
    open_explanation(json);
    if (made->n_lean > 0)
        put_integer(json, "products_without_workspace", made->n_lean);
    put_splittings(made, json);
    put_words(json, "solver", solver ? solver : "");
    put_words(json, "costs", result->cost_source);
    if (result->exchange_us > 0.0) {
        open_part(json, "overlap", '{');
        put_number(json, "exchange_us", result->exchange_us);
        put_number(json, "hidden_us", result->hidden_us);
        close_part(json, '}');
    }
    put_bounds(result, json);
    put_order(result, json);
    put_memory(result, json);
    put_shards(search, json);
    put_search(search, json);
    put_configurations(search, json);
    smp_status status = put_hints(made, json);
    if (status == SMP_OK)
        status = put_plan(result->plan, search->best->partition, made->request.graph, json);
    return close_explanation(json, status);
}

smp_status smp_explain_checked_json(const smp_plan *plan, const smp_partition *partition,
                                    const smp_graph *graph, smp_text *json)
{
    open_explanation(json);
    return close_explanation(json, put_plan(plan, partition, graph, json));
}
