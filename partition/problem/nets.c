/* What flows between units and what they weigh: sums over ops, the tensors that leave a unit as
 * hyperedges, and the weights that several units hold. Linear in the graph; lists of holders come
 * out sorted because they are made by transposing lists that are filled in unit order. */
#include "partition/problem/unit_graph.h"

#include <math.h>

#define MAX_SUM_US 1e200

/* A CSR under construction: begin[] counts, then offsets. */
static void offsets_from_counts(int64_t *begin, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        begin[i + 1] += begin[i];
}

/* to[y] lists the x with y in from[x]; rising if x runs upwards. */
static smp_status transpose(smp_arena *arena, int32_t n_from, const int64_t *from_begin,
                            const int32_t *from, int32_t n_to, int64_t **to_begin, int32_t **to)
{
    int64_t *begin = SMP_ARENA_NEW(arena, int64_t, (size_t)n_to + 2);
    int32_t *list = SMP_ARENA_NEW(arena, int32_t, (size_t)from_begin[n_from]);
    if (!begin || !list)
        return SMP_ERR_NO_MEMORY;
    for (int64_t e = 0; e < from_begin[n_from]; e++)
        begin[from[e] + 2]++;
    offsets_from_counts(begin + 1, n_to);
    for (int32_t x = 0; x < n_from; x++) {
        for (int64_t e = from_begin[x]; e < from_begin[x + 1]; e++)
            list[begin[from[e] + 1]++] = x;
    }
    *to_begin = begin;
    *to = list;
    return SMP_OK;
}

static bool leaves_unit(const smp_graph *graph, const int32_t *unit_of_op, int32_t tensor)
{
    int32_t unit = unit_of_op[graph->tensor[tensor].producer];
    for (int64_t c = graph->consumer_begin[tensor]; c < graph->consumer_begin[tensor + 1]; c++) {
        if (unit_of_op[graph->consumer[c].op] != unit)
            return true;
    }
    return false;
}

/* net_of_tensor: -1 where a tensor stays in its unit or is a model input. */
static smp_status list_nets(const smp_problem *problem, smp__units *units, int32_t *net_of_tensor)
{
    const smp_graph *graph = problem->graph;
    for (int32_t t = 0; t < graph->n_tensor; t++)
        net_of_tensor[t] =
            t >= graph->n_input && leaves_unit(graph, units->unit_of_op, t) ? units->n_net++ : -1;
    size_t n_net = (size_t)units->n_net;
    units->net_unit = SMP_ARENA_NEW(units->arena, int32_t, n_net);
    units->net_bytes = SMP_ARENA_NEW(units->arena, int64_t, n_net);
    if (!units->net_unit || !units->net_bytes)
        return SMP_ERR_NO_MEMORY;
    for (int link = 0; link < SMP__N_LINK; link++) {
        units->net_us[link] = SMP_ARENA_NEW(units->arena, double, n_net);
        if (!units->net_us[link])
            return SMP_ERR_NO_MEMORY;
    }
    for (int32_t t = graph->n_input; t < graph->n_tensor; t++) {
        int32_t net = net_of_tensor[t];
        if (net < 0)
            continue;
        units->net_unit[net] = units->unit_of_op[graph->tensor[t].producer];
        units->net_bytes[net] = smp_costs_tensor_bytes(problem->costs, graph, t);
        for (int link = SMP__LINK_INTRA; link < SMP__N_LINK; link++)
            units->net_us[link][net] = smp__charge_us(problem, (smp__link)link, t);
    }
    return SMP_OK;
}

/* Nets that each unit reads, once each. */
static smp_status list_inputs(const smp_problem *problem, smp__units *units, smp_arena *scratch,
                              const int32_t *net_of_tensor)
{
    const smp_graph *graph = problem->graph;
    int32_t *seen = SMP_ARENA_NEW(scratch, int32_t, (size_t)units->n_net); /* unit + 1 */
    units->in_begin = SMP_ARENA_NEW(units->arena, int64_t, (size_t)units->n + 1);
    if (!seen || !units->in_begin)
        return SMP_ERR_NO_MEMORY;
    for (int pass = 0; pass < 2; pass++) {
        int64_t n = 0;
        for (int32_t u = 0; u < units->n; u++) {
            int32_t mark = pass * units->n + u + 1;
            for (int64_t o = units->op_begin[u]; o < units->op_begin[u + 1]; o++) {
                const smp_op *op = &graph->op[units->op_list[o]];
                for (int32_t slot = 0; slot < op->n_in; slot++) {
                    int32_t net = net_of_tensor[op->in[slot]];
                    if (net < 0 || units->net_unit[net] == u || seen[net] == mark)
                        continue;
                    seen[net] = mark;
                    if (pass == 1)
                        units->in_net[n] = net;
                    n++;
                }
            }
            units->in_begin[u + 1] = n;
        }
        if (pass == 0) {
            units->in_net = SMP_ARENA_NEW(units->arena, int32_t, (size_t)n);
            if (!units->in_net)
                return SMP_ERR_NO_MEMORY;
        }
    }
    return transpose(units->arena, units->n, units->in_begin, units->in_net, units->n_net,
                     &units->net_begin, &units->net_consumer);
}

