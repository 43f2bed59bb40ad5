/* Planning for a foreign order: its numbers into the request, the best partition for the rule that
 * places stages alike, and then the order itself into that plan: written down with these programs
 * it is read as a plan by hand, verified and scored. */
#include "schedule/foreign/foreign_take.h"

#include <stdlib.h>

#include "graph/base/clock.h"
#include "schedule/foreign/foreign_judge.h"
#include "schedule/lower/lower.h"

/* The numbers of a schedule to plan for, and the rule that places stages as it does. */
static smp_status take_numbers(const smp_foreign *foreign, smp_search_request *r)
{
    const int v = foreign->n_stage / foreign->n_rank;
    const struct {
        const char *name;
        int *asked, said;
    } numbers[] = {{"--stages", &r->options.stages, foreign->n_rank},
                   {"--chunks", &r->options.chunks, v},
                   {"--microbatches", &r->options.microbatches, foreign->microbatches}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (*numbers[i].asked > 0 && *numbers[i].asked != numbers[i].said)
            return smp_fail(SMP_ERR_INPUT, "%s: got %d, the schedule %s has %d", numbers[i].name,
                            *numbers[i].asked, foreign->file, numbers[i].said);
        *numbers[i].asked = numbers[i].said;
    }
    if (r->options.schedule)
        return smp_fail(SMP_ERR_INPUT, "--pipeline: --schedule-from gives the order already");
    for (const smp_schedule_kind *const *kind = smp_schedules(); *kind; kind++) {
        const smp_schedule_shape shape = {.pipeline = r->options.stages,
                                          .chunks = v,
                                          .microbatches = r->options.microbatches,
                                          .training = r->graph->training};
        bool same = v * r->options.stages == foreign->n_stage &&
                    smp_schedule_check(*kind, &shape) == SMP_OK;
        for (int s = 0; s < foreign->n_stage && same; s++)
            same = smp_schedule_stage_rank(*kind, &shape, s) == foreign->stage_rank[s];
        if (same) {
            r->options.schedule = (*kind)->name;
            return SMP_OK;
        }
    }
    return smp_fail(SMP_ERR_INPUT,
                    "--schedule-from: %s: no rule places %d stages on %d ranks as it does: dealt "
                    "out in turn, or folded into a V",
                    foreign->file, foreign->n_stage, foreign->n_rank);
}

static smp_status check_holds(const smp_foreign *foreign)
{
    smp_foreign_verdict verdict = {0};
    SMP_TRY(smp_foreign_prove(foreign, NULL, &verdict));
    smp_status status = SMP_OK;
    if (!verdict.legal) {
        const smp_finding *first = &verdict.findings.item[0];
        status = first->where.line > 0
                     ? smp_fail_at(first->where, "%s", first->message)
                     : smp_fail(SMP_ERR_INPUT, "%s: %s", foreign->file, first->message);
    }
    smp_foreign_verdict_free(&verdict);
    return status;
}

smp_status smp_foreign_begin(const char *path, smp_search_request *request, smp_foreign **out)
{
    SMP_TRY(smp_foreign_read(path, 0, 0, out));
    SMP_TRY(check_holds(*out));
    if ((*out)->training != request->graph->training)
        return smp_fail(SMP_ERR_INPUT, "--schedule-from: %s has %s backwards, the model is for %s",
                        path, (*out)->training ? "its" : "no",
                        request->graph->training ? "training" : "inference");
    return take_numbers(*out, request);
}

/* The plan with the order's programs as YAML, as one by hand: it says nothing of what they take. */
static smp_status write_order(const smp_foreign *foreign, const smp_graph *graph,
                              const smp_plan *plan, smp_program *orders, smp_program *programs,
                              smp_text *yaml)
{
    int32_t *stage_of_op = NULL;
    smp_flow *flow = NULL;
    int chunks;
    smp_plan changed = *plan;
    const smp_schedule_shape shape = smp_plan_shape(plan);
    changed.schedule = smp__schedule_auto.name;
    changed.program = programs;
    SMP_TRY(smp_foreign_orders(foreign, orders, &chunks));
    SMP_TRY(smp_plan_bind(plan, graph, &stage_of_op));
    smp_status status =
        smp_flow_build(graph, stage_of_op, plan->n_stage, plan->microbatch_size, &flow);
    if (status == SMP_OK)
        status = smp_lower_orders(&shape, foreign->stage_rank, flow, orders, programs);
    if (status == SMP_OK)
        status = smp_plan_format(&changed, yaml);
    smp_flow_destroy(flow);
    free(stage_of_op);
    return status;
}

static smp_status order_text(const smp_foreign *foreign, const smp_graph *graph,
                             const smp_plan *plan, smp_text *yaml)
{
    smp_arena *arena = smp_arena_create();
    const size_t n = (size_t)plan->pipeline;
    smp_program *orders = arena ? SMP_ARENA_NEW(arena, smp_program, 2 * n) : NULL;
    smp_status status =
        orders ? write_order(foreign, graph, plan, orders, orders + n, yaml) : SMP_ERR_NO_MEMORY;
    for (size_t r = 0; orders && r < 2 * n; r++)
        smp_program_free(&orders[r]);
    smp_arena_destroy(arena);
    return status;
}

smp_status smp_foreign_take_order(const smp_foreign *foreign, const smp_search_request *request,
                                  smp_planner_result *result)
{
    smp_text yaml = {0};
    smp_sketch *sketch = NULL;
    smp_check check = {0};
    smp_status status = order_text(foreign, request->graph, result->plan, &yaml);
    if (status == SMP_OK)
        status = smp_sketch_parse(foreign->file, yaml.data, yaml.length, &sketch);
    smp_text_free(&yaml);
    smp_search_request scored = *request;
    scored.options.schedule = NULL;
    scored.deadline_s = smp_work_s() + 0.01; /* nothing to compare it with is asked for */
    if (status == SMP_OK) {
        sketch->predicted = (smp_predicted){0}; /* it was for the rule's programs */
        sketch->n_peak = 0;
        status = smp_check_sketch(&scored, false, sketch, &check);
    }
    for (int32_t i = 0; status == SMP_OK && i < check.findings.n; i++)
        if (check.findings.item[i].level == SMP_FINDING_ILLEGAL)
            status = smp_fail(SMP_ERR_INPUT, "--schedule-from: %s: %s", foreign->file,
                              check.findings.item[i].message);
    if (status == SMP_OK) {
        smp_plan_destroy(result->plan);
        result->plan = check.plan;
        check.plan = NULL;
    }
    smp_check_free(&check);
    smp_sketch_destroy(sketch);
    return status;
}
