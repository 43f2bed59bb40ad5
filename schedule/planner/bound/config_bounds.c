/* What a configuration costs at least, proven, whatever its partition, and for a given one.
 *
 * Time of a step. A rank computes every micro-batch of all its stages and then updates its weights;
 * with one stage on each rank the reduction stands between the two. The slowest rank takes at least
 * the mean over ranks and at least what the lower bound of the partitioning problem says. A chain
 * of ops is computed one after the other wherever they lie, forwards and back as far as gradients
 * are passed on. Stages that do not depend on each other may run at the same time, so only chains
 * count, not the sum of all stages. Recomputation and transfers only add. What holds for one
 * replica holds for the step, which ends when the last one is done. With a bound of k live
 * micro-batches an op's forward of micro-batch i + k waits for its backward of micro-batch i: every
 * k of them take the way of one from there to the end and back.
 *
 * Memory. Weights, gradients and optimizer state of every op lie on some rank for ever. Nothing is
 * said about stashes: layouts may need less than the costs have. O(ops + edges). */
#include <math.h>

#include "graph/model/op.h"
#include "partition/problem/longest_chain.h"
#include "schedule/planner/bound/bounds.h"
#include "schedule/simulate/update_price.h"

/* The part of a backward pass that the op before waits for. A schedule that splits the backward
 * simulates the cost of the input half, or half of the whole. */
static double passing_us(const smp_op_cost *cost)
{
    return fmin(cost->backward_input_us, 0.5 * cost->backward_us);
}

/* Longest chain: down through forwards, and from any op back up through gradients. Ops stand in
 * topological order. */
static smp_status longest_path(const smp_graph *graph, const smp_costs *costs, smp_arena *scratch,
                               smp__totals *out)
{
    double *before = SMP_ARENA_NEW(scratch, double, (size_t)graph->n_op);
    double *round = SMP_ARENA_NEW(scratch, double, (size_t)graph->n_op);
    if (!before || !round)
        return SMP_ERR_NO_MEMORY;
    for (int32_t op = 0; op < graph->n_op; op++) {
        for (int32_t i = 0; i < graph->op[op].n_in; i++) {
            int32_t from = graph->tensor[graph->op[op].in[i]].producer;
            if (from >= 0)
                before[op] = fmax(before[op], before[from] + costs->op[from].forward_us);
        }
    }
    for (int32_t op = graph->n_op - 1; op >= 0; op--) {
        const smp_op *it = &graph->op[op];
        const smp_op_cost *cost = &costs->op[op];
        bool has_gradient = smp_op_has_gradient(graph, it);
        for (int32_t t = it->out; t < it->out + it->n_out; t++)
            for (int64_t c = graph->consumer_begin[t]; c < graph->consumer_begin[t + 1]; c++)
                if (smp__passes_gradient(graph, t, graph->consumer[c].op))
                    round[op] = fmax(round[op], round[graph->consumer[c].op]);
        round[op] += cost->forward_us;
        if (has_gradient)
            round[op] += passing_us(cost);
        out->path_us = fmax(out->path_us, before[op] + round[op]);
        if (has_gradient)
            out->round_us = fmax(out->round_us, round[op]);
    }
    return SMP_OK;
}

smp_status smp__totals_make(const smp_search_request *request, const smp_costs *costs,
                            smp__totals *out)
{
    const smp_graph *graph = request->graph;
    *out = (smp__totals){0};
    smp_arena *scratch = smp_arena_create();
    if (!scratch)
        return SMP_ERR_NO_MEMORY;
    for (int32_t p = 0; p < graph->n_param; p++) {
        double bytes = graph->param[p].idle ? 0.0 : 4.0 * (double)graph->param[p].elements;
        out->weight_bytes += bytes;
        out->largest_bytes = fmax(out->largest_bytes, bytes);
    }
    for (int32_t op = 0; op < graph->n_op; op++) {
        const smp_op_cost *cost = &costs->op[op];
        out->compute_us += cost->forward_us + cost->backward_us;
        out->forward_us += cost->forward_us;
        out->largest_us = fmax(out->largest_us, cost->forward_us + cost->backward_us);
        out->stash_bytes += (double)cost->stash_bytes;
        if (graph->op[op].n_param > 0)
            continue;
        out->weight_bytes += (double)cost->weight_bytes;
        out->largest_bytes = fmax(out->largest_bytes, (double)cost->weight_bytes);
    }
    if (request->options.recompute == SMP_RECOMPUTE_ALL)
        for (int32_t op = 0; graph->training && op < graph->n_op; op++)
            out->compute_us += costs->op[op].forward_us;
    smp_status status = longest_path(graph, costs, scratch, out);
    smp_arena_destroy(scratch);
    return status;
}

static double samples_of(const smp__configs *configs, const smp__config *config)
{
    return config->mapping->replicas * (double)configs->costs->microbatch_size;
}

