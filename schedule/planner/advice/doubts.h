/* Plans that nobody wants, however they were asked for. */
#ifndef SMP_SCHEDULE_PLANNER_ADVICE_DOUBTS_H
#define SMP_SCHEDULE_PLANNER_ADVICE_DOUBTS_H

#include "graph/base/text.h"
#include "schedule/planner/search/search.h"

/* Appends a line for each thing that is odd about a plan, with what would help where a plan with
 * it was made: a bubble over 30 %, fewer micro-batches than pipeline ranks, recomputation of
 * everything with half of the memory free, a rank without work. request: the one that made the
 * result. */
smp_status smp_planner_doubts(const smp_search_request *request, const smp_planner_result *result,
                              smp_text *text);

#endif
