/* From a request to a plan: costs, the search, then the winner in full,
 * put into a plan that owns copies of all it says, and verified. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/clock.h"
#include "schedule/lower/lower.h"
#include "schedule/planner/search/search.h"
#include "schedule/verify/verify.h"

/* A listed placement has every device once. */
static smp_status check_list(const smp_search_request *request)
{
    size_t n = (size_t)request->options.devices;
    if (request->placement != SMP_PLACEMENT_LISTED || request->rank_begin)
        return SMP_OK;
    bool *taken = calloc(n, sizeof *taken);
    if (!taken)
        return smp_fail_memory(n);
    bool once = true;
    for (size_t i = 0; i < n && once; i++) {
        int device = request->device[i];
        once = device >= 0 && (size_t)device < n && !taken[device];
        if (once)
            taken[device] = true;
    }
    free(taken);
    return once ? SMP_OK
                : smp_fail(SMP_ERR_INPUT, "a placement lists every device from 0 to %d once",
                           request->options.devices - 1);
}

static smp_status check_request(const smp_search_request *request)
{
    int devices = smp_cluster_devices(request->cluster);
    if (request->options.devices < 1 || request->options.devices > devices)
        return smp_fail(SMP_ERR_INPUT, "%d devices asked for, cluster '%s' has %d",
                        request->options.devices, request->cluster->name, devices);
    if (request->options.microbatch_size < 1 || request->options.microbatch_size > 1 << 20)
        return smp_fail(SMP_ERR_INPUT, "micro-batch size %lld, expected 1 to %d",
                        (long long)request->options.microbatch_size, 1 << 20);
    SMP_TRY(check_list(request));
    return smp_graph_check_kernels(request->graph);
}

/* In the plan's memory. */
static smp_status copy_splitting(smp_arena *arena, const smp_splitting *from, smp_splitting *to)
{
    smp_split_entry *entry = SMP_ARENA_NEW(arena, smp_split_entry, (size_t)from->n_entry);
    if (!entry)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < from->n_entry; i++) {
        entry[i].op = smp_arena_strdup(arena, from->entry[i].op);
        entry[i].as = smp_arena_strdup(arena, from->entry[i].as);
        if (!entry[i].op || !entry[i].as)
            return SMP_ERR_NO_MEMORY;
    }
    *to = (smp_splitting){.devices = from->devices,
                          .n_entry = from->n_entry,
                          .entry = entry,
                          .overlap = from->overlap}; /* `fewer` follows from stages */
    return SMP_OK;
}

/* Takes the programs over. */
static smp_status fill_evaluation(smp_plan *plan, const smp_search_request *request,
                                  const smp_candidate *best, smp__evaluation *evaluation)
{
    size_t n = (size_t)plan->pipeline;
    smp_program *program = SMP_ARENA_NEW(plan->arena, smp_program, n);
    int64_t *peak = SMP_ARENA_NEW(plan->arena, int64_t, n);
    int64_t *host = SMP_ARENA_NEW(plan->arena, int64_t, n);
    bool any_host = false;
    if (!program || !peak || !host)
        return SMP_ERR_NO_MEMORY;
    for (size_t r = 0; r < n; r++) {
        program[r] = evaluation->program[r];
        evaluation->program[r] = (smp_program){0};
        peak[r] = evaluation->peak_bytes[r];
        any_host |= (host[r] = evaluation->host_bytes[r]) > 0;
    }
    plan->program = program;
    const smp_partition *partition = best->partition;
    double step_us = evaluation->simulation->step_us, bound = partition->lower_bound_us;
    double samples = (double)smp_plan_microbatches(plan) * (double)plan->microbatch_size;
    plan->predicted = (smp_predicted){.step_us = step_us,
                                      .bubble = evaluation->simulation->bubble,
                                      .samples_per_s = step_us > 0 ? 1e6 * samples / step_us : 0,
                                      .bottleneck_us = partition->bottleneck_us,
                                      .lower_bound_us = bound,
                                      .gap = bound > 0 ? partition->bottleneck_us / bound - 1 : 0,
                                      .peak_bytes = peak,
                                      .host_bytes = any_host ? host : NULL,
                                      .communicator_bytes = smp__communicator_bytes(
                                          request, best->pipeline, best->ddp, best->sharding)};
    return SMP_OK;
}

