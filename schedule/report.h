/* A plan for people: the table that smp-partition prints, and its reasons (--explain). */
#ifndef SMP_SCHEDULE_REPORT_H
#define SMP_SCHEDULE_REPORT_H

#include "schedule/planner.h"

/* A row per stage and a few lines of summary. */
smp_status smp_report_table(const smp_planner_result *result, const smp_graph *graph,
                            smp_text *text);

/* Which solver won, what limits the bottleneck, how far it is from the bound, and the ten best
 * configurations of the search. */
smp_status smp_report_explain(const smp_planner_result *result, smp_text *text);

#endif
