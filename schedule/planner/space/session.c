/* A planning session: what is asked for as the search takes it, and costs. */
#include <stdlib.h>

#include "schedule/planner/space/session.h"

/* What goes to host memory travels, and a step without that is not the step. */
static smp_status check_host_link(const smp_search_request *request)
{
    if (!request->graph->training || request->cluster->host.bytes_per_s > 0.0)
        return SMP_OK;
    const char *asks = request->options.offload == SMP_OFFLOAD_ALL          ? "--offload all"
                       : request->options.offload_states == SMP_OFFLOAD_ALL ? "--offload-states all"
                       : smp__states_in_host(request) ? "a plan with `offload_states: true`"
                                                      : NULL;
    return !asks ? SMP_OK
                 : smp_fail(SMP_ERR_INPUT,
                            "%s: cluster '%s' has no link to host memory, expected `links: "
                            "{host: {bandwidth: .., latency_us: ..}}`",
                            asks, request->cluster->name);
}

smp_status smp__planner_open(const smp_search_request *request, smp__planner *planner)
{
    SMP_TRY(check_host_link(request));
    *planner = (smp__planner){.request = *request};
    smp__budget_open(&planner->budget, request->deadline_s);
    if (!request->graph->training)
        planner->request.options.gradient_blocks = 0; /* nothing is added up */
    planner->any_shard = request->sharding.shard == SMP_SHARD_AUTO;
    planner->few_shards = planner->any_shard && request->few_shards;
    if (planner->request.sharding.shard < 1)
        planner->request.sharding.shard = 1;
    planner->any_prefetch = request->sharding.prefetch == SMP_PREFETCH_AUTO;
    if (planner->any_prefetch)
        planner->request.sharding.prefetch =
            request->options.optimize == SMP_OPTIMIZE_MEMORY ? 0 : SMP_PREFETCH_DEFAULT;
    planner->request.sharding.offload_states = smp__states_in_host(request);
    planner->any_states = request->options.offload_states == SMP_OFFLOAD_AUTO &&
                          request->graph->training && request->cluster->host.bytes_per_s > 0.0 &&
                          !planner->request.sharding.offload_states;
    SMP_TRY(smp__keep_together(request, &planner->together));
    if (planner->together)
        planner->request.together = planner->together;
    smp_status status = smp_costs_build(request->graph, request->cluster, request->profile,
                                        request->options.microbatch_size, &planner->costs);
    if (status != SMP_OK)
        smp__planner_close(planner);
    return status;
}

void smp__planner_close(smp__planner *planner)
{
    smp__planner_drop(planner);
    smp_memo_free(&planner->peaks);
    smp_memo_free(&planner->packings);
    smp_costs_destroy(planner->costs);
    free(planner->together);
    *planner = (smp__planner){0};
}

smp_status smp__at_numbers(const smp_search_request *request, smp_status status)
{
    const smp_where where = request->numbers_where;
    if (!where.file || (status != SMP_ERR_INPUT && status != SMP_ERR_NO_FIT))
        return status;
    return smp_fail_context(status, "%s:%d:%d", where.file, where.line, where.column);
}

smp_schedule_shape smp__planner_shape(const smp__planner *planner, int pipeline, int chunks,
                                      int microbatches, int active)
{
    return (smp_schedule_shape){.pipeline = pipeline,
                                .chunks = chunks,
                                .microbatches = microbatches,
                                .training = planner->request.graph->training,
                                .active = active,
                                .group = planner->request.options.group,
                                .lag = planner->request.options.weight_lag,
                                .sharding = planner->request.sharding};
}

smp_status smp__planner_check(const smp_schedule_kind *kind, const smp_schedule_shape *shape)
{
    SMP_TRY(smp_schedule_check(kind, shape));
    return smp_schedule_check_active(kind, shape);
}