/* What of the exchanges the plan's own stages and programs do not hide. */
static smp_status expose(smp_plan *plan, const smp__planner *planner, const smp_candidate *best)
{
    double *us = SMP_ARENA_NEW(plan->arena, double, (size_t)plan->n_stage);
    if (!us)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(
        smp__planner_expose(planner, best, plan->program, us, (double *)plan->backward_input_us));
    for (int s = 0; s < plan->n_stage; s++)
        ((smp_plan_stage *)plan->stage)[s].backward_us += us[s];
    return SMP_OK;
}

static smp_status add_waits(smp_plan *plan, const smp_graph *graph, const smp_partition *partition)
{
    smp_predicted *predicted = &plan->predicted;
    smp_flow *flow = NULL;
    if (plan->cluster->scatter <= 0.0 || predicted->step_us <= 0.0)
        return SMP_OK;
    SMP_TRY(smp_flow_build(graph, partition->stage, plan->n_stage, plan->microbatch_size, &flow));
    smp_status status =
        smp_simulate_waits(plan, graph, flow, predicted->step_us, &predicted->waits_us);
    smp_flow_destroy(flow);
    predicted->samples_per_s *= predicted->step_us / (predicted->step_us + predicted->waits_us);
    return status;
}

/* What is known of a GPU besides costs: from the profile, else from a plan that is kept, which is
 * where the graph has its products from. */
static smp_status fill_device(smp_plan *plan, const smp_search_request *request)
{
    const smp_profile *profile = request->profile;
    const smp_gemm_choices *products = request->graph->products;
    const smp_backend_traits *backend = smp_backend_of(request->graph->target);
    if (backend->own_memory)
        plan->library_bytes = profile ? profile->library_bytes : request->library_bytes;
    return backend->picks_gemms && products
               ? smp_gemm_choices_copy(products, plan->arena, &plan->products)
               : SMP_OK;
}

static smp_status copy_settings(smp_settings settings, smp_arena *arena, smp_settings *out)
{
    const char **text = SMP_ARENA_NEW(arena, const char *, (size_t)settings.n);
    if (!text)
        return SMP_ERR_NO_MEMORY;
    for (int i = 0; i < settings.n; i++)
        if (!(text[i] = smp_arena_strdup(arena, settings.text[i])))
            return SMP_ERR_NO_MEMORY;
    *out = (smp_settings){.n = settings.n, .text = text};
    return SMP_OK;
}

static smp_status fill_plan(smp_plan *plan, const smp__planner *planner, const char *model_path,
                            const smp_candidate *best, smp__evaluation *evaluation)
{
    const smp_graph *graph = planner->request.graph;
    plan->model_path = smp_arena_strdup(plan->arena, model_path);
    plan->model_name = smp_arena_strdup(plan->arena, graph->name);
    plan->schedule = smp_arena_strdup(plan->arena, best->schedule);
    if (!plan->model_path || !plan->model_name || !plan->schedule)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(copy_settings(smp_graph_whole(graph)->settings, plan->arena, &plan->settings));
    plan->fingerprint = graph->fingerprint;
    plan->devices = best->pipeline * best->ddp;
    plan->pipeline = best->pipeline;
    plan->ddp = best->ddp;
    plan->chunks = best->chunks;
    if (planner->request.splitting.devices > 1)
        SMP_TRY(copy_splitting(plan->arena, &planner->request.splitting, &plan->splitting));
    SMP_TRY(smp_freezing_of(graph, plan->arena, &plan->freezing));
    plan->placement = planner->request.rank_begin ? SMP_PLACEMENT_CLUSTER : best->placement;
    if (plan->placement == SMP_PLACEMENT_LISTED) {
        int *device = SMP_ARENA_NEW(plan->arena, int, (size_t)plan->devices);
        if (!device)
            return SMP_ERR_NO_MEMORY;
        memcpy(device, best->device, (size_t)plan->devices * sizeof *device);
        plan->device = device;
    }
    plan->microbatches = best->microbatches;
    plan->microbatch_size = best->microbatch_size;
    plan->sharding = smp__candidate_sharding(planner, best);
    plan->gradient_blocks = smp__planner_blocks(planner, best->ddp);
    plan->training = graph->training;
    plan->target = graph->target;
    SMP_TRY(fill_device(plan, &planner->request));
    plan->n_stage = best->partition->n_stage;
    plan->optimizer_bytes_per_s = planner->costs->optimizer_bytes_per_s;
    SMP_TRY(fill_evaluation(plan, &planner->request, best, evaluation));
    if (planner->held.any_travels)
        plan->loading_horizon = best->horizon;
    SMP_TRY(smp_plan_set_stages(plan, graph, best->partition, best->stage_rank, best->offload,
                                planner->held.offload_bytes));
    if (planner->request.rank_begin)
        SMP_TRY(smp_plan_set_groups(plan, planner->request.rank_begin));
    if (planner->request.profile)
        SMP_TRY(smp_plan_split_backward(planner->costs, best->partition->stage, plan));
    plan->predicted.error = planner->costs->error;
    plan->predicted.costs = smp_arena_strdup(plan->arena, planner->costs->source);
    if (!plan->predicted.costs)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(expose(plan, planner, best));
    SMP_TRY(smp_cluster_copy(planner->request.cluster, plan->arena, &plan->cluster));
    return planner->trial ? SMP_OK : add_waits(plan, graph, best->partition);
}

