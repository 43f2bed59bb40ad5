/* Planning a model around a schedule of another framework. */
#ifndef SMP_SCHEDULE_FOREIGN_FOREIGN_TAKE_H
#define SMP_SCHEDULE_FOREIGN_FOREIGN_TAKE_H

#include "schedule/foreign/foreign.h"

/* Reads the schedule, proves that it holds, and sets ranks, chunks, micro-batches and the rule that
 * places stages as it does. request: its graph is set. SMP_ERR_INPUT: it does not hold, the request
 * says other numbers, or no rule places stages so. *out is the caller's also after a failure. */
smp_status smp_foreign_begin(const char *path, smp_search_request *request, smp_foreign **out);
/* Replaces the plan of a result, made for that request, by one in the order of the schedule.
 * SMP_ERR_INPUT where our rules do not allow it (schedule/verify/verify.h), say backwards that are
 * not in micro-batch order. */
smp_status smp_foreign_take_order(const smp_foreign *foreign, const smp_search_request *request,
                                  smp_planner_result *result);

#endif
