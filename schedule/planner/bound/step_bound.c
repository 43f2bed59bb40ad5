/* Lower bounds on the step of any partition.
 *
 * Of any order: a rank computes all of its micro-batches in turn, with messages between them where
 * those occupy it (smp__least_messages), and updates its weights: m times the least bottleneck, or
 * a node's even share; and the longest chain, there and back.
 *
 * Of a rule. Its order fixes what a rank does from its first backward on to its last. With one
 * stage on rank r those are m backwards and the a_r forwards between them. Let o be an op of the
 * rank with a backward, and E(o) the longest chain of ops that one micro-batch has to go through
 * forward and then back through o to the end of the backward pass. Before the first of these
 * actions stands the part of that chain up to the rank, behind the last one the part after it, and
 * inside the rank it is no longer than one backward. So, f_r and b_r being sums over its ops,
 *
 *     step >= E(o) + a_r f_r + (m - 1) b_r.
 *
 * Choose any e. Ops with E(o) >= e lie on some ranks; on each of those the step is at least e plus
 * what these ops alone weigh there. That is e plus the bottleneck of a problem in which an op
 * weighs a_r f + (m - 1) b on rank r, and the prover bounds it from below once weights are
 * products: w_r is the weight of the whole model there, c the least (a_r f + (m - 1) b) / w_r.
 *
 * Ops beside the longest chain count as well. A stage's actions are whole: where a chain of ops
 * goes through a stage, it waits for all that the stage computes. So if every stage has an op of
 * the longest chain, E is the whole model and e + the bottleneck of all ops a bound. A stage
 * without one lies between two neighbours of the chain, c and c', and holds only ops that are
 * neither before c nor after c': let A be the most that such ops weigh anywhere. With k stages of
 * that kind the chain still waits for the model but k A, and the others, on p - k ranks, have as
 * much to share. The least over k is a bound, too. The same goes for the bound by paths
 * (path_bound.c), which has every stage wait for the one before it. The bound for whole ops
 * (border_bound.c) allows for such stages by itself.
 *
 * Messages that occupy ranks stand between the first backward and the last as well (segment.h);
 * with them the prover bounds a bottleneck of compute and charges. Of inference the same holds with
 * forwards alone: E(o) is the longest chain through o, and m - 1 forwards count.
 *
 * Where backwards are split, I stands for b in E, and the segment has the W between. With several
 * stages on a rank the chain may lead through it more than once, and the first backward is that of
 * one of them: then E ends where a backward can begin, the least of all ops is taken, all m
 * backwards count, and of forwards what the stage with the fewest has left. */
#include <math.h>
#include <stdlib.h>

#include "partition/problem/longest_chain.h"
#include "partition/problem/message.h"
#include "partition/prove/prove.h"
#include "schedule/order_bound/path_bound.h"
#include "schedule/order_bound/segment.h"
#include "schedule/planner/bound/bounds.h"

#define LARGE_OPS 20000 /* beyond: without the prover */

typedef struct step_bound {
    const smp__configs *configs;
    const smp__config *config;
    smp__whole_ops whole;
    smp_schedule_shape shape;
    smp__op_times *op;       /* [n_op] on device 0 */
    double *chain_us;        /* [n_op] E(o) on device 0 */
    smp__segment *segment;   /* [pipeline] */
    double *weight;          /* [pipeline] */
    double fastest, slowest; /* least and most slowdown of any device */
    bool splits;             /* some backward is I and W */
    bool occupied;           /* messages occupy ranks; then: */
    bool returns;            /* a gradient goes back from every stage that reads a tensor */
    int64_t *way_ns, *no_ns; /* [n_tensor] what messages for it take of a rank, one way; 0 */
    smp_cluster cluster;
    smp_costs costs;
    smp_op_cost *cost; /* [n_op] */
    smp_arena *arena;
} step_bound;