smp_status smp__planner_write(const smp__planner *planner, const char *model_path,
                              const smp_candidate *candidate, smp__evaluation *evaluation,
                              smp_plan **out)
{
    smp_arena *arena = smp_arena_create();
    smp_plan *plan = arena ? SMP_ARENA_NEW(arena, smp_plan, 1) : NULL;
    if (!plan) {
        smp_arena_destroy(arena);
        return SMP_ERR_NO_MEMORY;
    }
    plan->arena = arena;
    smp_status status = fill_plan(plan, planner, model_path, candidate, evaluation);
    if (status == SMP_OK)
        *out = plan;
    else
        smp_plan_destroy(plan);
    return status;
}

static void set_step_bound(smp_predicted *predicted, double bound_us)
{
    predicted->step_lower_bound_us = fmin(bound_us, predicted->step_us); /* but for rounding */
    if (predicted->step_lower_bound_us > 0.0)
        predicted->step_gap = predicted->step_us / predicted->step_lower_bound_us - 1.0;
}

/* In the plan's stages and programs. */
static smp_status sum_hidden(const smp__planner *planner, const smp_plan *plan,
                             smp_planner_result *result)
{
    const smp_costs *costs = planner->costs;
    if (!costs->hidden_us)
        return SMP_OK;
    double *us = SMP_ARENA_NEW(plan->arena, double, (size_t)plan->n_stage);
    if (!us)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(smp__planner_expose(planner, result->search.best, plan->program, us, NULL));
    for (int32_t op = 0; op < costs->n_op; op++) {
        result->exchange_us += costs->exchange_us[op];
        result->hidden_us += costs->hidden_us[op];
    }
    for (int s = 0; s < plan->n_stage; s++)
        result->hidden_us -= us[s];
    return SMP_OK;
}

static smp_status fill_result(const smp__planner *planner, const char *model_path,
                              smp__evaluation *evaluation, smp_planner_result *result)
{
    smp_plan *plan;
    SMP_TRY(smp__planner_write(planner, model_path, result->search.best, evaluation, &plan));
    if (result->order.taken)
        plan->schedule = smp__schedule_auto.name;
    result->bound = result->search.best->partition->bound;
    set_step_bound(&plan->predicted,
                   result->search.best->step_bound_us[result->order.taken ? 1 : 0]);
    smp_status status = sum_hidden(planner, plan, result);
    if (status == SMP_OK && !planner->trial)
        status = smp_fail_context(smp_verify(plan, planner->request.graph), "the plan just made");
    if (status == SMP_OK)
        result->plan = plan;
    else
        smp_plan_destroy(plan);
    return status;
}

static double sample_us(const smp_candidate *candidate, const smp__evaluation *evaluation)
{
    return evaluation->simulation->step_us / candidate->microbatches / candidate->replicas;
}

/* A rule gets the most out of the winner; an order made for another candidate may be better still:
 * then that takes its place. */
static smp_status try_other(smp__planner *planner, smp_search_result *search, smp_candidate **place,
                            smp__evaluation *evaluation, smp_auto_outcome *order)
{
    smp_candidate *candidate = *place;
    smp__evaluation other;
    smp_auto_outcome own;
    SMP_TRY(smp__planner_evaluate(planner, candidate, NULL, true, &other));
    smp_status status = smp__planner_auto(planner, candidate, &other, &own);
    if (status == SMP_OK && own.taken &&
        sample_us(candidate, &other) < sample_us(search->best, evaluation)) {
        smp__evaluation worse = *evaluation;
        *evaluation = other;
        other = worse;
        if (candidate->active == search->best->active && candidate->lag == search->best->lag)
            own.rule_us = order->rule_us;
        *place = search->best;
        search->best = candidate;
        *order = own;
    }
    smp__evaluation_free(&other);
    return status;
}

