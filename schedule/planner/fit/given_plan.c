/* A plan that is given: see the header. */
#include "schedule/planner/fit/given_plan.h"

smp_status smp_given_plan_open(const smp_search_request *request, const smp_schedule_kind *schedule,
                               const smp_schedule_shape *shape, smp_arena *arena,
                               smp_given_plan *out)
{
    *out = (smp_given_plan){.schedule = schedule, .shape = *shape};
    SMP_TRY(smp__planner_open(request, &out->planner));
    out->planner.request.together = NULL;
    out->configs = (smp__configs){.planner = &out->planner,
                                  .request = &out->planner.request,
                                  .costs = out->planner.costs,
                                  .arrangement = &out->arrangement,
                                  .arena = arena};
    return SMP_OK;
}

void smp_given_plan_close(smp_given_plan *given)
{
    smp__planner_close(&given->planner);
}

smp_status smp_given_plan_place(smp_given_plan *given, smp_placement placement, const int *listed,
                                const int *rank)
{
    const smp_schedule_shape *shape = &given->shape;
    const smp_search_request *request = &given->planner.request;
    const int n_stage = shape->pipeline * shape->chunks;
    const smp__mapping *mapping;
    int64_t *limit = SMP_ARENA_NEW(given->configs.arena, int64_t, (size_t)n_stage);
    if (!limit)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(smp__mapping_get(&given->configs, shape->pipeline, placement, listed, &mapping));
    for (int i = 0; i < n_stage; i++)
        limit[i] = mapping->memory[rank[i]] / shape->chunks;
    given->arrangement = (smp__arrangement){
        .mapping = mapping, .chunks = shape->chunks, .stage_rank = rank, .limit = limit};
    given->config = (smp__config){
        .mapping = mapping,
        .chunks = shape->chunks,
        .microbatches = shape->microbatches,
        .schedule = given->schedule,
        .active = shape->active,
        .lag = shape->lag,
        .sharding = request->sharding,
        .state_factor = 0.25 * smp_memory_host_bytes(request->graph, request->sharding),
        .idle_factor = 0.25 * smp_memory_idle_bytes(request->graph, request->sharding),
        .recompute = request->options.recompute};
    return SMP_OK;
}

smp_status smp_given_plan_problem(smp_given_plan *given, smp_problem *out)
{
    return smp__config_problem(&given->configs, &given->config, out);
}

smp_candidate smp_given_plan_candidate(const smp_given_plan *given, smp_partition *partition,
                                       bool *offload, int horizon)
{
    const smp__mapping *mapping = given->config.mapping;
    return (smp_candidate){.pipeline = given->shape.pipeline,
                           .ddp = given->planner.request.options.ddp,
                           .replicas = mapping->replicas,
                           .chunks = given->shape.chunks,
                           .microbatches = given->shape.microbatches,
                           .active = given->shape.active,
                           .lag = given->shape.lag,
                           .sharding = given->config.sharding,
                           .microbatch_size = given->planner.request.options.microbatch_size,
                           .schedule = given->schedule->name,
                           .placement = mapping->placement,
                           .device = mapping->device,
                           .stage_rank = (int *)given->arrangement.stage_rank,
                           .partition = partition,
                           .offload = offload,
                           .horizon = horizon};
}

smp_status smp_plan_evaluate(smp_given_plan *given, const smp_candidate *candidate,
                             smp_program *program, bool exactly, smp__evaluation *out)
{
    SMP_TRY(smp__planner_hold(&given->planner, candidate->partition, candidate->offload));
    return smp__planner_evaluate(&given->planner, candidate, program, exactly, out);
}
