/* What a plan costs: evaluated and written down as any that the planner makes; then the planner's
 * plans to compare with. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/clock.h"
#include "schedule/check/check_build.h"
#include "schedule/lower/lower.h"
#include "schedule/lower/offload_actions.h"
#include "schedule/memory/communicators.h"
#include "schedule/memory/recompute_choice.h"
#include "schedule/planner/search/search.h"
#include "schedule/verify/verify.h"

/* The plan at hand. */
typedef struct scoring {
    smp__check_build *b;
    smp_given_plan given;
} scoring;

/* What a stage is said to recompute and to offload. Of ops to recompute those that are really made
 * again, so that their times are what the plan counts. `recomputes` [n_op]: the stage's are set. */
static smp_status obey_stage(scoring *s, const smp_sketch_stage *stage, int64_t *work,
                             bool *recomputes)
{
    const smp_graph *graph = s->b->request.graph;
    const smp_flow *flow = s->given.planner.held.flow;
    const int32_t *op = &flow->op_list[flow->op_begin[stage->stage]];
    int32_t n = flow->op_begin[stage->stage + 1] - flow->op_begin[stage->stage], n_named = 0;
    const char **name = SMP_ARENA_NEW(s->b->arena, const char *, (size_t)n);
    bool *mask = SMP_ARENA_NEW(s->b->arena, bool, (size_t)n);
    if (!name || !mask)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < n; i++)
        name[i] = graph->op[op[i]].name;
    if (stage->offload.what >= 0) {
        SMP_TRY(smp_sketch_op_mask(&stage->offload, "offload", stage->stage, name, n, work, mask));
        for (int32_t i = 0; i < n; i++)
            s->b->offload[op[i]] = mask[i] && graph->training;
    }
    if (stage->recompute.what < 0)
        return SMP_OK;
    SMP_TRY(smp_sketch_op_mask(&stage->recompute, "recompute", stage->stage, name, n, work, mask));
    for (int32_t i = 0; i < n; i++) {
        n_named += mask[i];
        recomputes[op[i]] = mask[i];
    }
    if (n_named == 0 || n_named == n || !graph->training)
        return SMP_OK;
    return smp_recompute_repeats(graph, flow, stage->stage, recomputes, recomputes);
}

/* Stages for which the sketch says what to recompute, or to offload, obey; others offload where all
 * are asked to. */
static smp_status obey_flags(scoring *s, smp_problem problem)
{
    smp__check_build *b = s->b;
    int64_t work = 0;
    smp_partition **partition = &b->out->partition;
    int32_t n_op = b->request.graph->n_op;
    bool *recomputes = SMP_ARENA_NEW(b->arena, bool, (size_t)n_op);
    b->offload = SMP_ARENA_NEW(b->arena, bool, (size_t)n_op);
    if (!recomputes || !b->offload)
        return SMP_ERR_NO_MEMORY;
    memset(b->offload, b->request.graph->training && b->request.options.offload == SMP_OFFLOAD_ALL,
           (size_t)n_op);
    memcpy(recomputes, (*partition)->recompute, (size_t)n_op);
    SMP_TRY(smp__planner_hold(&s->given.planner, *partition, NULL));
    for (int i = 0; i < b->sketch->n_listed; i++)
        SMP_TRY(obey_stage(s, &b->sketch->stage[i], &work, recomputes));
    for (int32_t op = 0; op < n_op; op++)
        if (b->offload[op])
            b->horizon =
                b->request.options.loading_horizon > 0 ? b->request.options.loading_horizon : 1;
    problem.recomputes = recomputes;
    smp_partition_destroy(*partition);
    *partition = NULL;
    return smp_partition_evaluate(&problem, b->stage, partition);
}

static smp_status score_stages(scoring *s)
{
    const smp__check_build *b = s->b;
    smp_problem problem;
    SMP_TRY(smp_given_plan_problem(&s->given, &problem));
    SMP_TRY(smp_partition_evaluate(&problem, b->stage, &b->out->partition));
    SMP_TRY(obey_flags(s, problem));
    smp_partition *partition = b->out->partition;
    double bound_us;
    SMP_TRY(smp_partition_lower_bound(&problem, &bound_us));
    partition->lower_bound_us = fmin(bound_us, partition->bottleneck_us);
    partition->solver = "the plan";
    b->out->bound = "what no pipeline can avoid";
    return smp__planner_hold(&s->given.planner, partition, b->offload);
}

