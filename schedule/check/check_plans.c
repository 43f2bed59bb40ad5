/* The planner's plans that a check compares with. They are asked for one after the other, each with
 * less that is free than in the first: any numbers; those of the checked plan; those and its
 * stages. The best of many plans is also the best of any few of them that it is one of: so a search
 * is made only if no earlier one was for all that it is for and more, came to its end, and found a
 * plan that this one allows. */
#include <math.h>
#include <string.h>

#include "graph/base/clock.h"
#include "schedule/check/check_build.h"
#include "schedule/planner/search/search_state.h"

bool smp__check_devices_differ(const smp_cluster *cluster)
{
    for (int d = 1; d < smp_cluster_devices(cluster); d++)
        if (!smp_devices_alike(&cluster->device[0], &cluster->device[d]))
            return true;
    return cluster->nodes > 1;
}

smp_recompute smp__check_treatment(const smp_partition *partition)
{
    int n = 0; /* stages that recompute everything */
    for (int s = 0; s < partition->n_stage; s++)
        n += partition->load[s].n_recompute == partition->load[s].n_op;
    return smp__count_recomputing(partition) == 0 ? SMP_RECOMPUTE_NONE
           : n == partition->n_stage              ? SMP_RECOMPUTE_ALL
                                                  : SMP_RECOMPUTE_AUTO;
}

/* What a request leaves open, or is the same. */
static bool allows_number(int asked, int number)
{
    return asked == 0 || asked == number;
}

static bool allows_schedule(const char *asked, const char *schedule)
{
    return !asked || (schedule && strcmp(asked, schedule) == 0);
}

/* Everything that the request is for, an earlier one was for too; of pins that it was for the plan
 * that it found is enough. */
static bool is_wider(const smp_search_request *earlier, const smp_search_request *request)
{
    return allows_number(earlier->options.stages, request->options.stages) &&
           allows_number(earlier->options.ddp, request->options.ddp) &&
           allows_number(earlier->options.chunks, request->options.chunks) &&
           allows_number(earlier->options.microbatches, request->options.microbatches) &&
           allows_schedule(earlier->options.schedule, request->options.schedule) &&
           (earlier->placement == SMP_PLACEMENT_AUTO || earlier->placement == request->placement) &&
           (earlier->options.recompute == SMP_RECOMPUTE_AUTO ||
            earlier->options.recompute == request->options.recompute) &&
           earlier->options.active_microbatches == request->options.active_microbatches &&
           (!earlier->pin || request->pin);
}

static bool allows_placement(const smp_search_request *request, const smp_plan *plan)
{
    if (request->placement == SMP_PLACEMENT_AUTO || !smp__check_devices_differ(request->cluster))
        return true;
    return request->placement == plan->placement &&
           (plan->placement != SMP_PLACEMENT_LISTED ||
            memcmp(request->device, plan->device, (size_t)plan->devices * sizeof *plan->device) ==
                0);
}

static bool allows(const smp_search_request *request, const smp__planned *planned)
{
    const smp_plan *plan = planned->plan;
    return allows_number(request->options.stages, plan->pipeline) &&
           allows_number(request->options.ddp, plan->ddp) &&
           allows_number(request->options.chunks, plan->chunks) &&
           allows_number(request->options.microbatches, plan->microbatches) &&
           allows_schedule(request->options.schedule, plan->schedule) &&
           allows_placement(request, plan) &&
           (request->options.recompute == SMP_RECOMPUTE_AUTO ||
            request->options.recompute == planned->treatment) &&
           (!request->pin || memcmp(request->pin, planned->stage,
                                    (size_t)request->graph->n_op * sizeof *planned->stage) == 0);
}

/* Per sample: nothing that the search looked at takes less. */
static double least_us(const smp_search_request *request, const smp_search_result *search,
                       const smp_plan *plan)
{
    double least = smp_plan_sample_us(request, plan);
    for (int i = 0; i < search->n_tried; i++)
        if (search->tried[i]->fits)
            least = fmin(least, smp__search_time(request, search->tried[i]));
    return request->options.optimize == SMP_OPTIMIZE_SPEED ? least : 0.0;
}

/* Takes the plan over. */
static smp_status keep_plan(smp__check_build *b, const smp_search_request *request,
                            smp_planner_result *result, smp__planned **out)
{
    size_t n_op = (size_t)request->graph->n_op;
    const smp_partition *partition = result->search.best->partition;
    smp__planned *planned = SMP_ARENA_NEW(b->arena, smp__planned, 1);
    int32_t *stage = SMP_ARENA_NEW(b->arena, int32_t, n_op);
    bool *recompute = SMP_ARENA_NEW(b->arena, bool, n_op);
    if (!planned || !stage || !recompute)
        return SMP_ERR_NO_MEMORY;
    memcpy(stage, partition->stage, n_op * sizeof *stage);
    memcpy(recompute, partition->recompute, n_op * sizeof *recompute);
    *planned =
        (smp__planned){.next = b->planned,
                       .request = *request,
                       .plan = result->plan,
                       .stage = stage,
                       .recompute = recompute,
                       .treatment = smp__check_treatment(partition),
                       .lower_bound_us = partition->lower_bound_us,
                       .bound = partition->bound,
                       .least_us = least_us(request, &result->search, result->plan),
                       .timed_out = result->search.timed_out || smp_work_past(request->deadline_s)};
    if (request->pin) /* the caller's may end */
        planned->request.pin = stage;
    result->plan = NULL;
    b->planned = planned;
    *out = planned;
    return SMP_OK;
}

smp_status smp__check_plan(smp__check_build *b, const smp_search_request *request, bool trial,
                           const smp__planned **out)
{
    static const smp__trial as_it_is = {.faster_op = -1};
    smp__planned *planned;
    smp_planner_result result;
    *out = NULL;
    for (planned = b->planned; planned; planned = planned->next)
        if (!planned->timed_out && is_wider(&planned->request, request) &&
            allows(request, planned)) {
            *out = planned;
            return SMP_OK;
        }
    bool found = true;
    smp_status status = trial ? smp__plan_try(request, &as_it_is, &result, &found)
                              : smp_plan_make(request, request->graph->path, &result);
    if (!found || status == SMP_ERR_INPUT || status == SMP_ERR_NO_FIT)
        return SMP_OK;
    SMP_TRY(status);
    status = keep_plan(b, request, &result, &planned);
    smp_planner_result_destroy(&result);
    if (status == SMP_OK)
        *out = planned;
    return status;
}

void smp__check_plans_free(smp__check_build *b)
{
    for (smp__planned *planned = b->planned; planned; planned = planned->next)
        if (planned->plan != b->out->same.plan && planned->plan != b->out->any.plan)
            smp_plan_destroy(planned->plan);
}