static void fill_times(step_bound *b)
{
    const smp_costs *costs = b->configs->costs;
    bool measured = b->configs->request->profile != NULL;
    bool twice = b->shape.training && b->configs->request->options.recompute == SMP_RECOMPUTE_ALL;
    for (int32_t o = 0; o < costs->n_op; o++) {
        double forward_us = costs->op[o].forward_us, all_us = costs->op[o].backward_us;
        double input_us = measured ? fmin(costs->op[o].backward_input_us, all_us) : 0.5 * all_us;
        b->op[o] = (smp__op_times){.forward_us = forward_us,
                                   .input_us = input_us + (twice ? forward_us : 0.0),
                                   .weight_us = all_us - input_us};
    }
}

/* Time of an op in the backward part of a chain. */
static double back_us(const step_bound *b, int32_t op)
{
    return b->op[op].input_us + (b->splits ? 0.0 : b->op[op].weight_us);
}

/* Time of an op forward and in the backward part of a chain. */
static double pass_us(const step_bound *b, int32_t op)
{
    return b->op[op].forward_us + (b->shape.training ? back_us(b, op) : 0.0);
}

/* E(o): forward from any op to one from which o's gradient comes, or o itself, and back. */
static smp_status measure_chains(step_bound *b)
{
    const smp_graph *graph = b->configs->request->graph;
    size_t n = (size_t)graph->n_op;
    double *up = SMP_ARENA_NEW(b->arena, double, n);    /* forward up to the op, with it */
    double *after = SMP_ARENA_NEW(b->arena, double, n); /* backward (or forward) behind it */
    if (!up || !after)
        return SMP_ERR_NO_MEMORY;
    bool one_stage = b->shape.chunks == 1;
    for (int32_t o = 0; o < graph->n_op; o++) {
        for (int32_t k = 0; k < graph->op[o].n_in; k++) {
            int32_t from = graph->tensor[graph->op[o].in[k]].producer;
            if (from < 0)
                continue;
            up[o] = fmax(up[o], up[from]);
            if (b->shape.training && smp__passes_gradient(graph, graph->op[o].in[k], o))
                after[o] = fmax(after[o], back_us(b, from) + after[from]);
        }
        up[o] += b->op[o].forward_us;
    }
    double *down = up; /* forward, and back down to the op, without it; over what is not needed */
    for (int32_t o = graph->n_op - 1; o >= 0; o--) {
        const smp_op *op = &graph->op[o];
        for (int64_t c = graph->consumer_begin[op->out];
             c < graph->consumer_begin[op->out + op->n_out]; c++) {
            int32_t by = graph->consumer[c].op, tensor = graph->op[by].in[graph->consumer[c].slot];
            if (!b->shape.training)
                after[o] = fmax(after[o], b->op[by].forward_us + after[by]);
            else if (smp__passes_gradient(graph, tensor, by))
                down[o] = fmax(down[o], down[by] + (one_stage ? back_us(b, by) : 0.0));
        }
        if (b->shape.training)
            b->chain_us[o] = down[o] + (one_stage ? back_us(b, o) + after[o] : 0.0);
        else
            b->chain_us[o] = one_stage ? up[o] + after[o] : 0.0;
    }
    return SMP_OK;
}

static double weigh(const smp__segment *s, const smp__op_times *t)
{
    return s->forwards * t->forward_us + s->inputs * t->input_us + s->weights * t->weight_us;
}

/* What an op weighs at least, over the weight of the rank. */
static double least_weight(const step_bound *b, int32_t op)
{
    double least = INFINITY;
    for (int r = 0; r < b->shape.pipeline; r++)
        least = fmin(least, weigh(&b->segment[r], &b->op[op]) / b->weight[r]);
    return least;
}

/* The most that ops of one stage beside the longest chain can weigh. */
typedef struct beside {
    double pass_us, weight; /* pass_us, least_weight */
    bool some;              /* there are any */
    int64_t chain_bytes;    /* the least that an op of the chain hands on to the next */
    smp__chain chain;
} beside;

