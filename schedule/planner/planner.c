/* A plan, or where nothing fits what would. */
#include "schedule/planner/planner.h"

#include "schedule/planner/advice/advice.h"

smp_status smp_plan_make(const smp_search_request *request, const char *model_path,
                         smp_planner_result *out)
{
    smp__nearest nearest = {0};
    smp_status status = smp__plan_search(request, model_path, NULL, &nearest, out);
    return status == SMP_ERR_NO_FIT && request->advise && nearest.known
               ? smp__plan_advise(request, &nearest)
               : status;
}
