/* What a plan costs: loads by the partition's own evaluation, time by simulation, memory by the memory
 * planner, and the planner's plans to compare with. Nothing here is estimated in another way than
 * where plans are made. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/clock.h"
#include "schedule/check/check_build.h"
#include "schedule/lower/lower.h"
#include "schedule/memory/memory.h"
#include "schedule/simulate/simulate.h"
#include "schedule/verify/verify.h"

/* The problem that the plan's stages are a solution of. */
static smp_status make_problem(const smp__check_build *b, smp_recompute recompute, smp_problem *out)
{
    const smp_search_request *r = b->request;
    double *live = SMP_ARENA_NEW(b->arena, double, (size_t)b->n_stage);
    int64_t *limit = SMP_ARENA_NEW(b->arena, int64_t, (size_t)b->n_stage);
    if (!live || !limit)
        return SMP_ERR_NO_MEMORY;
    for (int s = 0; s < b->n_stage; s++) {
        live[s] = (double)b->kind->live(&b->shape, b->rank[s]) / b->shape.chunks;
        limit[s] = smp__check_limit(b, b->rank[s]) / b->shape.chunks;
    }
    *out = (smp_problem){.graph = r->graph,
                         .costs = b->costs,
                         .cluster = b->cluster,
                         .n_stage = b->n_stage,
                         .pipeline = b->shape.pipeline,
                         .stage_rank = b->rank,
                         .device = b->device,
                         .state_factor = smp_state_factor(r->graph),
                         .live = live,
                         .memory_limit = limit,
                         .seed = r->seed,
                         .recompute = recompute};
    return SMP_OK;
}

/* The loads of stages for which the sketch says recompute yes or no. */
static smp_status apply_flags(smp__check_build *b, int flag, smp_recompute recompute)
{
    smp_problem problem;
    smp_partition *other = NULL;
    bool any = false;
    for (int i = 0; i < b->sketch->n_listed; i++)
        any |= b->sketch->stage[i].recompute == flag;
    if (!any)
        return SMP_OK;
    SMP_TRY(make_problem(b, recompute, &problem));
    SMP_TRY(smp_partition_evaluate(&problem, b->stage, &other));
    for (int i = 0; i < b->sketch->n_listed; i++) {
        const smp_sketch_stage *stage = &b->sketch->stage[i];
        if (stage->recompute == flag)
            b->out->partition->load[stage->stage] = other->load[stage->stage];
    }
    smp_partition_destroy(other);
    return SMP_OK;
}

smp_status smp__check_loads(smp__check_build *b)
{
    smp_problem problem;
    double *rank_us = SMP_ARENA_NEW(b->arena, double, (size_t)b->shape.pipeline);
    if (!rank_us)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(make_problem(b, b->request->recompute, &problem));
    SMP_TRY(smp_partition_evaluate(&problem, b->stage, &b->out->partition));
    SMP_TRY(apply_flags(b, 0, SMP_RECOMPUTE_NONE));
    SMP_TRY(apply_flags(b, 1, SMP_RECOMPUTE_ALL));
    smp_partition *partition = b->out->partition;
    partition->bottleneck_us = 0;
    for (int s = 0; s < b->n_stage; s++)
        rank_us[b->rank[s]] += partition->load[s].load_us;
    for (int r = 0; r < b->shape.pipeline; r++)
        partition->bottleneck_us = fmax(partition->bottleneck_us, rank_us[r]);
    partition->lower_bound_us = fmin(smp_partition_lower_bound(&problem), partition->bottleneck_us);
    partition->solver = "the plan";
    b->out->bound = "what no pipeline can avoid";
    return SMP_OK;
}

