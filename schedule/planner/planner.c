/* From a request to a plan: costs, the search, then the winner in full,
 * put into a plan that owns copies of all it says, and verified. */
#include "graph/base/clock.h"
#include "schedule/planner/planner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "schedule/planner/planner_build.h"
#include "schedule/verify/verify.h"

smp_status smp__at_numbers(const smp_search_request *request, smp_status status)
{
    const smp_where where = request->numbers_where;
    if (!where.file || (status != SMP_ERR_INPUT && status != SMP_ERR_NO_FIT))
        return status;
    return smp_fail_context(status, "%s:%d:%d", where.file, where.line, where.column);
}

/* A listed placement has every device once. */
static smp_status check_list(const smp_search_request *request)
{
    size_t n = (size_t)request->devices;
    if (request->placement != SMP_PLACEMENT_LISTED)
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
                           request->devices - 1);
}

static smp_status check_request(const smp_search_request *request)
{
    int devices = smp_cluster_devices(request->cluster);
    if (request->devices < 1 || request->devices > devices)
        return smp_fail(SMP_ERR_INPUT, "%d devices asked for, cluster '%s' has %d",
                        request->devices, request->cluster->name, devices);
    if (request->microbatch_size < 1 || request->microbatch_size > 1 << 20)
        return smp_fail(SMP_ERR_INPUT, "micro-batch size %lld, expected 1 to %d",
                        (long long)request->microbatch_size, 1 << 20);
    SMP_TRY(check_list(request));
    return smp_graph_check_kernels(request->graph);
}

static smp_status copy_link(smp_arena *arena, const smp_link_spec *from, smp_link_spec *to)
{
    size_t n = from->n_point > 0 ? (size_t)from->n_point : 0;
    int64_t *bytes = SMP_ARENA_NEW(arena, int64_t, n);
    double *us = SMP_ARENA_NEW(arena, double, n);
    if (!bytes || !us)
        return SMP_ERR_NO_MEMORY;
    for (size_t i = 0; i < n; i++) {
        bytes[i] = from->point_bytes[i];
        us[i] = from->point_us[i];
    }
    *to = *from;
    to->point_bytes = bytes;
    to->point_us = us;
    return SMP_OK;
}

static smp_status copy_cluster(smp_arena *arena, const smp_cluster *from, const smp_cluster **out)
{
    size_t n = (size_t)smp_cluster_devices(from);
    smp_cluster *to = SMP_ARENA_NEW(arena, smp_cluster, 1);
    smp_device_spec *device = SMP_ARENA_NEW(arena, smp_device_spec, n);
    if (!to || !device)
        return SMP_ERR_NO_MEMORY;
    *to = *from;
    to->arena = NULL;
    to->device = device;
    if (!(to->name = smp_arena_strdup(arena, from->name)))
        return SMP_ERR_NO_MEMORY;
    for (size_t d = 0; d < n; d++) {
        bool same = d > 0 && strcmp(from->device[d].name, from->device[d - 1].name) == 0;
        device[d] = from->device[d];
        device[d].name = same ? device[d - 1].name : smp_arena_strdup(arena, from->device[d].name);
        if (!device[d].name)
            return SMP_ERR_NO_MEMORY;
    }
    SMP_TRY(copy_link(arena, &from->intra_node, &to->intra_node));
    SMP_TRY(copy_link(arena, &from->inter_node, &to->inter_node));
    *out = to;
    return SMP_OK;
}