static smp_status weigh_beside(const step_bound *b, beside *most)
{
    const smp_graph *graph = b->configs->request->graph;
    size_t n = (size_t)b->costs.n_op;
    double *pass = SMP_ARENA_NEW(b->arena, double, n), *weight = SMP_ARENA_NEW(b->arena, double, n);
    if (!pass || !weight)
        return SMP_ERR_NO_MEMORY;
    for (int32_t o = 0; o < b->costs.n_op; o++) {
        pass[o] = pass_us(b, o);
        weight[o] = least_weight(b, o);
    }
    smp__chain chain;
    SMP_TRY(smp__chain_find(graph, pass, b->arena, &chain));
    *most = (beside){.some = chain.length < graph->n_op, .chain_bytes = INT64_MAX, .chain = chain};
    SMP_TRY(smp__chain_most_beside(&chain, pass, b->arena, &most->pass_us));
    SMP_TRY(smp__chain_most_beside(&chain, weight, b->arena, &most->weight));
    for (int32_t t = graph->n_input; t < graph->n_tensor; t++) {
        int32_t o = graph->tensor[t].producer;
        int64_t bytes = smp_costs_tensor_bytes(b->configs->costs, graph, t);
        if (chain.on[o] && chain.after[o] < chain.length && bytes < most->chain_bytes &&
            graph->consumer_begin[t] < graph->consumer_begin[t + 1])
            most->chain_bytes = bytes;
    }
    return SMP_OK;
}

static int falling(const void *left, const void *right)
{
    return smp__compare_doubles(*(const double *)right, *(const double *)left);
}

/* What a weight of one is shared by: [k] by the k ranks that take it fastest, in any replica. */
static void share_by_ranks(const step_bound *b, double *share)
{
    int p = b->shape.pipeline;
    const smp__mapping *mapping = b->config->mapping;
    const smp_search_request *request = b->configs->request;
    for (int r = 0; r < p; r++) {
        double least = INFINITY;
        for (int k = 0; k < mapping->ddp; k++)
            least =
                fmin(least, smp_device_slowdown(request->cluster, request->graph->target.precision,
                                                mapping->device[k * p + r]));
        share[r + 1] = 1.0 / (b->weight[r] * least);
    }
    qsort(share + 1, (size_t)p, sizeof *share, falling);
    share[0] = 0.0;
    for (int r = 0; r < p; r++)
        share[r + 1] += share[r];
}

/* The replica whose devices are slowest, and what its ranks' compute is multiplied with. */
static int slowest_replica(const step_bound *b, double *slowdown)
{
    int p = b->shape.pipeline, slowest = 0;
    const smp__mapping *mapping = b->config->mapping;
    const smp_search_request *request = b->configs->request;
    double most = 0.0;
    for (int k = 0; k <= mapping->ddp; k++) { /* the last time for the one found */
        double sum = 0.0;
        int replica = k < mapping->ddp ? k : slowest;
        for (int r = 0; r < p; r++) {
            slowdown[r] = smp_device_slowdown(request->cluster, request->graph->target.precision,
                                              mapping->device[replica * p + r]);
            sum += slowdown[r];
        }
        if (sum > most)
            slowest = replica;
        most = fmax(most, sum);
    }
    return slowest;
}

/* By paths; a stage stands beside the chain, or none: -1. Every border cuts the chain.
 * whole: NULL, or for whole ops. */