/* The sketch's programs, as many as there are ranks; the verifier looks at what they name. */
static smp_status copy_programs(const smp_sketch *sketch, smp_program *program)
{
    for (int r = 0; r < sketch->n_program; r++) {
        for (int64_t i = 0; i < sketch->program[r].n; i++) {
            const smp_action *action = &sketch->program[r].action[i];
            SMP_TRY(smp_program_push(&program[r], action->kind, action->microbatch, action->chunk));
        }
    }
    return SMP_OK;
}

/* All forwards, then all backwards: right for stages on any ranks, since micro-batch and stage then
 * rise together everywhere. */
static smp_status order_plainly(const smp__check_build *b, smp_program *order)
{
    int n = b->sketch->n_stage, m = b->shape.microbatches;
    int *chunk = SMP_ARENA_NEW(b->arena, int, (size_t)n);
    int *held = SMP_ARENA_NEW(b->arena, int, (size_t)b->shape.pipeline);
    if (!chunk || !held)
        return SMP_ERR_NO_MEMORY;
    for (int s = 0; s < n; s++)
        chunk[s] = held[b->rank[s]]++;
    for (int i = 0; i < (b->shape.training ? 2 : 1) * m * n; i++) {
        bool forward = i < m * n;
        int s = forward ? i % n : n - 1 - i % n;
        SMP_TRY(smp_program_push(&order[b->rank[s]], forward ? SMP_ACTION_F : SMP_ACTION_B,
                                 i / n % m, chunk[s]));
    }
    return SMP_OK;
}

static smp_status lower_programs(const scoring *s, smp_program *program)
{
    const smp__check_build *b = s->b;
    const smp_flow *flow = s->given.planner.held.flow;
    smp_schedule_shape shape = b->shape;
    if (s->given.planner.held.any_travels)
        shape.offloading = (smp_offloading){b->horizon, s->given.planner.held.travels};
    if (b->by_rule)
        return smp_lower(b->kind, &shape, flow, program);
    smp_program *order = SMP_ARENA_NEW(b->arena, smp_program, (size_t)b->shape.pipeline);
    if (!order)
        return SMP_ERR_NO_MEMORY;
    smp_status status = order_plainly(b, order);
    if (status == SMP_OK)
        status = smp_lower_orders(&shape, b->rank, flow, order, program);
    for (int r = 0; r < b->shape.pipeline; r++)
        smp_program_free(&order[r]);
    return status;
}

/* The plan as far as the verifier looks at it. */
static smp_status verify_programs(const scoring *s, const smp_program *program)
{
    const smp__check_build *b = s->b;
    smp_plan plan = {.pipeline = b->shape.pipeline,
                     .ddp = b->request.options.ddp,
                     .sharding = b->shape.sharding,
                     .chunks = b->shape.chunks,
                     .microbatches = b->shape.microbatches,
                     .training = b->shape.training,
                     .schedule = b->kind->name,
                     .n_stage = b->sketch->n_stage,
                     .travels =
                         s->given.planner.held.any_travels ? s->given.planner.held.travels : NULL,
                     .loading_horizon = b->horizon,
                     .program = program};
    smp_plan_stage *stage = SMP_ARENA_NEW(b->arena, smp_plan_stage, (size_t)plan.n_stage);
    if (!stage)
        return SMP_ERR_NO_MEMORY;
    for (int i = 0; i < plan.n_stage; i++)
        stage[i].rank = b->rank[i];
    plan.stage = stage;
    return smp_verify_programs(&plan, s->given.planner.held.flow);
}

