/* Simulating a plan: all the numbers stand in it. */
#include "schedule/simulate/simulate.h"

#include <math.h>
#include <stdlib.h>

/* Arrays of the input, per stage and per device. */
typedef struct plan_arrays {
    int *stage_rank, *device;
    double *forward_us, *backward_us, *recompute_us;
    int64_t *weight_bytes, *offload_bytes;
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
    a->offload_bytes = SMP_ARENA_NEW(arena, int64_t, n_stage);
    a->device = SMP_ARENA_NEW(arena, int, n_device);
    if (!a->stage_rank || !a->forward_us || !a->backward_us || !a->recompute_us ||
        !a->weight_bytes || !a->offload_bytes || !a->device)
        return SMP_ERR_NO_MEMORY;
    for (int stage = 0; stage < plan->n_stage; stage++) {
        a->stage_rank[stage] = plan->stage[stage].rank;
        a->forward_us[stage] = plan->stage[stage].forward_us;
        a->backward_us[stage] = plan->stage[stage].backward_us;
        a->recompute_us[stage] = plan->stage[stage].recompute_us;
        a->weight_bytes[stage] = plan->stage[stage].weight_bytes;
        a->offload_bytes[stage] = plan->stage[stage].offload_bytes;
    }
    for (int replica = 0; replica < plan->ddp; replica++)
        for (int rank = 0; rank < plan->pipeline; rank++)
            a->device[(int64_t)replica * plan->pipeline + rank] =
                smp_plan_device(plan, replica, rank);
    return SMP_OK;
}

smp_status smp_split_backward(const smp_costs *costs, const int32_t *stage_of_op, int n_stage,
                              const double *backward_us, smp_arena *arena,
                              const double **backward_input_us)
{
    double *input_us = SMP_ARENA_NEW(arena, double, (size_t)n_stage);
    double *whole_us = SMP_ARENA_NEW(arena, double, (size_t)n_stage);
    if (!input_us || !whole_us)
        return SMP_ERR_NO_MEMORY;
    for (int32_t op = 0; op < costs->n_op; op++) {
        const smp_op_cost *cost =
            &costs->op[op]; /* one kernel for both may be faster than either */
        input_us[stage_of_op[op]] += fmin(cost->backward_input_us, cost->backward_us);
        whole_us[stage_of_op[op]] += cost->backward_us;
    }
    for (int s = 0; s < n_stage; s++)
        input_us[s] = whole_us[s] > 0.0 ? input_us[s] / whole_us[s] * backward_us[s] : 0.0;
    *backward_input_us = input_us;
    return SMP_OK;
}

smp_status smp_plan_split_backward(const smp_costs *costs, const int32_t *stage_of_op,
                                   smp_plan *plan)
{
    double *backward_us = SMP_ARENA_NEW(plan->arena, double, (size_t)plan->n_stage);
    if (!backward_us)
        return SMP_ERR_NO_MEMORY;
    for (int s = 0; s < plan->n_stage; s++)
        backward_us[s] = plan->stage[s].backward_us;
    return smp_split_backward(costs, stage_of_op, plan->n_stage, backward_us, plan->arena,
                              &plan->backward_input_us);
}

static smp_status simulate_draw(const smp_plan *plan, const smp_graph *graph, const smp_flow *flow,
                                int draw, smp_simulation **out)
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
                                    .sharding = plan->sharding,
                                    .microbatches = plan->microbatches,
                                    .program = plan->program,
                                    .stage_rank = a.stage_rank,
                                    .forward_us = a.forward_us,
                                    .backward_us = a.backward_us,
                                    .backward_input_us = plan->backward_input_us,
                                    .recompute_us = a.recompute_us,
                                    .weight_bytes = a.weight_bytes,
                                    .offload_bytes = a.offload_bytes,
                                    .horizon = plan->loading_horizon,
                                    .gradient_blocks = plan->gradient_blocks,
                                    .flow = flow,
                                    .graph = graph,
                                    .cluster = plan->cluster,
                                    .device = a.device,
                                    .optimizer_bytes_per_s = plan->optimizer_bytes_per_s,
                                    .precision = graph->target.precision,
                                    .draw = draw},
            out);
    smp_arena_destroy(arena);
    return status;
}

smp_status smp_simulate_plan(const smp_plan *plan, const smp_graph *graph, const smp_flow *flow,
                             smp_simulation **out)
{
    return simulate_draw(plan, graph, flow, 0, out);
}

smp_status smp_simulate_waits(const smp_plan *plan, const smp_graph *graph, const smp_flow *flow,
                              double step_us, double *waits_us)
{
    enum { DRAWS = 16 };
    double sum_us = 0.0;
    *waits_us = 0.0;
    if (!plan->cluster || plan->cluster->scatter <= 0.0)
        return SMP_OK;
    for (int draw = 1; draw <= DRAWS; draw++) {
        smp_simulation *simulation = NULL;
        SMP_TRY(simulate_draw(plan, graph, flow, draw, &simulation));
        sum_us += simulation->step_us - step_us;
        smp_simulation_destroy(simulation);
    }
    *waits_us = fmax(0.0, sum_us / DRAWS);
    return SMP_OK;
}

smp_status smp_simulated_plan_open(const smp_plan *plan, const smp_graph *graph,
                                   smp_simulated_plan *out)
{
    smp_simulated_plan made = {0};
    SMP_TRY(smp_plan_bind(plan, graph, &made.stage_of_op));
    smp_status status =
        smp_flow_build(graph, made.stage_of_op, plan->n_stage, plan->microbatch_size, &made.flow);
    if (status == SMP_OK)
        status = smp_simulate_plan(plan, graph, made.flow, &made.simulation);
    if (status == SMP_OK)
        *out = made;
    else
        smp_simulated_plan_close(&made);
    return status;
}

void smp_simulated_plan_close(smp_simulated_plan *simulated)
{
    smp_simulation_destroy(simulated->simulation);
    smp_flow_destroy(simulated->flow);
    free(simulated->stage_of_op);
    *simulated = (smp_simulated_plan){0};
}