static smp_status bound_paths(const step_bound *b, int stage, const beside *most, double *bound_us,
                              smp__whole_ops *whole)
{
    int p = b->shape.pipeline, n_stage = p * b->shape.chunks;
    double *slowdown = SMP_ARENA_NEW(b->arena, double, (size_t)p);
    double *message_us = SMP_ARENA_NEW(b->arena, double, 2 * (size_t)n_stage);
    if (!slowdown || !message_us)
        return SMP_ERR_NO_MEMORY;
    int replica = slowest_replica(b, slowdown);
    const int *device = &b->config->mapping->device[replica * p];
    for (int s = 0; s + 1 < n_stage; s++) {
        int from = smp_schedule_stage_rank(b->config->schedule, &b->shape, s);
        int to = smp_schedule_stage_rank(b->config->schedule, &b->shape, s + 1);
        if (from != to)
            message_us[s + 1] = message_us[n_stage + s] =
                smp__message_us(b->configs->request->cluster, device[from], device[to],
                                most->chain_bytes < INT64_MAX ? most->chain_bytes : 0);
    }
    const smp__path_problem problem = {.kind = b->config->schedule,
                                       .shape = &b->shape,
                                       .deadline_s = b->configs->planner->budget.part_s,
                                       .slowdown = slowdown,
                                       .n_op = b->costs.n_op,
                                       .op = b->op,
                                       .message_us = message_us,
                                       .beside = stage};
    double *op_us = SMP_ARENA_NEW(b->arena, double, (size_t)b->costs.n_op), beside_us = 0.0;
    if (!op_us)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(smp__path_bound(&problem, bound_us, op_us, whole));
    for (int32_t o = 0; o < b->costs.n_op; o++)
        *bound_us += op_us[o];
    if (stage >= 0)
        SMP_TRY(smp__chain_most_beside(&most->chain, op_us, b->arena, &beside_us));
    *bound_us = fmax(0.0, *bound_us - beside_us);
    return SMP_OK;
}

/* With k >= 1 stages beside the longest chain. */
static smp_status bound_beside(const step_bound *b, const beside *most, double all_pass_us,
                               const double *share, int k, double *bound_us)
{
    double all = 0.0, least_us = INFINITY;
    for (int32_t o = 0; o < b->costs.n_op; o++)
        all += least_weight(b, o);
    *bound_us = b->fastest * fmax(0.0, all_pass_us - k * most->pass_us) +
                fmax(0.0, all - k * most->weight) / share[b->shape.pipeline - k];
    for (int s = 0; k == 1 && s < b->shape.pipeline; s++) {
        double paths_us;
        SMP_TRY(bound_paths(b, s, most, &paths_us, NULL));
        least_us = fmin(least_us, paths_us);
        if (least_us <= *bound_us)
            return SMP_OK;
    }
    *bound_us = k == 1 ? least_us : *bound_us;
    return SMP_OK;
}

static smp_problem arranged_problem(const step_bound *b)
{
    return smp__arrangement_problem(b->configs, &b->configs->arrangement[b->config->arrangement]);
}

static smp_status open_bound(step_bound *b)
{
    const smp__mapping *mapping = b->config->mapping;
    const smp_search_request *request = b->configs->request;
    size_t n = (size_t)request->graph->n_op, p = (size_t)mapping->pipeline;
    b->shape = smp__config_shape(b->configs, b->config);
    b->op = SMP_ARENA_NEW(b->arena, smp__op_times, n);
    b->chain_us = SMP_ARENA_NEW(b->arena, double, n);
    b->cost = SMP_ARENA_NEW(b->arena, smp_op_cost, n);
    b->segment = SMP_ARENA_NEW(b->arena, smp__segment, p);
    b->way_ns = SMP_ARENA_NEW(b->arena, int64_t, (size_t)request->graph->n_tensor);
    b->no_ns = SMP_ARENA_NEW(b->arena, int64_t, (size_t)request->graph->n_tensor);
    b->occupied = !request->cluster->overlap && p > 1 && n <= LARGE_OPS;
    b->weight = SMP_ARENA_NEW(b->arena, double, p);
    if (!b->op || !b->chain_us || !b->cost || !b->segment || !b->way_ns || !b->no_ns || !b->weight)
        return SMP_ERR_NO_MEMORY;
    b->fastest = INFINITY;
    for (int d = 0; d < mapping->pipeline * mapping->ddp; d++) {
        double slowdown = smp_device_slowdown(request->cluster, request->graph->target.precision,
                                              mapping->device[d]);
        b->fastest = fmin(b->fastest, slowdown);
        b->slowest = fmax(b->slowest, slowdown);
    }
    b->cluster = *request->cluster; /* whose links take a nanosecond per byte */
    b->cluster.intra_node = b->cluster.inter_node = (smp_link_spec){.bytes_per_s = 1e9};
    b->costs = *b->configs->costs;
    b->costs.op = b->cost;
    fill_times(b);
    smp__config_updates(b->configs, b->config, b->chain_us);
    for (size_t o = 0; o < n; o++)
        b->op[o].update_us = b->chain_us[o];
    if (!b->occupied)
        return SMP_OK;
    smp_problem problem = arranged_problem(b);
    return smp__least_messages(&problem, b->arena, b->way_ns, &b->returns);
}

