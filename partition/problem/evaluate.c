/* What an assignment costs, counted op by op and tensor by tensor exactly as problem.h states it.
 * Linear in the graph. Every solver's result passes through here, so none can be wrong about it. */
#include "partition/problem/evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/clock.h"

smp_status smp__evaluator_init(smp__evaluator *evaluator, const smp_problem *problem,
                               smp_arena *arena)
{
    size_t n_stage = (size_t)problem->n_stage, p = (size_t)problem->pipeline;
    size_t n_replica = (size_t)smp_problem_replicas(problem);
    evaluator->problem = problem;
    evaluator->n_replica = (int)n_replica;
    smp__price_make(problem, &evaluator->price);
    evaluator->slowest = SMP_ARENA_NEW(arena, double, n_stage);
    evaluator->slowdown = SMP_ARENA_NEW(arena, double, n_replica *n_stage);
    evaluator->transfer_us = SMP_ARENA_NEW(arena, double, n_replica *n_stage);
    evaluator->rank_us = SMP_ARENA_NEW(arena, double, n_replica *p);
    evaluator->seen = SMP_ARENA_NEW(arena, int32_t, n_stage);
    evaluator->load = SMP_ARENA_NEW(arena, smp_stage_load, n_stage);
    if (!evaluator->slowest || !evaluator->slowdown || !evaluator->transfer_us ||
        !evaluator->rank_us || !evaluator->seen || !evaluator->load)
        return SMP_ERR_NO_MEMORY;
    for (size_t s = 0; s < n_stage; s++) {
        for (size_t k = 0; k < n_replica; k++) {
            double slowdown = smp_problem_slowdown(problem, (int)k, problem->stage_rank[s]);
            evaluator->slowdown[k * n_stage + s] = slowdown;
            evaluator->slowest[s] = fmax(evaluator->slowest[s], slowdown);
        }
    }
    return SMP_OK;
}

/* Until memory is added up, memory_bytes holds the largest workspace. */
static void count_ops(smp__evaluator *evaluator, const int32_t *stage)
{
    const smp_problem *problem = evaluator->problem;
    const smp_graph *graph = problem->graph;
    for (int32_t op = 0; op < graph->n_op; op++) {
        const smp_op_cost *cost = &problem->costs->op[op];
        smp_stage_load *load = &evaluator->load[stage[op]];
        load->forward_us += cost->forward_us;
        load->backward_us += cost->backward_us;
        load->forward_exchange_us += cost->forward_exchange_us;
        load->backward_exchange_us += cost->backward_exchange_us;
        load->stash_bytes = smp__add_bytes(load->stash_bytes, cost->stash_bytes);
        if (graph->op[op].n_param == 0)
            load->weight_bytes = smp__add_bytes(load->weight_bytes, cost->weight_bytes);
        if (cost->workspace_bytes > load->memory_bytes)
            load->memory_bytes = cost->workspace_bytes;
        load->n_op++;
        if (!smp_problem_recomputes(problem, op))
            continue;
        load->recompute_us += cost->forward_us;
        load->n_recompute++;
        load->recompute_bytes = smp__add_bytes(load->recompute_bytes, cost->stash_bytes);
    }
}

static void count_weights(smp__evaluator *evaluator, const int32_t *stage)
{
    const smp_graph *graph = evaluator->problem->graph;
    for (int32_t p = 0; p < graph->n_param; p++) {
        const smp_param *param = &graph->param[p];
        for (int32_t u = param->use_begin; u < param->use_end; u++) {
            int32_t s = stage[graph->use[u].op];
            if (evaluator->seen[s] == p + 1)
                continue;
            evaluator->seen[s] = p + 1;
            evaluator->load[s].weight_bytes =
                smp__add_bytes(evaluator->load[s].weight_bytes, param->elements * 4);
            if (param->idle)
                evaluator->load[s].idle_bytes =
                    smp__add_bytes(evaluator->load[s].idle_bytes, param->elements * 4);
        }
    }
}