/* Programs that were written for what stays: with what travels now. */
static smp_status add_transfers(const scoring *s, smp_program *program)
{
    smp__check_build *b = s->b;
    smp_schedule_shape shape = b->shape;
    int *stage = SMP_ARENA_NEW(b->arena, int, (size_t)b->shape.chunks);
    if (!stage)
        return SMP_ERR_NO_MEMORY;
    shape.offloading = (smp_offloading){b->horizon, s->given.planner.held.travels};
    for (int r = 0; r < b->shape.pipeline; r++)
        for (int64_t i = 0; i < program[r].n; i++)
            if (program[r].action[i].kind == SMP_ACTION_STORE)
                return SMP_OK;
    for (int r = 0; r < b->shape.pipeline; r++) {
        for (int k = 0, c = 0; k < b->sketch->n_stage; k++)
            if (b->rank[k] == r)
                stage[c++] = k;
        SMP_TRY(smp_offload_actions(&shape, stage, &program[r]));
    }
    b->other_memory = true;
    return SMP_OK;
}

static smp_status make_programs(const scoring *s, smp_program *program)
{
    const smp__check_build *b = s->b;
    const smp_sketch *sketch = b->sketch;
    int p = b->shape.pipeline;
    bool written = sketch->n_program > 0 && b->same_numbers;
    if (written && sketch->n_program != p)
        return SMP__FIND(&b->out->findings, ILLEGAL, "programs", sketch->programs_where,
                         "programs: got %d, expected one per rank: %d", sketch->n_program, p);
    SMP_TRY(written ? copy_programs(sketch, program) : lower_programs(s, program));
    if (written && s->given.planner.held.any_travels &&
        b->request.options.offload == SMP_OFFLOAD_ALL)
        SMP_TRY(add_transfers(s, program));
    smp_status status = verify_programs(s, program);
    if (status == SMP_OK)
        return smp__check_bounds(b, program);
    if (status != SMP_ERR_INPUT)
        return status;
    return SMP__FIND(&b->out->findings, ILLEGAL, "programs", sketch->programs_where, "%s",
                     smp_last_error());
}

/* By how much. */
static smp_status find_unfit(const smp__check_build *b, int rank, int64_t peak, int64_t limit)
{
    char need[32], more[32], room[32], beside[SMP_BESIDE_CHARS];
    smp_text stages = {0};
    for (int s = 0; s < b->sketch->n_stage; s++)
        if (b->rank[s] == rank)
            smp_text_append(&stages, "%s%d", stages.data ? ", " : "", s);
    smp_status status =
        stages.failed
            ? SMP_ERR_NO_MEMORY
            : SMP__FIND(
                  &b->out->findings, UNFIT, "memory", b->sketch->stages_where,
                  "rank %d (stage%s %s) needs %s, %s more than the device's %s%s", rank,
                  b->shape.chunks == 1 ? "" : "s", stages.data ? stages.data : "",
                  smp_format_bytes(need, sizeof need, peak),
                  smp_format_bytes(more, sizeof more, peak - limit),
                  smp_format_bytes(room, sizeof room, limit),
                  smp_beside_communicators(beside, b->out->plan->predicted.communicator_bytes));
    smp_text_free(&stages);
    return status;
}

/* A whole plan says how long its step is and what its ranks need. It may have been made with a
 * profile or for another cluster. */
static smp_status check_predicted(const smp__check_build *b)
{
    char said[32], now[32];
    const smp_sketch *sketch = b->sketch;
    const smp_predicted *made = &sketch->predicted, *is = &b->out->plan->predicted;
    smp_findings *findings = &b->out->findings;
    if (sketch->n_program == 0 || !b->same_numbers)
        return SMP_OK;
    if (made->step_us > 0 && fabs(is->step_us - made->step_us) > 1e-3 * made->step_us)
        SMP_TRY(SMP__FIND(findings, NOTE, "costs", sketch->predicted_where,
                          "the plan predicts a step of %s, with these costs (%s) it is %s: it was "
                          "made with another profile or cluster",
                          smp_format_us(said, sizeof said, made->step_us), b->out->cost_source,
                          smp_format_us(now, sizeof now, is->step_us)));
    if (sketch->n_peak != b->shape.pipeline || b->other_memory ||
        !smp_target_equal(sketch->target, b->request.graph->target))
        return SMP_OK;
    for (int r = 0; r < b->shape.pipeline; r++)
        if (made->peak_bytes[r] != is->peak_bytes[r])
            SMP_TRY(SMP__FIND(findings, ILLEGAL, "peak", sketch->predicted_where,
                              "predicted: peak_bytes of rank %d: got %lld, expected %lld", r,
                              (long long)made->peak_bytes[r], (long long)is->peak_bytes[r]));
    for (int r = 0; r < b->shape.pipeline; r++) {
        const int64_t stated = r < sketch->n_host ? made->host_bytes[r] : 0;
        const int64_t needed = is->host_bytes ? is->host_bytes[r] : 0;
        if (stated != needed)
            SMP_TRY(SMP__FIND(findings, ILLEGAL, "peak",
                              sketch->n_host > 0 ? sketch->host_where : sketch->predicted_where,
                              "predicted: host_bytes of rank %d: got %lld, expected %lld", r,
                              (long long)stated, (long long)needed));
    }
    return SMP_OK;
}