double smp__config_tail_us(const smp__configs *configs, const smp__config *config)
{
    if (!configs->request->graph->training)
        return 0.0;
    const smp_search_request *request = configs->request;
    const smp_sharding sharding = config->sharding;
    const bool beside = smp_updates_beside(sharding.offload_states, request->graph->target);
    const bool one_ring = config->chunks == 1 && sharding.shard == 1;
    const double update_us =
        beside ? 0.0
               : smp_update_us_per_byte(request->cluster, request->graph->target, sharding,
                                        configs->costs->optimizer_bytes_per_s);
    return update_us + (one_ring ? config->mapping->ring_us : 0.0);
}

void smp__config_updates(const smp__configs *configs, const smp__config *config, double *update_us)
{
    const smp_graph *graph = configs->request->graph;
    double us_per_byte = smp__config_tail_us(configs, config);
    for (int32_t o = 0; o < graph->n_op; o++)
        update_us[o] = graph->op[o].n_param > 0
                           ? 0.0
                           : us_per_byte * (double)configs->costs->op[o].weight_bytes;
    for (int32_t p = 0; p < graph->n_param; p++)
        update_us[graph->use[graph->param[p].use_begin].op] +=
            graph->param[p].idle ? 0.0 : us_per_byte * 4.0 * (double)graph->param[p].elements;
}

smp_status smp__config_cores(const smp__configs *configs, const smp__config *config,
                             smp_arena *scratch, int *n)
{
    const smp_cluster *cluster = configs->request->cluster;
    const smp__mapping *mapping = config->mapping;
    int *busy = SMP_ARENA_NEW(scratch, int, (size_t)cluster->nodes);
    if (!busy)
        return SMP_ERR_NO_MEMORY;
    *n = 0;
    for (int d = 0; d < mapping->pipeline * mapping->ddp; d++) {
        int node = mapping->device[d] / cluster->devices_per_node;
        *n += cluster->cores_per_node == 0 || busy[node]++ < cluster->cores_per_node;
    }
    return SMP_OK;
}

double smp__config_least_us_of_any(const smp__configs *configs, const smp__config *config)
{
    const smp__totals *totals = &configs->totals;
    const smp__mapping *mapping = config->mapping;
    double least_us = configs->arrangement[config->arrangement].least_us;
    double tail = smp__config_tail_us(configs, config) * totals->weight_bytes;
    if (configs->request->options.objective == SMP_OBJECTIVE_BOTTLENECK)
        return least_us / samples_of(configs, config);
    double m = config->microbatches;
    double mean_us = (m * totals->compute_us + tail / mapping->most) / mapping->speed;
    double step_us = fmax(fmax(m * least_us, mean_us), totals->path_us * mapping->fastest);
    if (config->active > 0)
        step_us = fmax(step_us, ceil(m / ((double)config->active * config->chunks)) *
                                    totals->round_us * mapping->fastest);
    return step_us / m / samples_of(configs, config);
}

/* A partition in one replica. Arrays live in scratch. */
typedef struct replica_times {
    const smp_partition *partition;
    double *slowest;  /* [n_stage] slowdown that the times in the partition are for, */
    double *share;    /* [n_stage] and what the replica takes of them */
    double *start_us; /* [n_stage] */
    double *compute, *start, *bytes; /* [pipeline] */
    int32_t *list;                   /* [n_op] ops by rising stage */
} replica_times;

/* Ops by rising stage: every edge leads to the same or a later stage, so one pass over stages in
 * order would do; ops stand in topological order, not by stage, hence the list. */
static smp_status open_times(const smp__configs *configs, const smp__config *config,
                             const smp_partition *partition, smp_arena *scratch, replica_times *t)
{
    const smp_graph *graph = configs->request->graph;
    const smp__mapping *mapping = config->mapping;
    size_t n_stage = (size_t)partition->n_stage, p = (size_t)mapping->pipeline;
    int32_t *begin = SMP_ARENA_NEW(scratch, int32_t, n_stage + 2);
    *t = (replica_times){.partition = partition,
                         .slowest = SMP_ARENA_NEW(scratch, double, n_stage),
                         .share = SMP_ARENA_NEW(scratch, double, n_stage),
                         .start_us = SMP_ARENA_NEW(scratch, double, n_stage),
                         .compute = SMP_ARENA_NEW(scratch, double, p),
                         .start = SMP_ARENA_NEW(scratch, double, p),
                         .bytes = SMP_ARENA_NEW(scratch, double, p),
                         .list = SMP_ARENA_NEW(scratch, int32_t, (size_t)graph->n_op)};
    if (!begin || !t->slowest || !t->share || !t->start_us || !t->compute || !t->start ||
        !t->bytes || !t->list)
        return SMP_ERR_NO_MEMORY;
    for (size_t s = 0; s < n_stage; s++)
        t->slowest[s] = smp_replicas_slowest(
            configs->request->cluster, graph->target.precision, mapping->pipeline,
            mapping->n_replica, mapping->counting, smp__config_stage_rank(configs, config)[s]);
    for (int32_t op = 0; op < graph->n_op; op++)
        begin[partition->stage[op] + 2]++;
    for (size_t s = 1; s <= n_stage; s++)
        begin[s + 1] += begin[s];
    for (int32_t op = 0; op < graph->n_op; op++)
        t->list[begin[partition->stage[op] + 1]++] = op;
    return SMP_OK;
}