/* The problem of the ops' cost, in which forward_us is all there is; occupied: and messages. */
static smp_problem bottleneck_problem(step_bound *b, bool occupied)
{
    smp_problem problem = arranged_problem(b);
    problem.costs = &b->costs;
    problem.cluster = &b->cluster;
    b->costs.tensor_bytes = occupied ? b->way_ns : b->no_ns;
    problem.recompute = SMP_RECOMPUTE_NONE;
    problem.first_look = true;
    problem.deadline_s = b->configs->planner->budget.part_s;
    return problem;
}

/* The least bottleneck of all partitions. */
static smp_status bound_bottleneck(step_bound *b, const double *weight, bool occupied,
                                   double *bound_us)
{
    smp_problem problem = bottleneck_problem(b, occupied);
    smp_partition *partition = NULL;
    problem.weight = weight;
    if (problem.graph->n_op > LARGE_OPS)
        return smp_partition_lower_bound(&problem, bound_us);
    SMP_TRY(smp_partition_solve(&problem, NULL, b->config->microbatches, &partition));
    smp_status status = smp_partition_prove(&problem, &partition);
    *bound_us = partition->lower_bound_us;
    smp_partition_destroy(partition);
    return status;
}

typedef struct chain {
    double chain_us, work;
} chain;

static int by_length(const void *left, const void *right)
{
    return smp__compare_doubles(((const chain *)left)->chain_us, ((const chain *)right)->chain_us);
}

/* The e for which e and a fair share of the ops with E(o) >= e are the most, and that much; the
 * least E(o) where a rank has several stages. */
static smp_status choose_chain(const step_bound *b, double *chosen_us, double *share_us)
{
    size_t n = (size_t)b->costs.n_op;
    chain *rising = SMP_ARENA_NEW(b->arena, chain, n);
    double share = 0.0, work = 0.0, best = -1.0;
    if (!rising)
        return SMP_ERR_NO_MEMORY;
    for (int r = 0; r < b->shape.pipeline; r++)
        share += 1.0 / b->weight[r];
    for (size_t o = 0; o < n; o++)
        rising[o] = (chain){b->chain_us[o], least_weight(b, (int32_t)o)};
    qsort(rising, n, sizeof *rising, by_length);
    for (size_t o = n; o-- > 0;) {
        work += rising[o].work;
        if (b->shape.chunks > 1 && o > 0) /* the first backward may be that of any op */
            continue;
        if (rising[o].chain_us + work / share > best) {
            best = rising[o].chain_us + work / share;
            *chosen_us = rising[o].chain_us;
        }
    }
    *share_us = b->fastest * best;
    return SMP_OK;
}

/* What partitions with stages beside the longest chain take at least; INFINITY: there are none. */
static smp_status bound_besides(const step_bound *b, const beside *most, double all_pass_us,
                                const double *share, double *bound_us)
{
    *bound_us = INFINITY;
    if (most->some && b->shape.chunks > 1)
        *bound_us = 0.0;
    for (int k = 1; k < b->shape.pipeline && most->some && b->shape.chunks == 1; k++) {
        double some_us;
        SMP_TRY(bound_beside(b, most, all_pass_us, share, k, &some_us));
        *bound_us = fmin(*bound_us, some_us);
    }
    return SMP_OK;
}

/* Weights of the ranks, the first one's being 1, and of the whole model in E. False: nothing
 * repeats. */