static smp_status list_outputs(smp__units *units)
{
    int64_t *begin = SMP_ARENA_NEW(units->arena, int64_t, (size_t)units->n_net + 1);
    if (!begin)
        return SMP_ERR_NO_MEMORY;
    for (int32_t net = 0; net < units->n_net; net++)
        begin[net + 1] = net + 1;
    return transpose(units->arena, units->n_net, begin, units->net_unit, units->n,
                     &units->out_begin, &units->out_net);
}

/* By what it takes, of which memory keeps state_factor times as much. */
static int64_t counted_bytes(const smp_problem *problem, const smp_param *param)
{
    const int64_t bytes = param->elements * 4;
    return param->idle ? (int64_t)smp__idle_weight(problem, (double)bytes) : bytes;
}

/* Weights held by two or more units get a share index, the others -1. */
static smp_status list_shares(const smp_problem *problem, smp__units *units, int32_t *share_of)
{
    const smp_graph *graph = problem->graph;
    for (int32_t p = 0; p < graph->n_param; p++) {
        const smp_param *param = &graph->param[p];
        bool shared = false;
        for (int32_t u = param->use_begin + 1; u < param->use_end; u++)
            shared |= units->unit_of_op[graph->use[u].op] !=
                      units->unit_of_op[graph->use[param->use_begin].op];
        share_of[p] = shared ? units->n_share++ : -1;
    }
    units->share_bytes = SMP_ARENA_NEW(units->arena, int64_t, (size_t)units->n_share);
    if (!units->share_bytes)
        return SMP_ERR_NO_MEMORY;
    for (int32_t p = 0; p < graph->n_param; p++) {
        if (share_of[p] >= 0)
            units->share_bytes[share_of[p]] = counted_bytes(problem, &graph->param[p]);
    }
    return SMP_OK;
}

/* Weights of each unit: its own are summed, shared ones are listed; each once. */
static smp_status weigh(const smp_problem *problem, smp__units *units, smp_arena *scratch,
                        const int32_t *share_of)
{
    const smp_graph *graph = problem->graph;
    int32_t *seen = SMP_ARENA_NEW(scratch, int32_t, (size_t)graph->n_param); /* unit + 1 */
    units->weight_bytes = SMP_ARENA_NEW(units->arena, int64_t, (size_t)units->n);
    units->hold_begin = SMP_ARENA_NEW(units->arena, int64_t, (size_t)units->n + 1);
    units->hold_share = SMP_ARENA_NEW(units->arena, int32_t, (size_t)graph->n_use);
    if (!seen || !units->weight_bytes || !units->hold_begin || !units->hold_share)
        return SMP_ERR_NO_MEMORY;
    int64_t n = 0;
    for (int32_t u = 0; u < units->n; u++) {
        int64_t own = 0;
        for (int64_t o = units->op_begin[u]; o < units->op_begin[u + 1]; o++) {
            const smp_op *op = &graph->op[units->op_list[o]];
            if (op->n_param == 0)
                own = smp__add_bytes(own, problem->costs->op[units->op_list[o]].weight_bytes);
            for (int32_t i = 0; i < op->n_param; i++) {
                int32_t p = op->param[i];
                if (seen[p] == u + 1)
                    continue;
                seen[p] = u + 1;
                if (share_of[p] >= 0)
                    units->hold_share[n++] = share_of[p];
                else
                    own = smp__add_bytes(own, counted_bytes(problem, &graph->param[p]));
            }
        }
        units->weight_bytes[u] = own;
        units->hold_begin[u + 1] = n;
    }
    return transpose(units->arena, units->n, units->hold_begin, units->hold_share, units->n_share,
                     &units->share_begin, &units->share_unit);
}

