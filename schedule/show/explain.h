/* The reasons of a plan, in plain words (--explain). All append to the text. */
#ifndef SMP_SCHEDULE_SHOW_EXPLAIN_H
#define SMP_SCHEDULE_SHOW_EXPLAIN_H

#include "schedule/tensor/tensor_plan.h"

/* Which solver won, what limits the slowest rank, what proves the bound and how far the plan is
 * from it, whether the time limit struck, the ten best configurations of the search. */
smp_status smp_explain_plan(const smp_planner_result *result, smp_text *text);

/* What would help most, each change with the gain that it was evaluated to. request: the one that
 * made the result. */
smp_status smp_explain_hints(const smp_search_request *request, const smp_planner_result *result,
                             smp_text *text);

/* The splittings that were looked at, and what each came to; nothing of a single one. */
smp_status smp_explain_tensor(const smp_tensor_result *made, smp_text *text);

/* How many ops are split, and how, where devices compute them together. */
void smp_explain_splitting(const smp_plan *plan, smp_text *text);

/* What limits the slowest rank of a plan, stage by stage. */
void smp_explain_bottleneck(const smp_plan *plan, const smp_partition *partition, smp_text *text);

#endif
