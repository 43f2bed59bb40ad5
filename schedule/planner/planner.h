/* From a model, a cluster and a profile to a verified plan: costs, search, lowering, simulation,
 * memory. What smp-partition and smp_init call. */
#ifndef SMP_SCHEDULE_PLANNER_PLANNER_H
#define SMP_SCHEDULE_PLANNER_PLANNER_H

#include "schedule/planner/advice/hints.h"

/* request: see space/request.h. model_path: what to write in the plan. The plan has been verified.
 * Errors: SMP_ERR_INPUT; SMP_ERR_NO_FIT, if the request asks for advice with what would make it
 * fit: single changes of it, each of which was planned, in 30 % of the time that is left. */
smp_status smp_plan_make(const smp_search_request *request, const char *model_path,
                         smp_planner_result *out);

#endif