/* Where a plan does not say what its stages recompute, that is chosen as in planning. */
static smp_status choose_recompute(scoring *s, const smp_program *program, smp_candidate *candidate)
{
    smp__check_build *b = s->b;
    smp_problem problem;
    size_t n_op = (size_t)b->request.graph->n_op;
    bool *said = SMP_ARENA_NEW(b->arena, bool, n_op);
    bool *is_said = SMP_ARENA_NEW(b->arena, bool, (size_t)b->sketch->n_stage);
    if (b->request.options.recompute != SMP_RECOMPUTE_AUTO || !b->request.graph->training)
        return SMP_OK;
    if (!said || !is_said)
        return SMP_ERR_NO_MEMORY;
    bool *recompute = candidate->partition->recompute;
    memcpy(said, recompute, n_op);
    int n_said = 0;
    for (int i = 0; i < b->sketch->n_listed; i++)
        n_said += is_said[b->sketch->stage[i].stage] = b->sketch->stage[i].recompute.what >= 0;
    if (n_said == b->sketch->n_stage)
        return SMP_OK;
    SMP_TRY(smp_given_plan_problem(&s->given, &problem));
    SMP_TRY(smp__fit_memory(&s->given.planner, &problem, candidate, program,
                            (smp__means){.recompute = true}, INT64_MAX, true));
    for (size_t op = 0; op < n_op; op++)
        recompute[op] = is_said[candidate->partition->stage[op]] ? said[op] : recompute[op];
    smp_partition *changed = NULL;
    SMP_TRY(smp__partition_recompute(&problem, candidate->partition, recompute, &changed));
    smp_partition_destroy(candidate->partition);
    candidate->partition = b->out->partition = changed;
    return SMP_OK;
}

/* Takes the programs over. */
static smp_status make_plan(scoring *s, smp_program *program)
{
    smp__check_build *b = s->b;
    smp__evaluation evaluation;
    smp_candidate candidate =
        smp_given_plan_candidate(&s->given, b->out->partition, b->offload, b->horizon);
    SMP_TRY(choose_recompute(s, program, &candidate));
    SMP_TRY(smp__planner_hold(&s->given.planner, candidate.partition, candidate.offload));
    for (int r = 0; r < candidate.pipeline && b->sketch->n_program == 0; r++)
        SMP_TRY(smp__drop_transfers(&s->given.planner, &candidate, r, &program[r]));
    SMP_TRY(smp_plan_evaluate(&s->given, &candidate, program, true, &evaluation));
    smp_status status = smp__planner_write(&s->given.planner, b->request.graph->path, &candidate,
                                           &evaluation, &b->out->plan);
    smp__evaluation_free(&evaluation);
    SMP_TRY(status);
    const int64_t *peak = b->out->plan->predicted.peak_bytes;
    b->out->time_us = smp_plan_sample_us(&b->request, b->out->plan);
    for (int r = 0; r < candidate.pipeline; r++) {
        const int64_t limit = smp__planner_limit(&s->given.planner, &candidate, r);
        if (peak[r] > limit)
            SMP_TRY(find_unfit(b, r, peak[r], limit));
    }
    return check_predicted(b);
}

