/* Simulating a plan as read: all the numbers stand in it. */
#include "schedule/simulate/simulate.h"

/* Arrays of the input, per stage and per device. */
typedef struct plan_arrays {
    int *stage_rank, *device;
    double *forward_us, *backward_us, *recompute_us;
    int64_t *weight_bytes;
} plan_arrays;

static smp_status fill(const smp_plan *plan, smp_arena *arena, plan_arrays *a)
{
    size_t n_stage = (size_t)plan->n_stage;
    size_t n_device = (size_t)plan->pipeline * (size_t)plan->ddp;
    a->stage_rank = SMP_ARENA_NEW(arena, int, n_stage);
    a->forward_us = SMP_ARENA_NEW(arena, double, n_stage);
    a->backward_us = SMP_ARENA_NEW(arena, double, n_stage);
    a->recompute_us = SMP_ARENA_NEW(arena, double, n_stage);
    a->weight_bytes = SMP_ARENA_NEW(arena, int64_t, n_stage);
    a->device = SMP_ARENA_NEW(arena, int, n_device);
    if (!a->stage_rank || !a->forward_us || !a->backward_us || !a->recompute_us ||
        !a->weight_bytes || !a->device)
        return SMP_ERR_NO_MEMORY;
    for (int stage = 0; stage < plan->n_stage; stage++) {
        a->stage_rank[stage] = plan->stage[stage].rank;
        a->forward_us[stage] = plan->stage[stage].forward_us;
        a->backward_us[stage] = plan->stage[stage].backward_us;
        a->recompute_us[stage] = plan->stage[stage].recompute ? plan->stage[stage].forward_us : 0.0;
        a->weight_bytes[stage] = plan->stage[stage].weight_bytes;
    }
    for (int replica = 0; replica < plan->ddp; replica++)
        for (int rank = 0; rank < plan->pipeline; rank++)
            a->device[(int64_t)replica * plan->pipeline + rank] =
                smp_plan_device(plan->placement, plan->pipeline, plan->ddp, replica, rank);
    return SMP_OK;
}

smp_status smp_simulate_plan(const smp_plan *plan, const smp_graph *graph, const smp_flow *flow,
                             smp_simulation **out)
{
    if (!plan->cluster)
        return smp_fail(SMP_ERR_INPUT, "the plan has no cluster: nothing to simulate it on");
    if (!plan->program)
        return smp_fail(SMP_ERR_INPUT, "the plan has no programs");
    if (plan->pipeline < 1 || plan->ddp < 1 ||
        (int64_t)plan->pipeline * plan->ddp > smp_cluster_devices(plan->cluster))
        return smp_fail(SMP_ERR_INPUT, "the plan needs %d * %d devices, its cluster '%s' has %d",
                        plan->pipeline, plan->ddp, plan->cluster->name,
                        smp_cluster_devices(plan->cluster));
    smp_arena *arena = smp_arena_create();
    if (!arena)
        return SMP_ERR_NO_MEMORY;
    plan_arrays a;
    smp_status status = fill(plan, arena, &a);
    if (status == SMP_OK)
        status = smp_simulate(
            &(smp_simulation_input){.pipeline = plan->pipeline,
                                    .chunks = plan->chunks,
                                    .ddp = plan->ddp,
                                    .microbatches = plan->microbatches,
                                    .program = plan->program,
                                    .stage_rank = a.stage_rank,
                                    .forward_us = a.forward_us,
                                    .backward_us = a.backward_us,
                                    .recompute_us = a.recompute_us,
                                    .weight_bytes = a.weight_bytes,
                                    .flow = flow,
                                    .graph = graph,
                                    .cluster = plan->cluster,
                                    .device = a.device,
                                    .optimizer_bytes_per_s = plan->optimizer_bytes_per_s},
            out);
    smp_arena_destroy(arena);
    return status;
}