/* Takes the programs over. */
static smp_status fill_evaluation(smp_plan *plan, const smp_candidate *best,
                                  smp__evaluation *evaluation)
{
    size_t n = (size_t)plan->pipeline;
    smp_program *program = SMP_ARENA_NEW(plan->arena, smp_program, n);
    int64_t *peak = SMP_ARENA_NEW(plan->arena, int64_t, n);
    if (!program || !peak)
        return SMP_ERR_NO_MEMORY;
    for (size_t r = 0; r < n; r++) {
        program[r] = evaluation->program[r];
        evaluation->program[r] = (smp_program){0};
        peak[r] = evaluation->peak_bytes[r];
    }
    plan->program = program;
    const smp_partition *partition = best->partition;
    double step_us = evaluation->simulation->step_us, bound = partition->lower_bound_us;
    double samples = (double)plan->ddp * plan->microbatches * (double)plan->microbatch_size;
    plan->predicted = (smp_predicted){.step_us = step_us,
                                      .bubble = evaluation->simulation->bubble,
                                      .samples_per_s = step_us > 0 ? 1e6 * samples / step_us : 0,
                                      .bottleneck_us = partition->bottleneck_us,
                                      .lower_bound_us = bound,
                                      .gap = bound > 0 ? partition->bottleneck_us / bound - 1 : 0,
                                      .peak_bytes = peak};
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
    plan->fingerprint = graph->fingerprint;
    plan->devices = best->pipeline * best->ddp;
    plan->pipeline = best->pipeline;
    plan->ddp = best->ddp;
    plan->chunks = best->chunks;
    plan->placement = best->placement;
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
    plan->n_stage = best->partition->n_stage;
    plan->optimizer_bytes_per_s = planner->costs->optimizer_bytes_per_s;
    SMP_TRY(fill_evaluation(plan, best, evaluation));
    SMP_TRY(smp_plan_set_stages(plan, graph, best->partition, best->stage_rank));
    if (planner->request.profile)
        SMP_TRY(smp_plan_split_backward(planner->costs, best->partition->stage, plan));
    return copy_cluster(plan->arena, planner->request.cluster, &plan->cluster);
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

/* The bound on the bottleneck, or that of partitions that fit in the order that the plan has. */
static void set_bound(smp_planner_result *result, smp_predicted *predicted)
{
    const smp_candidate *best = result->search.best;
    double bound_us = fmin(best->fit_bound_us[result->order.taken], predicted->bottleneck_us);
    result->bound = best->partition->bound;
    if (bound_us <= predicted->lower_bound_us)
        return;
    predicted->lower_bound_us = bound_us;
    predicted->gap = predicted->bottleneck_us / bound_us - 1.0;
    result->bound = result->order.taken ? "prices of time and memory"
                                        : "prices of time and memory in the order of this schedule";
}

static smp_status fill_result(const smp__planner *planner, const char *model_path,
                              smp__evaluation *evaluation, smp_planner_result *result)
{
    smp_plan *plan;
    SMP_TRY(smp__planner_write(planner, model_path, result->search.best, evaluation, &plan));
    if (result->order.taken)
        plan->schedule = "auto";
    set_bound(result, &plan->predicted);
    set_step_bound(&plan->predicted,
                   result->search.best->step_bound_us[result->order.taken ? 1 : 0]);
    smp_status status = SMP_OK;
    if (!planner->is_trial)
        status = smp_fail_context(smp_verify(plan, planner->request.graph), "the plan just made");
    if (status == SMP_OK)
        result->plan = plan;
    else
        smp_plan_destroy(plan);
    return status;
}

static double sample_us(const smp_candidate *candidate, const smp__evaluation *evaluation)
{
    return evaluation->simulation->step_us / candidate->microbatches / candidate->ddp;
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
        if (candidate->active == search->best->active)
            own.rule_us = order->rule_us;
        *place = search->best;
        search->best = candidate;
        *order = own;
    }
    smp__evaluation_free(&other);
    return status;
}

/* The winner's step with another sharding; < 0: it does not fit. */
static smp_status step_with(smp__planner *planner, const smp_candidate *best, smp_sharding sharding,
                            double *step_us)
{
    smp__evaluation evaluation;
    int tight;
    planner->request.sharding = sharding;
    SMP_TRY(smp__planner_evaluate(planner, best, NULL, true, &evaluation));
    *step_us = evaluation.simulation->step_us;
    if (smp__planner_room(planner, best, evaluation.peak_bytes, &tight) < 0)
        *step_us = -1.0;
    smp__evaluation_free(&evaluation);
    return SMP_OK;
}

/* What the search takes as given for every configuration, looked at for the winner: weights
 * gathered a run earlier, and no buckets, whose latencies gathers pay too. Taken if it is faster
 * and fits. */
static smp_status tune_sharding(smp__planner *planner, smp_candidate *best)
{
    const smp_sharding asked = planner->request.sharding;
    const bool weights = smp_shards(asked, SMP_SHARD_WEIGHTS, planner->request.graph->training);
    smp_sharding taken = asked;
    double least_us, us;
    if (best->ddp == 1 || planner->is_trial || planner->request.optimize == SMP_OPTIMIZE_MEMORY)
        return SMP_OK;
    SMP_TRY(step_with(planner, best, asked, &least_us));
    for (int i = 0; i < 2 && least_us > 0.0; i++) {
        smp_sharding other = taken;
        if (i == 0)
            other.bucket_bytes = asked.bucket_bytes < 0 ? 0 : asked.bucket_bytes;
        else if (weights && planner->any_prefetch && best->chunks >= 3 && asked.prefetch > 0)
            other.prefetch = asked.prefetch + 1;
        if (other.bucket_bytes == taken.bucket_bytes && other.prefetch == taken.prefetch)
            continue;
        SMP_TRY(step_with(planner, best, other, &us));
        if (us > 0.0 && us < 0.999 * least_us) {
            least_us = us;
            taken = other;
        }
    }
    planner->request.sharding = taken;
    const bool same = taken.bucket_bytes == asked.bucket_bytes && taken.prefetch == asked.prefetch;
    return same ? SMP_OK : smp__planner_judge(planner, best);
}