/* The cluster stays the caller's. */
static smp_status fill_head(const smp__check_build *b, smp_plan *plan)
{
    const smp_graph *graph = b->request->graph;
    plan->model_path = smp_arena_strdup(plan->arena, graph->path);
    plan->model_name = smp_arena_strdup(plan->arena, graph->name);
    if (!plan->model_path || !plan->model_name)
        return SMP_ERR_NO_MEMORY;
    plan->fingerprint = graph->fingerprint;
    plan->devices = b->shape.pipeline * b->ddp;
    plan->pipeline = b->shape.pipeline;
    plan->ddp = b->ddp;
    plan->chunks = b->shape.chunks;
    plan->placement = b->placement;
    plan->microbatches = b->shape.microbatches;
    plan->microbatch_size = b->microbatch_size;
    plan->schedule = b->kind->name;
    plan->training = graph->training;
    plan->target = graph->target;
    plan->cluster = b->cluster;
    plan->optimizer_bytes_per_s = b->costs->optimizer_bytes_per_s;
    SMP_TRY(smp_plan_set_stages(plan, graph, b->out->partition, b->rank));
    return b->request->profile ? smp_plan_split_backward(b->costs, b->stage, plan) : SMP_OK;
}

/* The sketch's programs, as many as there are ranks; the verifier looks at what they name. */
static smp_status copy_programs(const smp__check_build *b, smp_program *program)
{
    for (int r = 0; r < b->sketch->n_program; r++) {
        const smp_program *from = &b->sketch->program[r];
        for (int64_t i = 0; i < from->n; i++) {
            const smp_action *action = &from->action[i];
            SMP_TRY(smp_program_push(&program[r], action->kind, action->microbatch, action->chunk));
        }
    }
    return SMP_OK;
}

/* All forwards, then all backwards: right for stages on any ranks, since micro-batch and stage then
 * rise together everywhere. */
static smp_status order_plainly(const smp__check_build *b, smp_program *order)
{
    bool training = b->shape.training;
    int *chunk = SMP_ARENA_NEW(b->arena, int, (size_t)b->n_stage);
    int *held = SMP_ARENA_NEW(b->arena, int, (size_t)b->shape.pipeline);
    if (!chunk || !held)
        return SMP_ERR_NO_MEMORY;
    for (int s = 0; s < b->n_stage; s++)
        chunk[s] = held[b->rank[s]]++;
    for (int m = 0; m < b->shape.microbatches; m++) {
        for (int s = 0; s < b->n_stage; s++)
            SMP_TRY(smp_program_push(&order[b->rank[s]], SMP_ACTION_F, m, chunk[s]));
    }
    for (int m = 0; training && m < b->shape.microbatches; m++) {
        for (int s = b->n_stage - 1; s >= 0; s--)
            SMP_TRY(smp_program_push(&order[b->rank[s]], SMP_ACTION_B, m, chunk[s]));
    }
    return SMP_OK;
}

static smp_status lower_programs(smp__check_build *b, const smp_flow *flow, smp_program *program)
{
    if (b->by_rule)
        return smp_lower(b->kind, &b->shape, flow, program);
    smp_program *order = SMP_ARENA_NEW(b->arena, smp_program, (size_t)b->shape.pipeline);
    if (!order)
        return SMP_ERR_NO_MEMORY;
    smp_status status = order_plainly(b, order);
    if (status == SMP_OK)
        status = smp_lower_orders(&b->shape, b->rank, flow, order, program);
    for (int r = 0; r < b->shape.pipeline; r++)
        smp_program_free(&order[r]);
    return status;
}

static smp_status make_programs(smp__check_build *b, const smp_flow *flow, smp_plan *plan,
                                bool *good)
{
    const smp_sketch *sketch = b->sketch;
    smp_program *program = SMP_ARENA_NEW(plan->arena, smp_program, (size_t)plan->pipeline);
    if (!program)
        return SMP_ERR_NO_MEMORY;
    plan->program = program; /* from here on smp_plan_destroy frees the actions */
    bool written = sketch->n_program > 0 && b->same_numbers;
    *good = !written || sketch->n_program == plan->pipeline;
    if (!*good)
        return smp__find(&b->out->findings, SMP_FINDING_ILLEGAL, "programs", sketch->programs_where,
                         "programs: got %d, expected one per rank: %d", sketch->n_program,
                         plan->pipeline);
    SMP_TRY(written ? copy_programs(b, program) : lower_programs(b, flow, program));
    smp_status status = smp_verify_programs(plan, flow);
    *good = status == SMP_OK;
    if (status != SMP_ERR_INPUT)
        return status;
    return smp__find(&b->out->findings, SMP_FINDING_ILLEGAL, "programs", sketch->programs_where,
                     "%s", smp_last_error());
}