/* The compute actions of programs, lowered again with what travels of what the planner holds. */
static smp_status lower_again(const smp__planner *planner, const smp_candidate *candidate,
                              const smp_program *from, smp_program *to)
{
    const size_t n = (size_t)candidate->pipeline;
    const smp_schedule_shape shape = smp__held_shape(planner, candidate);
    smp_program *order = calloc(n, sizeof *order);
    smp_status status = order ? SMP_OK : smp_fail_memory(n * sizeof *order);
    for (size_t r = 0; status == SMP_OK && r < n; r++)
        for (int64_t i = 0; status == SMP_OK && i < from[r].n; i++) {
            const smp_action *a = &from[r].action[i];
            if (smp_action_is_compute(a->kind))
                status = smp_program_push(&order[r], a->kind, a->microbatch, a->chunk);
        }
    if (status == SMP_OK)
        status = smp_lower_orders(&shape, candidate->stage_rank, planner->held.flow, order, to);
    for (size_t r = 0; order && r < n; r++)
        smp_program_free(&order[r]);
    free(order);
    return status;
}

/* The candidate in the order of these programs. */
static smp_status note_bought(smp__planner *planner, const smp_candidate *candidate,
                              const smp_program *from, const char *means,
                              smp_planner_result *result)
{
    smp__evaluation evaluation = {0};
    smp_bought *bought = &result->bought[result->n_bought];
    int tight_rank;
    smp_program *program = calloc((size_t)candidate->pipeline, sizeof *program);
    smp_status status = program
                            ? smp__planner_hold(planner, candidate->partition, candidate->offload)
                            : smp_fail_memory((size_t)candidate->pipeline * sizeof *program);
    if (status == SMP_OK)
        status = lower_again(planner, candidate, from, program);
    if (status == SMP_OK)
        status = smp__planner_evaluate(planner, candidate, program, false, &evaluation);
    if (status == SMP_OK) {
        *bought = (smp_bought){.means = means,
                               .step_us = evaluation.simulation->step_us,
                               .room_bytes = smp__planner_room(planner, candidate,
                                                               evaluation.peak_bytes, &tight_rank)};
        for (int r = 0; r < candidate->pipeline; r++)
            if (bought->peak_bytes < evaluation.peak_bytes[r])
                bought->peak_bytes = evaluation.peak_bytes[r];
        result->n_bought++;
    }
    for (int r = 0; program && r < candidate->pipeline; r++)
        smp_program_free(&program[r]);
    free(program);
    smp__evaluation_free(&evaluation);
    return status;
}

static const char *const means_names[SMP_N_MEANS] = {
    [SMP_MEANS_NONE] = "nothing",    [SMP_MEANS_RECOMPUTE] = "recompute",
    [SMP_MEANS_OFFLOAD] = "offload", [SMP_MEANS_STATES] = "states in host memory",
    [SMP_MEANS_SHARDS] = "shards",
};

/* What each of the winner's means does for it alone. */
static smp_status find_bought(smp__planner *planner, const smp__evaluation *evaluation,
                              smp_planner_result *result)
{
    const smp_candidate *best = result->search.best;
    const bool has[SMP_N_MEANS] = {
        [SMP_MEANS_NONE] = true,
        [SMP_MEANS_RECOMPUTE] = best->n_recompute > 0,
        [SMP_MEANS_OFFLOAD] = best->n_offload > 0,
        [SMP_MEANS_STATES] = best->sharding.offload_states,
        [SMP_MEANS_SHARDS] = best->sharding.shard > 1,
    };
    const size_t n_stage = (size_t)best->partition->n_stage;
    smp_partition kept = *best->partition;
    smp_status status = SMP_OK;
    int n_means = 0;
    for (int m = 0; m < SMP_N_MEANS; m++)
        n_means += has[m];
    if (planner->trial || n_means == 1)
        return SMP_OK;
    kept.recompute = calloc((size_t)planner->request.graph->n_op + 1, sizeof *kept.recompute);
    kept.load = calloc(n_stage, sizeof *kept.load);
    if (!kept.recompute || !kept.load)
        status = smp_fail_memory(n_stage * sizeof *kept.load);
    for (size_t s = 0; status == SMP_OK && s < n_stage; s++) {
        kept.load[s] = best->partition->load[s];
        kept.load[s].recompute_us = 0.0;
        kept.load[s].recompute_bytes = 0;
    }
    for (int m = 0; status == SMP_OK && m < SMP_N_MEANS; m++) {
        smp_candidate now = *best;
        now.partition = m == SMP_MEANS_RECOMPUTE ? best->partition : &kept;
        now.offload = m == SMP_MEANS_OFFLOAD ? best->offload : NULL;
        now.sharding.shard = m == SMP_MEANS_SHARDS ? best->sharding.shard : 1;
        now.sharding.offload_states = m == SMP_MEANS_STATES;
        if (has[m])
            status = note_bought(planner, &now, evaluation->program, means_names[m], result);
    }
    free(kept.recompute);
    free(kept.load);
    return status;
}