/* The winner of the search in full, under its rule or an order of its own. */
static smp_status make_plan(smp__planner *planner, const char *model_path,
                            smp_planner_result *result)
{
    smp__evaluation evaluation;
    SMP_TRY(tune_sharding(planner, result->search.best));
    SMP_TRY(smp__planner_evaluate(planner, result->search.best, NULL, true, &evaluation));
    smp_status status =
        smp__planner_auto(planner, result->search.best, &evaluation, &result->order);
    for (int i = 0; i < 2 && status == SMP_OK; i++)
        if (result->search.other[i] && result->order.tried)
            status = try_other(planner, &result->search, &result->search.other[i], &evaluation,
                               &result->order);
    result->room_bytes =
        smp__planner_room(planner, result->search.best, evaluation.peak_bytes, &result->tight_rank);
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

/* *nearest: of a request that nothing fits. trial: NULL for a plan that is to be used. */
static smp_status make(const smp_search_request *request, const char *model_path,
                       const smp__trial *trial, smp__nearest *nearest, smp_planner_result *out)
{
    smp__planner planner;
    smp_planner_result result = {0};
    double begin_s = smp_clock_s();
    SMP_TRY(check_request(request));
    SMP_TRY(smp__planner_open(request, &planner));
    planner.is_trial = trial && !trial->used;
    planner.gives_up = trial && !trial->patient;
    if (trial && trial->faster_op >= 0) {
        smp_status status = make_op_faster(planner.costs, trial->faster_op);
        if (status != SMP_OK) {
            smp__planner_close(&planner);
            return status;
        }
    }
    snprintf(result.cost_source, sizeof result.cost_source, "%s", planner.costs->source);
    smp_status status = smp__search_run(&planner, &result.search);
    if (status == SMP_ERR_NO_FIT && planner.any_prefetch &&
        smp_shards(request->sharding, SMP_SHARD_WEIGHTS, request->graph->training)) {
        planner.request.sharding.prefetch = 0;
        status = smp__search_run(&planner, &result.search);
    }
    if (status == SMP_OK)
        status = make_plan(&planner, model_path, &result);
    if (status == SMP_OK)
        result.active_microbatches = result.order.taken ? 0 : result.search.best->active;
    *nearest = planner.nearest;
    smp__planner_close(&planner);
    result.planning_s = smp_clock_s() - begin_s;
    if (status == SMP_OK)
        *out = result;
    else
        smp_planner_result_destroy(&result);
    return status;
}

/* Shard degrees one after the other: none, then powers of two. Where a plan fits without, sharding
 * more than the optimizer's states only adds messages, which is right if memory is to be small. The
 * fastest for each sample is kept, or the smallest. */
typedef struct shard_search {
    const smp_search_request *request;
    const char *model_path;
    smp__nearest nearest; /* of what does not fit without shards */
    smp_planner_result best;
    bool found;
    int left; /* attempts */
    int n_tried;
    smp_shard_tried tried[SMP_MAX_SHARDS_TRIED];
} shard_search;

static int64_t highest_peak(const smp_plan *plan)
{
    int64_t most = 0;
    for (int r = 0; r < plan->pipeline; r++)
        most = plan->predicted.peak_bytes[r] > most ? plan->predicted.peak_bytes[r] : most;
    return most;
}

static void note_tried(shard_search *s, smp_sharding sharding, const smp_plan *plan)
{
    smp_shard_tried tried = {.sharding = sharding, .fits = plan};
    if (plan) {
        tried.sample_us = smp_plan_sample_us(s->request, plan);
        tried.peak_bytes = highest_peak(plan);
    }
    if (s->n_tried < SMP_MAX_SHARDS_TRIED)
        s->tried[s->n_tried++] = tried;
}

static bool is_better(const smp_search_request *request, const smp_plan *plan, const smp_plan *best)
{
    const double us = smp_plan_sample_us(request, plan),
                 best_us = smp_plan_sample_us(request, best);
    const int64_t peak = highest_peak(plan), best_peak = highest_peak(best);
    if (request->optimize == SMP_OPTIMIZE_MEMORY && peak != best_peak)
        return peak < best_peak;
    return us < best_us;
}

static smp_status try_sharding(shard_search *s, int shard, smp_shard_what what)
{
    smp_search_request changed = *s->request;
    smp_planner_result result;
    smp__nearest nearest = {0};
    const smp__trial trial = {.faster_op = -1, .used = true};
    const double now_s = smp_clock_s();
    changed.sharding.shard = shard;
    changed.sharding.what = what;
    if (changed.deadline_s > 0.0)
        changed.deadline_s = now_s + fmax(changed.deadline_s - now_s, 0.0) / s->left;
    s->left -= s->left > 1;
    smp_status status = make(&changed, s->model_path, &trial, &nearest, &result);
    if (shard == 1)
        s->nearest = nearest;
    if (status == SMP_ERR_INPUT && shard > 1)
        return SMP_OK;
    if (status == SMP_OK || status == SMP_ERR_NO_FIT)
        note_tried(s, changed.sharding, status == SMP_OK ? result.plan : NULL);
    if (status == SMP_ERR_NO_FIT)
        return SMP_OK;
    SMP_TRY(status);
    const bool better = !s->found || is_better(&changed, result.plan, s->best.plan);
    if (better && s->found)
        smp_planner_result_destroy(&s->best);
    if (better)
        s->best = result;
    else
        smp_planner_result_destroy(&result);
    s->found = true;
    return SMP_OK;
}

static smp_status search_shards(shard_search *s)
{
    const smp_search_request *request = s->request;
    const int most = request->ddp > 0 ? request->ddp : request->devices;
    const smp_shard_what first = request->any_shard_what ? 0 : request->sharding.what;
    smp_shard_what last = request->any_shard_what ? SMP_SHARD_WEIGHTS : first;
    s->left = 2; /* half of the time without */
    SMP_TRY(try_sharding(s, 1, SMP_SHARD_OPTIMIZER));
    if (!request->graph->training && last < SMP_SHARD_WEIGHTS)
        return SMP_OK;
    if (s->found && request->any_shard_what && request->optimize != SMP_OPTIMIZE_MEMORY)
        last = first;
    s->left = 0;
    for (int shard = 2; shard <= most; shard *= 2)
        s->left += 1 + (int)(last - first);
    for (int what = (int)first; what <= (int)last; what++)
        for (int shard = 2; shard <= most; shard *= 2)
            SMP_TRY(try_sharding(s, shard, (smp_shard_what)what));
    return SMP_OK;
}

static smp_status make_sharded(const smp_search_request *request, const char *model_path,
                               smp_planner_result *out)
{
    shard_search s = {.request = request, .model_path = model_path};
    const double begin_s = smp_clock_s();
    smp_status status = search_shards(&s);
    if (status == SMP_OK && s.found) {
        *out = s.best;
        out->n_shard = s.n_tried;
        memcpy(out->shard, s.tried, sizeof s.tried);
        out->planning_s = smp_clock_s() - begin_s;
        return SMP_OK;
    }
    if (s.found)
        smp_planner_result_destroy(&s.best);
    if (status != SMP_OK)
        return status;
    smp_search_request whole = *request;
    whole.sharding.shard = 1;
    if (request->advise && s.nearest.known)
        return smp__plan_advise(&whole, &s.nearest);
    return make(&whole, model_path, NULL, &s.nearest, out);
}

smp_status smp_plan_make(const smp_search_request *request, const char *model_path,
                         smp_planner_result *out)
{
    smp__nearest nearest = {0};
    if (request->sharding.shard == SMP_SHARD_AUTO)
        return make_sharded(request, model_path, out);
    smp_status status = make(request, model_path, NULL, &nearest, out);
    return status == SMP_ERR_NO_FIT && request->advise && nearest.known
               ? smp__plan_advise(request, &nearest)
               : status;
}

smp_status smp__plan_try(const smp_search_request *request, const smp__trial *trial,
                         smp_planner_result *out, bool *found)
{
    smp__nearest ignored;
    smp_status status = make(request, "", trial, &ignored, out);
    *found = status == SMP_OK;
    return status == SMP_ERR_NO_FIT || status == SMP_ERR_INPUT ? SMP_OK : status;
}

void smp_planner_result_destroy(smp_planner_result *result)
{
    smp_plan_destroy(result->plan);
    smp_search_result_destroy(&result->search);
    *result = (smp_planner_result){0};
}
