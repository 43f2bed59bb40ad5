/* From a foreign schedule to the verdict on it; see the header. */
#include "schedule/foreign/foreign_judge.h"

#include <stdio.h>
#include <stdlib.h>

static smp_status set_times(smp_foreign_verdict *v, const smp_plan *costs)
{
    const smp_foreign *foreign = v->foreign;
    size_t n = (size_t)foreign->n_stage;
    double *forward = SMP_ARENA_NEW(v->arena, double, n);
    double *backward = SMP_ARENA_NEW(v->arena, double, n);
    double *input = SMP_ARENA_NEW(v->arena, double, n);
    if (!forward || !backward || !input)
        return SMP_ERR_NO_MEMORY;
    if (costs && costs->n_stage != foreign->n_stage)
        return smp_fail(SMP_ERR_INPUT,
                        "--costs: the plan has %d stages, %s has %d: expected as many",
                        costs->n_stage, foreign->file, foreign->n_stage);
    for (int s = 0; s < foreign->n_stage; s++) {
        const double units = foreign->layers ? foreign->layers[s] : 1;
        forward[s] = units * SMP__FOREIGN_UNIT_US;
        backward[s] = 2 * units * SMP__FOREIGN_UNIT_US;
        input[s] = units * SMP__FOREIGN_UNIT_US;
        if (!costs)
            continue;
        const smp_plan_stage *stage = &costs->stage[s];
        forward[s] = stage->forward_us;
        backward[s] = stage->backward_us + stage->recompute_us;
        input[s] = stage->recompute_us + (costs->backward_input_us ? costs->backward_input_us[s]
                                                                   : 0.5 * stage->backward_us);
    }
    v->measured = costs != NULL;
    v->times = (smp_foreign_times){forward, backward, input};
    return SMP_OK;
}

/* That the planner has no order for it is no failure. */
static smp_status compare(smp_foreign_verdict *v, double deadline_s)
{
    smp_status status = smp__foreign_plan(v->foreign, &v->times, deadline_s, &v->best);
    if (status == SMP_OK) {
        v->best_step = v->best->predicted.step_us;
        return SMP_OK;
    }
    if (status != SMP_ERR_INPUT && status != SMP_ERR_NO_FIT)
        return status;
    snprintf(v->reason, sizeof v->reason, "%s", smp_last_error());
    return SMP_OK;
}

static smp_status prove(smp_foreign_verdict *v, const smp_plan *costs)
{
    SMP_TRY(set_times(v, costs));
    SMP_TRY(smp_foreign_check(v->foreign, &v->findings));
    v->complete = v->findings.n_level[SMP_FINDING_ILLEGAL] == 0;
    if (!v->complete)
        return SMP_OK;
    SMP_TRY(smp_foreign_simulate(v->foreign, &v->times, &v->findings, v->arena, &v->run));
    v->legal = v->run.finishes;
    return SMP_OK;
}

smp_status smp_foreign_prove(const smp_foreign *foreign, const smp_plan *costs,
                             smp_foreign_verdict *out)
{
    smp_foreign_verdict v = {.foreign = foreign, .arena = smp_arena_create()};
    v.findings.arena = v.arena;
    smp_status status = v.arena ? prove(&v, costs) : SMP_ERR_NO_MEMORY;
    if (status == SMP_OK)
        *out = v;
    else
        smp_foreign_verdict_free(&v);
    return status;
}

smp_status smp_foreign_judge(const smp_foreign *foreign, const smp_plan *costs, double deadline_s,
                             smp_foreign_verdict *out)
{
    smp_foreign_verdict v;
    SMP_TRY(smp_foreign_prove(foreign, costs, &v));
    smp_status status = v.legal ? compare(&v, deadline_s) : SMP_OK;
    if (status == SMP_OK)
        *out = v;
    else
        smp_foreign_verdict_free(&v);
    return status;
}

void smp_foreign_verdict_free(smp_foreign_verdict *verdict)
{
    free(verdict->findings.item);
    smp_plan_destroy(verdict->best);
    smp_arena_destroy(verdict->arena);
    *verdict = (smp_foreign_verdict){0};
}
