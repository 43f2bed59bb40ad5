/* See overlap_costs.h. Costs of ops stay a sum that way: how much of an exchange is hidden depends
 * on its neighbours alone, and whoever cuts stages between them adds what that exposes. Linear. */
#include "profile/overlap_costs.h"

#include <math.h>
#include <stdlib.h>

#include "graph/split/overlap.h"
#include "profile/estimate.h"

bool smp_group_overlaps(const smp_cluster *cluster)
{
    return cluster->overlap && cluster->cores_per_node == 0;
}

/* hidden_us [n]: of the exchange of op[i], by the ops of the list. */
static smp_status find_hidden(const smp_costs *costs, const smp_graph *graph, const int32_t *op,
                              int32_t n, double *hidden_us)
{
    int32_t *beside = malloc(((size_t)n + 1) * sizeof *beside);
    if (!beside)
        return smp_fail_memory((size_t)n * sizeof *beside);
    smp_overlap_find(graph, op, n, costs->microbatch_size, beside);
    for (int32_t i = 0; i < n; i++)
        hidden_us[i] = 0;
    for (int32_t i = 0; i < n; i++)
        if (beside[i] >= 0)
            hidden_us[beside[i]] += costs->op[op[i]].backward_weight_us;
    for (int32_t i = 0; i < n; i++)
        hidden_us[i] = fmin(hidden_us[i], costs->exchange_us[op[i]]);
    free(beside);
    return SMP_OK;
}

smp_status smp__overlap_costs(const smp_graph *graph, const smp_cluster *cluster, smp_op_cost *cost,
                              smp_costs *costs)
{
    const size_t n = (size_t)graph->n_op;
    if (!graph->overlap || !graph->training || !smp_group_overlaps(cluster))
        return SMP_OK;
    int32_t *op = SMP_ARENA_NEW(costs->arena, int32_t, n);
    double *exchange_us = SMP_ARENA_NEW(costs->arena, double, n);
    double *hidden_us = SMP_ARENA_NEW(costs->arena, double, n);
    if (!op || !exchange_us || !hidden_us)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < graph->n_op; i++) {
        smp_op_work work;
        op[i] = i;
        smp_op_work_get(graph, &graph->op[i], costs->microbatch_size, &work);
        exchange_us[i] = fmin(smp__exchange_us(cluster, work.backward_input_exchange),
                              fmin(cost[i].backward_input_us, cost[i].backward_us));
    }
    costs->exchange_us = exchange_us;
    SMP_TRY(find_hidden(costs, graph, op, graph->n_op, hidden_us));
    for (int32_t i = 0; i < graph->n_op; i++) {
        cost[i].backward_us -= hidden_us[i];
        cost[i].backward_input_us -= hidden_us[i];
    }
    costs->hidden_us = hidden_us;
    return SMP_OK;
}

smp_status smp_costs_exposed_us(const smp_costs *costs, const smp_graph *graph, const int32_t *op,
                                int32_t n, bool split, double *us)
{
    *us = 0;
    if (!costs->hidden_us)
        return SMP_OK;
    double *hidden_us = calloc((size_t)n + 1, sizeof *hidden_us);
    if (!hidden_us)
        return smp_fail_memory((size_t)n * sizeof *hidden_us);
    smp_status status = split ? SMP_OK : find_hidden(costs, graph, op, n, hidden_us);
    for (int32_t i = 0; i < n && status == SMP_OK; i++)
        *us += costs->hidden_us[op[i]] - hidden_us[i];
    *us = fmax(*us, 0);
    free(hidden_us);
    return status;
}
