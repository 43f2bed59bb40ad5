/* A plan on devices that run at other speeds than it was made for: times of its stages, which are
 * those of the slowest device that each has, are scaled, and it is simulated. */
#include <math.h>

#include "schedule/simulate/simulate.h"

/* The speed of a device of the plan's cluster: of the slowest process of its group. */
static double speed_of(const smp_plan *plan, const double *speed, int replica, int rank)
{
    const int first = smp_plan_first_process(plan, replica, rank);
    double least = 1.0;
    for (int i = 0; speed && i < smp_plan_rank_tensor(plan, rank); i++)
        least = fmin(least, speed[first + i]);
    return least;
}

static smp_status set_speeds(const smp_plan *plan, const double *speed, smp_cluster *cluster)
{
    const int n = smp_cluster_devices(cluster);
    double *of = SMP_ARENA_NEW(cluster->arena, double, (size_t)n);
    if (!of)
        return SMP_ERR_NO_MEMORY;
    for (int d = 0; d < n; d++)
        of[d] = 1.0;
    for (int replica = 0; replica < plan->ddp; replica++)
        for (int rank = 0; rank < plan->pipeline; rank++)
            of[smp_plan_device(plan, replica, rank)] = speed_of(plan, speed, replica, rank);
    return smp_cluster_set_speeds(cluster, of, n);
}

static double slowest(const smp_plan *plan, const smp_cluster *cluster, smp_precision precision,
                      int rank)
{
    double most = 0.0;
    for (int replica = 0; replica < plan->ddp; replica++)
        most = fmax(most,
                    smp_device_slowdown(cluster, precision, smp_plan_device(plan, replica, rank)));
    return most;
}

/* The plan's stages as they are on the devices of *to. */
static smp_status scale_stages(smp_plan *plan, const smp_cluster *to, smp_precision precision)
{
    const size_t n = (size_t)plan->n_stage;
    smp_plan_stage *stage = SMP_ARENA_NEW(to->arena, smp_plan_stage, n);
    double *input_us = SMP_ARENA_NEW(to->arena, double, n);
    if (!stage || !input_us)
        return SMP_ERR_NO_MEMORY;
    for (size_t i = 0; i < n; i++) {
        const int rank = plan->stage[i].rank;
        const double by =
            slowest(plan, to, precision, rank) / slowest(plan, plan->cluster, precision, rank);
        stage[i] = plan->stage[i];
        stage[i].forward_us *= by;
        stage[i].backward_us *= by;
        stage[i].recompute_us *= by;
        input_us[i] = plan->backward_input_us ? by * plan->backward_input_us[i] : 0.0;
    }
    plan->stage = stage;
    plan->backward_input_us = plan->backward_input_us ? input_us : NULL;
    return SMP_OK;
}

smp_status smp_simulated_plan_open_at(const smp_plan *plan, const smp_graph *graph,
                                      const double *speed, smp_simulated_plan *out)
{
    smp_plan other = *plan;
    const smp_cluster *copy = NULL;
    if (!plan->cluster)
        return smp_fail(SMP_ERR_INPUT, "the plan has no cluster: nothing to simulate it on");
    smp_arena *arena = smp_arena_create();
    if (!arena)
        return SMP_ERR_NO_MEMORY;
    smp_status status = smp_cluster_copy(plan->cluster, arena, &copy);
    if (status == SMP_OK) {
        smp_cluster at = *copy;
        at.arena = arena;
        status = set_speeds(plan, speed, &at);
        if (status == SMP_OK)
            status = scale_stages(&other, &at, graph->target.precision);
        other.cluster = &at;
        if (status == SMP_OK)
            status = smp_simulated_plan_open(&other, graph, out);
    }
    smp_arena_destroy(arena);
    return status;
}