/* By how much. */
static smp_status find_unfit(smp__check_build *b, int rank, int64_t peak, int64_t limit)
{
    char need[32], more[32], room[32];
    smp_text stages = {0};
    int n = 0;
    for (int s = 0; s < b->n_stage; s++)
        if (b->rank[s] == rank)
            smp_text_append(&stages, "%s%d", n++ > 0 ? ", " : "", s);
    smp_status status = smp__find(
        &b->out->findings, SMP_FINDING_UNFIT, "memory", b->sketch->stages_where,
        "rank %d (stage%s %s) needs %s, %s more than the device's %s", rank, n == 1 ? "" : "s",
        stages.data ? stages.data : "", smp_format_bytes(need, sizeof need, peak),
        smp_format_bytes(more, sizeof more, peak - limit),
        smp_format_bytes(room, sizeof room, limit));
    smp_text_free(&stages);
    return status;
}

static smp_status check_memory(smp__check_build *b, const smp_flow *flow, smp_plan *plan)
{
    const smp_sketch *sketch = b->sketch;
    int64_t *peak = SMP_ARENA_NEW(plan->arena, int64_t, (size_t)plan->pipeline);
    bool written = sketch->n_program > 0 && b->same_numbers && sketch->n_peak == plan->pipeline &&
                   smp_target_equal(sketch->target, plan->target);
    if (!peak)
        return SMP_ERR_NO_MEMORY;
    plan->predicted.peak_bytes = peak;
    for (int r = 0; r < plan->pipeline; r++) {
        int64_t limit = smp__check_limit(b, r);
        SMP_TRY(smp_memory_peak(plan, b->request->graph, flow, r, &peak[r]));
        if (peak[r] > limit)
            SMP_TRY(find_unfit(b, r, peak[r], limit));
        if (written && sketch->predicted.peak_bytes[r] != peak[r])
            SMP_TRY(smp__find(&b->out->findings, SMP_FINDING_ILLEGAL, "peak",
                              sketch->predicted_where,
                              "predicted: peak_bytes of rank %d: got %lld, expected %lld", r,
                              (long long)sketch->predicted.peak_bytes[r], (long long)peak[r]));
    }
    return SMP_OK;
}

/* A plan made with a profile or for another cluster, and checked without. */
static smp_status note_other_costs(smp__check_build *b, double step_us)
{
    char said[32], now[32];
    double written_us = b->sketch->predicted.step_us;
    if (written_us <= 0 || !b->same_numbers || b->sketch->n_program == 0 ||
        fabs(step_us - written_us) <= 1e-3 * written_us)
        return SMP_OK;
    return smp__find(&b->out->findings, SMP_FINDING_NOTE, "costs", b->sketch->predicted_where,
                     "the plan predicts a step of %s, with these costs (%s) it is %s: it was made "
                     "with another profile or cluster",
                     smp_format_us(said, sizeof said, written_us), b->costs->source,
                     smp_format_us(now, sizeof now, step_us));
}

static smp_status predict(smp__check_build *b, const smp_flow *flow, smp_plan *plan)
{
    smp_simulation *simulation = NULL;
    const smp_partition *partition = b->out->partition;
    SMP_TRY(smp_simulate_plan(plan, b->request->graph, flow, &simulation));
    double samples = (double)plan->ddp * plan->microbatches * (double)plan->microbatch_size;
    double step_us = simulation->step_us, bubble = simulation->bubble;
    smp_simulation_destroy(simulation);
    plan->predicted.step_us = step_us;
    plan->predicted.bubble = bubble;
    plan->predicted.samples_per_s = step_us > 0 ? 1e6 * samples / step_us : 0;
    plan->predicted.bottleneck_us = partition->bottleneck_us;
    b->out->time_us = b->request->objective == SMP_OBJECTIVE_BOTTLENECK
                          ? partition->bottleneck_us * plan->microbatches / samples
                          : step_us / samples;
    SMP_TRY(note_other_costs(b, step_us));
    return check_memory(b, flow, plan);
}