/* One tensor in one replica, as message.h says. Bytes are the same in all replicas. */
static void count_transfer(smp__evaluator *evaluator, const int32_t *stage, int replica,
                           int32_t tensor)
{
    const smp_problem *problem = evaluator->problem;
    const smp_graph *graph = problem->graph;
    int32_t from = stage[graph->tensor[tensor].producer];
    double sent_us = -1.0, *transfer_us = &evaluator->transfer_us[replica * problem->n_stage];
    int64_t bytes = 0; /* asked for once it leaves its stage */
    for (int64_t c = graph->consumer_begin[tensor]; c < graph->consumer_begin[tensor + 1]; c++) {
        int32_t to = stage[graph->consumer[c].op];
        if (to == from || evaluator->seen[to] == tensor + 1)
            continue;
        evaluator->seen[to] = tensor + 1;
        smp__link link =
            smp__link_between(problem, replica, problem->stage_rank[from], problem->stage_rank[to]);
        if (link == SMP__LINK_SAME)
            continue;
        double us = smp__charge_us(problem, link, tensor);
        if (sent_us < 0.0)
            bytes = smp_costs_tensor_bytes(problem->costs, graph, tensor);
        transfer_us[to] += us;
        if (replica == 0)
            evaluator->load[to].in_bytes = smp__add_bytes(evaluator->load[to].in_bytes, bytes);
        if (us > sent_us)
            sent_us = us;
    }
    if (sent_us >= 0.0) {
        transfer_us[from] += sent_us;
        if (replica == 0)
            evaluator->load[from].out_bytes =
                smp__add_bytes(evaluator->load[from].out_bytes, bytes);
    }
}

static void count_transfers(smp__evaluator *evaluator, const int32_t *stage)
{
    const smp_graph *graph = evaluator->problem->graph;
    size_t n_stage = (size_t)evaluator->problem->n_stage;
    memset(evaluator->transfer_us, 0,
           (size_t)evaluator->n_replica * n_stage * sizeof *evaluator->transfer_us);
    for (int k = 0; k < evaluator->n_replica; k++) {
        memset(evaluator->seen, 0, n_stage * sizeof *evaluator->seen);
        for (int32_t t = graph->n_input; t < graph->n_tensor; t++)
            count_transfer(evaluator, stage, k, t);
    }
}

/* Memory, and what the stage recomputes: what is known to, or as much as memory asks for. Until
 * then memory_bytes is the largest workspace. */
static void fill_memory(const smp__evaluator *evaluator, int s, smp_stage_load *load)
{
    const smp_problem *problem = evaluator->problem;
    const double idle = (double)load->idle_bytes;
    const double weight = (double)load->weight_bytes - idle + smp__idle_weight(problem, idle);
    smp__holdings held = {weight, (double)load->stash_bytes, (double)load->memory_bytes,
                          (double)load->in_bytes, (double)load->out_bytes};
    double bytes, share;
    if (problem->recomputes) {
        share = load->n_recompute == load->n_op
                    ? 1.0
                    : (double)load->recompute_bytes / fmax(held.stash, 1.0);
        smp__stage_range range = smp__stage_bytes(problem, s, &held);
        bytes =
            share < 1.0 ? range.kept - share * (range.kept - range.recomputed) : range.recomputed;
    } else {
        bytes = smp__stage_memory(problem, s, &held, smp__memory_limit(problem, s), &share);
        load->recompute_us +=
            smp__recompute_part(problem, &evaluator->price, share) * load->forward_us;
    }
    load->recompute = share > 0.0 || load->n_recompute > 0;
    load->memory_bytes = bytes < 0x1p62 ? (int64_t)ceil(bytes) : INT64_MAX;
}

/* From sums on device 0 to times: the load in every replica, and the largest. */
static void fill_times(smp__evaluator *evaluator, int s, smp_stage_load *load)
{
    const smp_problem *problem = evaluator->problem;
    double forward_us = load->forward_us, backward_us = load->backward_us;
    for (int k = 0; k < evaluator->n_replica; k++) {
        double slowdown = evaluator->slowdown[k * problem->n_stage + s];
        double transfer_us = evaluator->transfer_us[k * problem->n_stage + s];
        double compute_us =
            forward_us * slowdown + backward_us * slowdown + load->recompute_us * slowdown;
        double us = smp__load_us(problem->cluster, compute_us, transfer_us);
        evaluator->rank_us[k * problem->pipeline + problem->stage_rank[s]] += us;
        load->transfer_us = fmax(load->transfer_us, transfer_us);
        load->load_us = fmax(load->load_us, us);
    }
    load->forward_us *= evaluator->slowest[s];
    load->backward_us *= evaluator->slowest[s];
    load->forward_exchange_us *= evaluator->slowest[s];
    load->backward_exchange_us *= evaluator->slowest[s];
    load->recompute_us *= evaluator->slowest[s];
}