static bool weigh_ranks(step_bound *b, double *all_pass_us)
{
    smp__op_times model = {0};
    *all_pass_us = 0.0;
    for (int32_t o = 0; o < b->costs.n_op; o++) {
        model.forward_us += b->op[o].forward_us;
        model.input_us += b->op[o].input_us;
        model.weight_us += b->op[o].weight_us;
        *all_pass_us += pass_us(b, o);
    }
    for (int r = 0; r < b->shape.pipeline; r++) {
        b->weight[r] = weigh(&b->segment[r], &model);
        if (!(b->weight[r] > 0.0)) /* a single micro-batch */
            return false;
    }
    for (int r = b->shape.pipeline; r-- > 0;)
        b->weight[r] /= b->weight[0];
    return true;
}

/* All ops and the messages between the first and the last backward; times: of each. */
static smp_status bound_messages(step_bound *b, double all_pass_us, double beside_us,
                                 double *bound_us)
{
    double times = 0.0, bottleneck_us, least_us = INFINITY;
    if (b->occupied && b->returns)
        SMP_TRY(smp__segment_messages(b->config->schedule, &b->shape, b->arena, &times));
    if (!(times > 0.0))
        return SMP_OK;
    for (int32_t o = 0; o < b->costs.n_op; o++) {
        least_us = fmin(least_us, b->chain_us[o]);
        b->cost[o] = (smp_op_cost){.forward_us = least_weight(b, o) / times};
    }
    SMP_TRY(bound_bottleneck(b, b->weight, true, &bottleneck_us));
    *bound_us = fmax(*bound_us, b->fastest * least_us + times * bottleneck_us);
    *bound_us = fmax(*bound_us, fmin(b->fastest * all_pass_us + times * bottleneck_us, beside_us));
    return SMP_OK;
}

static smp_status bound_rule(step_bound *b, double any_us, double *bound_us)
{
    int p = b->shape.pipeline;
    double all_pass_us, chain_us = 0.0, bottleneck_us, some_us, beside_us, paths_us, weight = 0.0;
    beside most;
    double *share = SMP_ARENA_NEW(b->arena, double, (size_t)p + 1);
    *bound_us = 0.0;
    if (!share)
        return SMP_ERR_NO_MEMORY;
    for (int r = 0; r < p; r++)
        SMP_TRY(smp__segment_count(b->config->schedule, &b->shape, r, &b->segment[r], &b->splits));
    if (!weigh_ranks(b, &all_pass_us))
        return SMP_OK;
    SMP_TRY(measure_chains(b));
    SMP_TRY(choose_chain(b, &chain_us, &some_us));
    share_by_ranks(b, share);
    SMP_TRY(weigh_beside(b, &most));
    SMP_TRY(bound_besides(b, &most, all_pass_us, share, &beside_us));
    for (int32_t o = 0; o < b->costs.n_op; o++)
        weight += least_weight(b, o);
    double all_us = b->fastest * all_pass_us + weight / share[p];
    bool all = b->shape.chunks == 1 && fmin(all_us, beside_us) > some_us;
    for (int32_t o = 0; o < b->costs.n_op; o++) {
        bool counts = all || b->chain_us[o] >= chain_us;
        b->cost[o] = (smp_op_cost){.forward_us = counts ? least_weight(b, o) : 0.0};
    }
    SMP_TRY(bound_bottleneck(b, b->weight, false, &bottleneck_us));
    *bound_us = b->fastest * (all ? all_pass_us : chain_us) + bottleneck_us;
    if (all)
        *bound_us = fmin(*bound_us, beside_us);
    SMP_TRY(bound_messages(b, all_pass_us, beside_us, bound_us));
    b->whole.chain = &most.chain;
    b->whole.bound_us = fmax(any_us, *bound_us);
    SMP_TRY(bound_paths(b, -1, &most, &paths_us, &b->whole));
    *bound_us = fmax(b->whole.bound_us, fmin(paths_us, beside_us));
    return SMP_OK;
}