static void share_out(const smp__configs *configs, const smp__config *config, int replica,
                      replica_times *t)
{
    const smp_search_request *request = configs->request;
    const smp__mapping *mapping = config->mapping;
    const int *rank = smp__config_stage_rank(configs, config);
    for (int s = 0; s < t->partition->n_stage; s++) {
        int device = mapping->counting[replica * mapping->pipeline + rank[s]];
        t->share[s] =
            smp_device_slowdown(request->cluster, request->graph->target.precision, device) /
            t->slowest[s];
    }
}

/* When the first forward of each stage can begin: after those it depends on. */
static void earliest_starts(const smp_graph *graph, replica_times *t)
{
    const smp_partition *partition = t->partition;
    for (int s = 0; s < partition->n_stage; s++)
        t->start_us[s] = 0.0;
    for (int32_t i = 0; i < graph->n_op; i++) {
        const smp_op *op = &graph->op[t->list[i]];
        int32_t to = partition->stage[t->list[i]];
        for (int32_t k = 0; k < op->n_in; k++) {
            int32_t from = graph->tensor[op->in[k]].producer;
            int32_t stage = from >= 0 ? partition->stage[from] : to;
            if (stage != to)
                t->start_us[to] =
                    fmax(t->start_us[to],
                         t->start_us[stage] + t->share[stage] * partition->load[stage].forward_us);
        }
    }
}

/* Micro-batches of a rank after its earliest start, and its tail. */
static double least_step_us(const smp__configs *configs, const smp__config *config,
                            replica_times *t)
{
    const int *stage_rank = smp__config_stage_rank(configs, config);
    int p = config->mapping->pipeline;
    double tail = smp__config_tail_us(configs, config), least_us = 0.0;
    for (int r = 0; r < p; r++) {
        t->compute[r] = t->bytes[r] = 0.0;
        t->start[r] = INFINITY;
    }
    for (int s = 0; s < t->partition->n_stage; s++) {
        const smp_stage_load *load = &t->partition->load[s];
        int r = stage_rank[s];
        t->compute[r] += t->share[s] * (load->forward_us + load->backward_us + load->recompute_us);
        t->start[r] = fmin(t->start[r], t->start_us[s]);
        const int64_t trained = load->weight_bytes - load->idle_bytes;
        t->bytes[r] = fmax(t->bytes[r], (double)trained); /* stages may share weights */
    }
    for (int r = 0; r < p; r++)
        least_us =
            fmax(least_us, t->start[r] + config->microbatches * t->compute[r] + tail * t->bytes[r]);
    return least_us;
}

smp_status smp__config_least_us(const smp__configs *configs, const smp__config *config,
                                const smp_partition *partition, double *least_us)
{
    double samples = samples_of(configs, config);
    *least_us = partition->bottleneck_us / samples;
    if (configs->request->options.objective == SMP_OBJECTIVE_BOTTLENECK)
        return SMP_OK;
    smp_arena *scratch = smp_arena_create();
    const smp_graph *graph = configs->request->graph;
    replica_times t;
    double step_us = 0.0;
    smp_status status =
        scratch ? open_times(configs, config, partition, scratch, &t) : SMP_ERR_NO_MEMORY;
    for (int k = 0; status == SMP_OK && k < config->mapping->n_replica; k++) {
        share_out(configs, config, k, &t);
        earliest_starts(graph, &t);
        step_us = fmax(step_us, least_step_us(configs, config, &t));
    }
    if (status == SMP_OK)
        *least_us = step_us / config->microbatches / samples;
    smp_arena_destroy(scratch);
    return status;
}

double smp__config_least_bytes_of_any(const smp__configs *configs, const smp__config *config)
{
    const smp__totals *totals = &configs->totals;
    return config->state_factor *
           fmax(totals->weight_bytes / config->mapping->pipeline, totals->largest_bytes);
}

double smp__config_least_bytes(const smp__config *config, const smp_partition *partition)
{
    double most = 0.0; /* of one stage: others of its rank may share its weights */
    for (int s = 0; s < partition->n_stage; s++)
        most =
            fmax(most, (double)(partition->load[s].weight_bytes - partition->load[s].idle_bytes));
    return config->state_factor * most;
}

double smp__config_overload(const smp__configs *configs, const smp__config *config)
{
    const smp__totals *totals = &configs->totals;
    const smp__mapping *mapping = config->mapping;
    int64_t largest = 1;
    for (int r = 0; r < config->mapping->pipeline; r++)
        largest = mapping->memory[r] > largest ? mapping->memory[r] : largest;
    return config->state_factor *
           fmax(totals->weight_bytes / fmax((double)mapping->memory_all, 1.0),
                totals->largest_bytes / (double)largest);
}