smp__score smp__evaluate(smp__evaluator *evaluator, const int32_t *stage)
{
    const smp_problem *problem = evaluator->problem;
    smp__score score = {0};
    size_t n_stage = (size_t)problem->n_stage;
    int n_rank = evaluator->n_replica * problem->pipeline;
    smp_work_count(SMP_WORK_SOLVER, (double)problem->graph->n_op * (1 + evaluator->n_replica));
    memset(evaluator->load, 0, n_stage * sizeof *evaluator->load);
    memset(evaluator->rank_us, 0, (size_t)n_rank * sizeof *evaluator->rank_us);
    count_ops(evaluator, stage);
    memset(evaluator->seen, 0, n_stage * sizeof *evaluator->seen);
    count_weights(evaluator, stage);
    count_transfers(evaluator, stage);
    for (int s = 0; s < problem->n_stage; s++) {
        smp_stage_load *load = &evaluator->load[s];
        fill_memory(evaluator, s, load);
        fill_times(evaluator, s, load);
        double limit = smp__memory_limit(problem, s);
        if ((double)load->memory_bytes > limit)
            score.excess = fmax(score.excess, (double)load->memory_bytes / fmax(limit, 0.5) - 1.0);
        score.total_us += load->load_us;
    }
    for (int r = 0; r < n_rank; r++)
        score.bottleneck_us = fmax(score.bottleneck_us, evaluator->rank_us[r]);
    return score;
}

static smp_status check_order(const smp_problem *problem, const int32_t *stage)
{
    const smp_graph *graph = problem->graph;
    for (int32_t i = 0; i < graph->n_op; i++) {
        const smp_op *op = &graph->op[i];
        if (stage[i] < 0 || stage[i] >= problem->n_stage)
            return smp_fail(SMP_ERR_INPUT, "op '%s': stage: got %d, expected 0 to %d", op->name,
                            stage[i], problem->n_stage - 1);
        int32_t pin = smp_problem_pin(problem, i);
        if (pin >= 0 && pin != stage[i])
            return smp_fail(SMP_ERR_INPUT, "op '%s': got stage %d, but it is pinned to stage %d",
                            op->name, stage[i], pin);
        for (int32_t slot = 0; slot < op->n_in; slot++) {
            int32_t from = graph->tensor[op->in[slot]].producer;
            if (from >= 0 && stage[from] > stage[i])
                return smp_fail(SMP_ERR_INPUT,
                                "op '%s' lies in stage %d, but reads op '%s' of the later stage %d",
                                op->name, stage[i], graph->op[from].name, stage[from]);
        }
    }
    return SMP_OK;
}

static smp_status check_labels(const smp_problem *problem, const int32_t *stage, int32_t *first)
{
    const smp_graph *graph = problem->graph;
    for (int32_t i = 0; i < graph->n_op; i++)
        first[i] = -1;
    for (int32_t i = 0; i < graph->n_op; i++) {
        int32_t label = problem->together[i];
        if (label < 0)
            continue;
        if (first[label] < 0)
            first[label] = i;
        if (stage[first[label]] != stage[i])
            return smp_fail(SMP_ERR_INPUT,
                            "op '%s' lies in stage %d and op '%s' in stage %d, but they are to "
                            "share a stage",
                            graph->op[first[label]].name, stage[first[label]], graph->op[i].name,
                            stage[i]);
    }
    return SMP_OK;
}