static smp_status score_programs(scoring *s)
{
    const smp__check_build *b = s->b;
    smp_program *program = SMP_ARENA_NEW(b->arena, smp_program, (size_t)b->shape.pipeline);
    if (!program)
        return SMP_ERR_NO_MEMORY;
    smp_status status = make_programs(s, program);
    if (status == SMP_OK && smp__check_is_legal(b))
        status = make_plan(s, program);
    for (int r = 0; r < b->shape.pipeline; r++)
        smp_program_free(&program[r]);
    return status;
}

/* The plan at hand is one of those that are compared. No plan is no failure. */
static smp_status plan_best(smp__check_build *b, const smp_search_request *request,
                            smp_check_best *out, const smp__planned **planned)
{
    SMP_TRY(smp__check_plan(b, request, false, planned));
    if (!*planned) {
        snprintf(out->reason, sizeof out->reason, "%s", smp_last_error());
        return SMP_OK;
    }
    out->plan = (*planned)->plan;
    out->timed_out = (*planned)->timed_out;
    out->time_us = smp_plan_sample_us(request, out->plan);
    if (smp__check_fits(b) && b->out->time_us < out->time_us) {
        out->plan = b->out->plan;
        out->time_us = b->out->time_us;
    }
    out->ratio = out->time_us > 0 ? b->out->time_us / out->time_us : 1;
    return SMP_OK;
}

static void use_bound(smp__check_build *b)
{
    smp_predicted *predicted = &b->out->plan->predicted;
    const smp_plan *same = b->out->same.plan;
    /* What was proven of plans that fit in the order of that one says nothing about other
     * orders. */
    if (!same || !smp__check_fits(b) || b->same->lower_bound_us <= predicted->lower_bound_us)
        return;
    predicted->lower_bound_us = fmin(b->same->lower_bound_us, predicted->bottleneck_us);
    predicted->gap = predicted->bottleneck_us / predicted->lower_bound_us - 1;
    b->out->partition->lower_bound_us = predicted->lower_bound_us;
    if (b->same->bound && *b->same->bound)
        b->out->bound = b->same->bound;
}

/* The best of all first: it may be the best of the same numbers, too. */
static smp_status compare(smp__check_build *b)
{
    double now = smp_work_s(), deadline = b->request.deadline_s;
    smp_search_request any = b->request;
    if (b->request.rank_begin) /* the graph is that of these groups in these stages */
        return SMP__FIND(&b->out->findings, NOTE, "split", b->sketch->stages_where,
                         "stages have groups of different sizes (`tensor`): no other plan is "
                         "compared");
    any.placement = SMP_PLACEMENT_AUTO;
    any.options.stages = any.options.ddp = any.options.chunks = any.options.microbatches = 0;
    any.options.schedule = NULL;
    smp_search_request same = any;
    same.options.stages = b->shape.pipeline;
    same.options.ddp = b->request.options.ddp;
    same.options.chunks = b->shape.chunks;
    same.options.microbatches = b->shape.microbatches;
    same.options.schedule = b->kind->any_placement ? NULL : b->kind->name;
    if (deadline > now) { /* the rest is for the parts */
        any.deadline_s = now + 0.4 * (deadline - now);
        same.deadline_s = now + 0.8 * (deadline - now);
    }
    SMP_TRY(plan_best(b, &any, &b->out->any, &b->any));
    SMP_TRY(plan_best(b, &same, &b->out->same, &b->same));
    use_bound(b);
    return SMP_OK;
}

smp_status smp__check_score(smp__check_build *b)
{
    const smp_search_request *request = &b->request;
    scoring s = {.b = b};
    smp_status status = smp_given_plan_open(request, b->kind, &b->shape, b->arena, &s.given);
    if (status == SMP_OK)
        status = smp_given_plan_place(&s.given, request->placement, request->device, b->rank);
    if (status == SMP_OK) {
        snprintf(b->out->cost_source, sizeof b->out->cost_source, "%s",
                 s.given.planner.costs->source);
        status = score_stages(&s);
    }
    if (status == SMP_OK)
        status = score_programs(&s);
    smp_given_plan_close(&s.given);
    if (status == SMP_OK && smp__check_is_legal(b))
        status = compare(b);
    if (status == SMP_OK && b->out->plan && smp__check_fits(b) && !request->rank_begin)
        status = smp__check_parts(b);
    return status;
}
