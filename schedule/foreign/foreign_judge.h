/* The verdict on a foreign schedule: does it hold, what does it cost, what would the planner do? */
#ifndef SMP_SCHEDULE_FOREIGN_FOREIGN_JUDGE_H
#define SMP_SCHEDULE_FOREIGN_FOREIGN_JUDGE_H

#include "schedule/foreign/foreign.h"

/* A unit of time in microseconds: far above what the planner takes for nothing. */
#define SMP__FOREIGN_UNIT_US 1000.0

typedef struct smp_foreign_verdict {
    const smp_foreign *foreign;
    smp_findings findings;
    bool complete; /* nothing is missing or out of place; else it was not run */
    bool legal;    /* complete, and it finishes */
    bool measured; /* times are those of a plan, in microseconds; else units */
    smp_foreign_times times;
    smp_foreign_run run;
    /* The planner's own order for the same stages, ranks and micro-batches, transfers free; NULL:
     * none was looked for, for this reason. */
    smp_plan *best;
    char reason[512];
    double best_step; /* as run.step_us */
    smp_arena *arena;
} smp_foreign_verdict;

/* costs: a plan with as many stages, which says what they take; NULL: forwards take 1, backwards 2,
 * each half of one 1, times the layers where a layout says how many. deadline_s: smp_work_s() by
 * which the planner has to be done; 0: never. Findings are no errors. SMP_ERR_INPUT: a plan of
 * other stages. foreign, costs: outlive the verdict. */
smp_status smp_foreign_judge(const smp_foreign *foreign, const smp_plan *costs, double deadline_s,
                             smp_foreign_verdict *out);
/* The same without the planner's own order. */
smp_status smp_foreign_prove(const smp_foreign *foreign, const smp_plan *costs,
                             smp_foreign_verdict *out);
void smp_foreign_verdict_free(smp_foreign_verdict *verdict); /* the contents */

/* As text, and as one JSON object. */
smp_status smp_foreign_report(const smp_foreign_verdict *verdict, smp_text *text);
smp_status smp_foreign_report_json(const smp_foreign_verdict *verdict, smp_text *json);

/* The planner's order for such stages, see smp_foreign_verdict.best. SMP_ERR_NO_FIT, SMP_ERR_INPUT
 * where there is none. */
smp_status smp__foreign_plan(const smp_foreign *foreign, const smp_foreign_times *times,
                             double deadline_s, smp_plan **out);

#endif