static smp_status bound_any(step_bound *b, double *bound_us)
{
    int cores;
    double all_us = 0.0, occupied_us = 0.0;
    for (int32_t o = 0; o < b->costs.n_op; o++)
        b->cost[o] = (smp_op_cost){
            .forward_us = b->op[o].forward_us + b->op[o].input_us + b->op[o].weight_us +
                          b->op[o].update_us / b->shape.microbatches / b->slowest};
    for (int32_t o = 0; o < b->costs.n_op; o++) /* reductions take no core */
        all_us += b->op[o].forward_us + b->op[o].input_us + b->op[o].weight_us;
    SMP_TRY(smp__config_cores(b->configs, b->config, b->arena, &cores));
    SMP_TRY(bound_bottleneck(b, NULL, false, bound_us));
    if (b->occupied)
        SMP_TRY(bound_bottleneck(b, NULL, true, &occupied_us));
    *bound_us = fmax(*bound_us, occupied_us);
    *bound_us = fmax(*bound_us, b->fastest * all_us * b->config->mapping->ddp / cores);
    *bound_us = fmax(*bound_us * b->shape.microbatches,
                     b->configs->totals.path_us * b->config->mapping->fastest);
    return SMP_OK;
}

/* Ops that the search left open go no further back than those that they read. */
static void push_stages(const step_bound *b)
{
    const smp_graph *graph = b->configs->request->graph;
    int32_t *stage = b->whole.stage;
    for (int32_t o = 0; o < graph->n_op; o++)
        for (int32_t k = 0; k < graph->op[o].n_in; k++) {
            int32_t from = graph->tensor[graph->op[o].in[k]].producer;
            if (from >= 0 && stage[from] > stage[o])
                stage[o] = stage[from];
        }
}

smp_status smp__step_bound(const smp__configs *configs, const smp__config *config, double step_us,
                           double *rule_us, double *any_us, int32_t *stage, bool *found)
{
    step_bound b = {.configs = configs,
                    .config = config,
                    .whole = {.most_us = step_us, .stage = stage, .stage_us = INFINITY},
                    .arena = smp_arena_create()};
    smp_status status = b.arena ? open_bound(&b) : SMP_ERR_NO_MEMORY;
    *rule_us = 0.0;
    if (status == SMP_OK)
        status = bound_any(&b, any_us);
    if (status == SMP_OK && config->mapping->pipeline > 1)
        status = bound_rule(&b, *any_us, rule_us);
    if (status == SMP_OK)
        *rule_us = fmax(*rule_us, *any_us);
    *found = status == SMP_OK && b.whole.stage_us < step_us;
    if (*found)
        push_stages(&b);
    smp_arena_destroy(b.arena);
    return status;
}

/* The most that a rank's compute is slowed down in any replica. */
static double slowest_of_rank(const step_bound *b, int rank)
{
    const smp__mapping *mapping = b->config->mapping;
    return smp_replicas_slowest(b->configs->request->cluster,
                                b->configs->request->graph->target.precision, mapping->pipeline,
                                mapping->ddp, mapping->device, rank);
}

smp_status smp__step_floor_make(const smp__configs *configs, const smp__config *config,
                                smp_arena *arena, smp__step_floor *out)
{
    step_bound b = {.configs = configs, .config = config, .arena = arena};
    double least_us = INFINITY;
    SMP_TRY(open_bound(&b));
    for (int r = 0; r < b.shape.pipeline; r++) {
        smp__segment *s = &b.segment[r];
        double slowdown = slowest_of_rank(&b, r);
        SMP_TRY(smp__segment_count(config->schedule, &b.shape, r, s, &b.splits));
        *s = (smp__segment){slowdown * fmax(0.0, s->forwards), slowdown * fmax(0.0, s->inputs),
                            slowdown * fmax(0.0, s->weights)};
    }
    SMP_TRY(measure_chains(&b));
    for (int32_t o = 0; o < b.costs.n_op; o++)
        least_us = fmin(least_us, b.chain_us[o]);
    for (int32_t o = 0; o < b.costs.n_op; o++) /* of several stages any op may begin */
        b.chain_us[o] = b.fastest * (b.shape.chunks > 1 ? least_us : b.chain_us[o]);
    *out = (smp__step_floor){b.chain_us, b.op, b.segment};
    return SMP_OK;
}
