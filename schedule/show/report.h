/* A plan for people: the table that smp-partition prints, and its reasons (--explain). */
#ifndef SMP_SCHEDULE_SHOW_REPORT_H
#define SMP_SCHEDULE_SHOW_REPORT_H

#include "schedule/planner/planner.h"

/* A row per stage and a few lines of summary. */
smp_status smp_report_table(const smp_planner_result *result, const smp_graph *graph,
                            smp_text *text);
/* The same for a plan and the loads of its stages. */
smp_status smp_report_plan(const smp_plan *plan, const smp_partition *partition,
                           const smp_graph *graph, smp_text *text);

/* In plain words: which solver won, what limits the slowest rank, what proves the bound and how far
 * the plan is from it, whether the time limit struck, the ten best configurations of the search. */
smp_status smp_report_explain(const smp_planner_result *result, smp_text *text);

/* What would help most, each change with the gain that it was evaluated to. request: the one that
 * made the result. */
smp_status smp_report_hints(const smp_search_request *request, const smp_planner_result *result,
                            smp_text *text);

/* What limits the slowest rank of a plan, stage by stage. */
void smp__explain_bottleneck(const smp_plan *plan, const smp_partition *partition, smp_text *text);

#endif