smp_status smp__check_plan(smp__check_build *b)
{
    smp_flow *flow = NULL;
    bool good = false;
    smp_arena *arena = smp_arena_create();
    smp_plan *plan = arena ? SMP_ARENA_NEW(arena, smp_plan, 1) : NULL;
    if (!plan) {
        smp_arena_destroy(arena);
        return SMP_ERR_NO_MEMORY;
    }
    plan->arena = arena;
    smp_status status = fill_head(b, plan);
    if (status == SMP_OK)
        status = smp_flow_build(b->request->graph, b->stage, b->n_stage, b->microbatch_size, &flow);
    if (status == SMP_OK)
        status = make_programs(b, flow, plan, &good);
    if (status == SMP_OK && good)
        status = predict(b, flow, plan);
    smp_flow_destroy(flow);
    if (status == SMP_OK && good)
        b->out->plan = plan;
    else
        smp_plan_destroy(plan);
    return status;
}

/* Plans as asked for; no plan is no failure. */
static smp_status plan_best(const smp__check_build *b, const smp_search_request *request,
                            smp_check_best *out, const char **bound)
{
    smp_planner_result result;
    smp_status status = smp_plan_make(request, b->request->graph->path, &result);
    if (status == SMP_ERR_NO_FIT || status == SMP_ERR_INPUT) {
        snprintf(out->reason, sizeof out->reason, "%s", smp_last_error());
        return SMP_OK;
    }
    if (status != SMP_OK)
        return status;
    const smp_plan *plan = result.plan;
    double samples = (double)plan->ddp * plan->microbatches * (double)plan->microbatch_size;
    *out = (smp_check_best){.found = true,
                            .timed_out = result.search.best->partition->timed_out,
                            .pipeline = plan->pipeline,
                            .ddp = plan->ddp,
                            .chunks = plan->chunks,
                            .microbatches = plan->microbatches,
                            .step_us = plan->predicted.step_us,
                            .bottleneck_us = plan->predicted.bottleneck_us,
                            .lower_bound_us = plan->predicted.lower_bound_us};
    snprintf(out->schedule, sizeof out->schedule, "%s", plan->schedule);
    out->time_us = request->objective == SMP_OBJECTIVE_BOTTLENECK
                       ? out->bottleneck_us * plan->microbatches / samples
                       : out->step_us / samples;
    out->ratio = out->time_us > 0 ? b->out->time_us / out->time_us : 1;
    *bound = result.search.best->partition->bound;
    smp_planner_result_destroy(&result);
    return SMP_OK;
}

static void use_bound(smp__check_build *b, const char *bound)
{
    smp_predicted *predicted = &b->out->plan->predicted;
    const smp_check_best *same = &b->out->same;
    double bottleneck_us = predicted->bottleneck_us;
    predicted->lower_bound_us = b->out->partition->lower_bound_us;
    /* What was proven of plans that fit says nothing about one that does not. */
    bool fits = b->out->findings.n_level[SMP_FINDING_UNFIT] == 0;
    if (same->found && fits && same->lower_bound_us > predicted->lower_bound_us) {
        predicted->lower_bound_us = fmin(same->lower_bound_us, bottleneck_us);
        b->out->bound = bound && *bound ? bound : b->out->bound;
    }
    predicted->gap =
        predicted->lower_bound_us > 0 ? bottleneck_us / predicted->lower_bound_us - 1 : 0;
    b->out->partition->lower_bound_us = predicted->lower_bound_us;
}

smp_status smp__check_compare(smp__check_build *b)
{
    const char *bound = NULL, *ignored;
    double now = smp_clock_s(), deadline = b->request->deadline_s;
    smp_search_request request = *b->request;
    request.cluster = b->cluster;
    request.devices = b->shape.pipeline * b->ddp;
    request.microbatch_size = b->microbatch_size;
    request.placement = SMP_PLACEMENT_AUTO;
    request.stages = request.ddp = request.chunks = request.microbatches = 0;
    request.schedule = NULL;
    smp_search_request same = request;
    same.stages = b->shape.pipeline;
    same.ddp = b->ddp;
    same.chunks = b->shape.chunks;
    same.microbatches = b->shape.microbatches;
    same.schedule = b->kind->any_placement ? NULL : b->kind->name;
    if (deadline > now)
        same.deadline_s = now + 0.5 * (deadline - now);
    SMP_TRY(plan_best(b, &same, &b->out->same, &bound));
    SMP_TRY(plan_best(b, &request, &b->out->any, &ignored));
    use_bound(b, bound);
    return SMP_OK;
}