static smp_status sum_costs(const smp_problem *problem, smp__units *units)
{
    units->compute_us = SMP_ARENA_NEW(units->arena, double, (size_t)units->n);
    units->forward_us = SMP_ARENA_NEW(units->arena, double, (size_t)units->n);
    units->stash_bytes = SMP_ARENA_NEW(units->arena, int64_t, (size_t)units->n);
    units->workspace_bytes = SMP_ARENA_NEW(units->arena, int64_t, (size_t)units->n);
    if (!units->compute_us || !units->forward_us || !units->stash_bytes || !units->workspace_bytes)
        return SMP_ERR_NO_MEMORY;
    smp__price_make(problem, &units->price);
    for (int32_t op = 0; op < problem->graph->n_op; op++) {
        const smp_op_cost *cost = &problem->costs->op[op];
        int32_t u = units->unit_of_op[op];
        units->compute_us[u] += cost->forward_us + cost->backward_us;
        units->forward_us[u] += cost->forward_us;
        units->stash_bytes[u] = smp__add_bytes(units->stash_bytes[u], cost->stash_bytes);
        if (cost->workspace_bytes > units->workspace_bytes[u])
            units->workspace_bytes[u] = cost->workspace_bytes;
    }
    return SMP_OK;
}

/* Loads are sums of these: far from where doubles end, whatever the order of adding. */
static smp_status check_sums(const smp_problem *problem)
{
    double sum_us = 0.0, slowest = 1.0;
    int32_t largest = 0;
    for (int r = 0; r < problem->pipeline; r++)
        slowest = fmax(slowest, smp_problem_rank_slowdown(problem, r));
    for (int32_t op = 0; op < problem->graph->n_op; op++) {
        const smp_op_cost *cost = problem->costs->op;
        sum_us += cost[op].forward_us + cost[op].backward_us;
        if (cost[op].forward_us + cost[op].backward_us >
            cost[largest].forward_us + cost[largest].backward_us)
            largest = op;
    }
    if (sum_us * slowest < MAX_SUM_US)
        return SMP_OK;
    const smp_op *op = &problem->graph->op[largest];
    return smp_fail_at(
        smp_op_where(problem->graph, op),
        "the ops take %g us on the slowest device, op '%s' alone %g us: expected "
        "less than %g us; check the costs of the model or the profile",
        sum_us * slowest, op->name,
        (problem->costs->op[largest].forward_us + problem->costs->op[largest].backward_us) *
            slowest,
        MAX_SUM_US);
}

/* Whether all units in one stage, with all nets crossing its border, are too much for some stage:
 * otherwise no solver has to look at memory. */
static bool memory_can_bind(const smp_problem *problem, const smp__units *units)
{
    double weights = 0.0, stash = 0.0, border = 0.0, workspace = 0.0;
    for (int32_t u = 0; u < units->n; u++) {
        weights += (double)units->weight_bytes[u];
        stash += (double)units->stash_bytes[u];
        workspace = fmax(workspace, (double)units->workspace_bytes[u]);
    }
    for (int32_t share = 0; share < units->n_share; share++)
        weights += (double)units->share_bytes[share];
    for (int32_t net = 0; net < units->n_net; net++)
        border += (double)units->net_bytes[net];
    for (int s = 0; s < problem->n_stage; s++) {
        double live = fmax(problem->live[s], 1.0);
        double kept = live * stash + (live + 2.0) * border;
        if (problem->state_factor * weights + kept + workspace > smp__memory_limit(problem, s))
            return true;
    }
    return false;
}

smp_status smp__units_connect(const smp_problem *problem, smp__units *units)
{
    smp_status status = SMP_ERR_NO_MEMORY;
    smp_arena *scratch = smp_arena_create();
    if (!scratch)
        return status;
    int32_t *net_of = SMP_ARENA_NEW(scratch, int32_t, (size_t)problem->graph->n_tensor);
    int32_t *share_of = SMP_ARENA_NEW(scratch, int32_t, (size_t)problem->graph->n_param);
    if (!net_of || !share_of)
        goto done;
    status = list_nets(problem, units, net_of);
    if (status == SMP_OK)
        status = list_inputs(problem, units, scratch, net_of);
    if (status == SMP_OK)
        status = list_outputs(units);
    if (status == SMP_OK)
        status = list_shares(problem, units, share_of);
    if (status == SMP_OK)
        status = weigh(problem, units, scratch, share_of);
    if (status == SMP_OK)
        status = sum_costs(problem, units);
    if (status == SMP_OK)
        status = check_sums(problem);
    if (status == SMP_OK)
        units->memory_binds = memory_can_bind(problem, units);
done:
    smp_arena_destroy(scratch);
    return status;
}