/* The winner of the search in full, under its rule or an order of its own. */
static smp_status make_plan(smp__planner *planner, const char *model_path,
                            smp_planner_result *result)
{
    smp__evaluation evaluation;
    SMP_TRY(smp__planner_evaluate(planner, result->search.best, NULL, true, &evaluation));
    smp_status status = SMP_OK;
    result->order = (smp_auto_outcome){.rule_us = evaluation.simulation->step_us};
    if (!smp__is_brief(planner))
        status = smp__planner_auto(planner, result->search.best, &evaluation, &result->order);
    for (int i = 0; i < 2 && status == SMP_OK; i++)
        if (result->search.other[i] && result->order.tried)
            status = try_other(planner, &result->search, &result->search.other[i], &evaluation,
                               &result->order);
    result->room_bytes =
        smp__planner_room(planner, result->search.best, evaluation.peak_bytes, &result->tight_rank);
    if (status == SMP_OK)
        status = find_bought(planner, &evaluation, result);
    if (status == SMP_OK) /* others may have been looked at since */
        status = smp__planner_hold(planner, result->search.best->partition,
                                   result->search.best->offload);
    if (status == SMP_OK)
        status = fill_result(planner, model_path, &evaluation, result);
    smp__evaluation_free(&evaluation);
    return status;
}

static smp_status make_op_faster(smp_costs *costs, int32_t op)
{
    size_t n = (size_t)costs->n_op;
    smp_op_cost *cost = SMP_ARENA_NEW(costs->arena, smp_op_cost, n);
    if (!cost)
        return SMP_ERR_NO_MEMORY;
    memcpy(cost, costs->op, n * sizeof *cost);
    cost[op].forward_us *= 0.5;
    cost[op].backward_us *= 0.5;
    cost[op].backward_input_us *= 0.5;
    costs->op = cost;
    return SMP_OK;
}

smp_status smp__plan_search(const smp_search_request *request, const char *model_path,
                            const smp__trial *trial, smp__nearest *nearest, smp_planner_result *out)
{
    smp__planner planner;
    smp_planner_result result = {0};
    double begin_s = smp_work_s();
    SMP_TRY(check_request(request));
    SMP_TRY(smp__planner_open(request, &planner));
    planner.trial = trial;
    if (trial && trial->faster_op >= 0) {
        smp_status status = make_op_faster(planner.costs, trial->faster_op);
        if (status != SMP_OK) {
            smp__planner_close(&planner);
            return status;
        }
    }
    snprintf(result.cost_source, sizeof result.cost_source, "%s", planner.costs->source);
    smp_status status = smp__search_run(&planner, &result.search);
    if (status == SMP_OK)
        status = make_plan(&planner, model_path, &result);
    if (status == SMP_OK)
        result.active_microbatches = result.order.taken ? 0 : result.search.best->active;
    *nearest = planner.nearest;
    if (trial && trial->left_out)
        *trial->left_out = planner.left_out;
    smp__planner_close(&planner);
    result.planning_s = smp_work_s() - begin_s;
    if (status == SMP_OK)
        *out = result;
    else
        smp_planner_result_destroy(&result);
    return status;
}

smp_status smp__plan_try(const smp_search_request *request, const smp__trial *trial,
                         smp_planner_result *out, bool *found)
{
    smp__nearest ignored;
    smp_status status = smp__plan_search(request, "", trial, &ignored, out);
    *found = status == SMP_OK;
    return status == SMP_ERR_NO_FIT || status == SMP_ERR_INPUT ? SMP_OK : status;
}

void smp_planner_result_destroy(smp_planner_result *result)
{
    smp_plan_destroy(result->plan);
    smp_search_result_destroy(&result->search);
    *result = (smp_planner_result){0};
}