static smp_status check_together(const smp_problem *problem, const int32_t *stage, int32_t *first)
{
    const smp_graph *graph = problem->graph;
    for (int32_t g = 0; g < graph->n_group; g++)
        first[g] = -1;
    for (int32_t i = 0; i < graph->n_op; i++) {
        int32_t g = graph->op[i].group;
        if (g < 0)
            continue;
        if (first[g] < 0)
            first[g] = i;
        if (stage[first[g]] != stage[i])
            return smp_fail(SMP_ERR_INPUT,
                            "group '%s' lies in stage %d (op '%s') and stage %d (op '%s'), "
                            "expected one stage",
                            graph->group[g], stage[first[g]], graph->op[first[g]].name, stage[i],
                            graph->op[i].name);
    }
    for (int32_t p = 0; problem->tie_together && p < graph->n_param; p++) {
        const smp_param *param = &graph->param[p];
        for (int32_t u = param->use_begin + 1; u < param->use_end; u++) {
            int32_t a = graph->use[param->use_begin].op, b = graph->use[u].op;
            if (stage[a] != stage[b])
                return smp_fail(SMP_ERR_INPUT,
                                "tied weight '%s' lies in stage %d (op '%s') and stage %d (op "
                                "'%s'), expected one stage",
                                param->name, stage[a], graph->op[a].name, stage[b],
                                graph->op[b].name);
        }
    }
    return SMP_OK;
}

static smp_status check_legal(const smp_problem *problem, const int32_t *stage, smp_arena *scratch)
{
    SMP_TRY(check_order(problem, stage));
    size_t n_label = (size_t)(problem->together ? problem->graph->n_op : problem->graph->n_group);
    if (n_label < (size_t)problem->graph->n_group)
        n_label = (size_t)problem->graph->n_group;
    int32_t *first = SMP_ARENA_NEW(scratch, int32_t, n_label);
    bool *used = SMP_ARENA_NEW(scratch, bool, (size_t)problem->n_stage);
    if (!first || !used)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < problem->graph->n_op; i++)
        used[stage[i]] = true;
    for (int s = 0; s < problem->n_stage; s++) {
        if (!used[s])
            return smp_fail(SMP_ERR_INPUT, "stage %d of %d holds no op", s, problem->n_stage);
    }
    if (problem->together)
        SMP_TRY(check_labels(problem, stage, first));
    return check_together(problem, stage, first);
}

void smp_partition_destroy(smp_partition *partition)
{
    if (!partition)
        return;
    free(partition->stage);
    free(partition->recompute);
    free(partition->load);
    free(partition->rank_us);
    free(partition);
}

smp_status smp_partition_evaluate(const smp_problem *problem, const int32_t *stage,
                                  smp_partition **out)
{
    size_t n_op = (size_t)problem->graph->n_op, n_stage = (size_t)problem->n_stage;
    int p = problem->pipeline;
    smp_partition *partition = NULL;
    smp__evaluator evaluator;
    smp_arena *scratch = smp_arena_create();
    smp_status status = scratch ? check_legal(problem, stage, scratch) : SMP_ERR_NO_MEMORY;
    if (status == SMP_OK)
        status = smp__evaluator_init(&evaluator, problem, scratch);
    if (status != SMP_OK)
        goto done;
    partition = calloc(1, sizeof *partition);
    if (partition) {
        partition->stage = calloc(n_op + 1, sizeof *partition->stage);
        partition->recompute = calloc(n_op + 1, sizeof *partition->recompute);
        partition->load = calloc(n_stage, sizeof *partition->load);
        partition->rank_us = calloc((size_t)p, sizeof *partition->rank_us);
    }
    if (!partition || !partition->stage || !partition->recompute || !partition->load ||
        !partition->rank_us) {
        status = smp_fail_memory(n_op * sizeof *partition->stage);
        goto done;
    }
    smp__score score = smp__evaluate(&evaluator, stage);
    partition->n_stage = problem->n_stage;
    memcpy(partition->stage, stage, n_op * sizeof *stage);
    for (size_t op = 0; op < n_op; op++)
        partition->recompute[op] = smp_problem_recomputes(problem, (int32_t)op);
    memcpy(partition->load, evaluator.load, n_stage * sizeof *partition->load);
    for (int i = 0; i < evaluator.n_replica * p; i++)
        partition->rank_us[i % p] = fmax(partition->rank_us[i % p], evaluator.rank_us[i]);
    partition->bottleneck_us = score.bottleneck_us;
    partition->fits = score.excess == 0.0;
    partition->solver = partition->bound = "";
    *out = partition;
done:
    smp_arena_destroy(scratch);
    if (status != SMP_OK)
        smp_partition_destroy(partition);
    return status;
}
