/* See message.h. */
#include "partition/problem/message.h"

#include <math.h>

#include "partition/problem/flow.h"

smp__link smp__link_between(const smp_problem *problem, int replica, int rank_a, int rank_b)
{
    if (rank_a == rank_b)
        return SMP__LINK_SAME;
    const smp_cluster *cluster = problem->cluster;
    const int *device = &problem->device[(int64_t)replica * problem->pipeline];
    const smp_link_spec *link = smp_cluster_link(cluster, device[rank_a], device[rank_b]);
    return link == &cluster->inter_node ? SMP__LINK_INTER : SMP__LINK_INTRA;
}

smp__link smp__farthest_link(const smp_problem *problem, int rank_a, int rank_b)
{
    smp__link farthest = SMP__LINK_SAME;
    for (int k = 0; k < smp_problem_replicas(problem); k++) {
        smp__link link = smp__link_between(problem, k, rank_a, rank_b);
        farthest = link > farthest ? link : farthest;
    }
    return farthest;
}

double smp__link_us(const smp_problem *problem, smp__link link, int64_t bytes)
{
    if (link == SMP__LINK_SAME)
        return 0.0;
    const smp_cluster *cluster = problem->cluster;
    return smp_link_us(link == SMP__LINK_INTER ? &cluster->inter_node : &cluster->intra_node,
                       bytes);
}

double smp__charge_us(const smp_problem *problem, smp__link link, int32_t tensor)
{
    const smp_graph *graph = problem->graph;
    bool returns = graph->training && graph->tensor[tensor].needs_grad;
    int64_t bytes = smp_costs_tensor_bytes(problem->costs, graph, tensor);
    return (returns ? 2 : 1) * smp__link_us(problem, link, bytes);
}

/* Where a message takes least, of the links among the ranks of all replicas. */
typedef struct links {
    const smp_link_spec *link[2];
    int n;
} links;

static links find_links(const smp_problem *problem)
{
    links found = {0};
    int p = problem->pipeline;
    for (int i = 0; i < smp_problem_replicas(problem) * p; i++) {
        const int *device = &problem->device[i - i % p];
        for (int r = 0; r < i % p && found.n < 2; r++) {
            const smp_link_spec *link =
                smp_cluster_link(problem->cluster, device[r], problem->device[i]);
            if (found.n == 0 || found.link[0] != link)
                found.link[found.n++] = link;
        }
    }
    return found;
}

static double least_us(const links *links, int64_t bytes)
{
    double us = INFINITY;
    for (int i = 0; i < links->n; i++)
        us = fmin(us, smp_link_us(links->link[i], bytes));
    return us;
}

/* Whether a gradient goes back from every stage that reads a tensor. */
static bool returns(const smp_flow *flow, const smp_graph *graph, bool one_stage, int32_t tensor)
{
    int64_t begin = graph->consumer_begin[tensor], end = graph->consumer_begin[tensor + 1];
    bool all = true;
    for (int64_t c = begin; all && c < end; c++)
        all = smp_flow_contributes(graph, flow->backward, graph->consumer[c].op,
                                   graph->consumer[c].slot) &&
              (one_stage || graph->consumer[c].op == graph->consumer[begin].op);
    return all;
}

/* Forward a stage that reads a tensor receives it once, and the one that makes it sends it at least
 * once. Back, every stage with a reader that adds to the gradient sends one message for it, and the
 * one that makes the tensor receives one: a relay only adds more. It may go between other ranks
 * than the tensor went, so every message counts by the fastest link for it; and with several stages
 * on a rank it may need no message between two of them, so there only the gradients of tensors with
 * one reader count. */
smp_status smp__least_messages(const smp_problem *problem, smp_arena *arena, int64_t *way_ns,
                               bool *returning)
{
    const smp_graph *graph = problem->graph;
    links links = find_links(problem);
    smp_flow *flow = NULL;
    int32_t *stage = SMP_ARENA_NEW(arena, int32_t, (size_t)graph->n_op);
    int64_t batch = problem->costs->microbatch_size;
    if (!stage)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(smp_flow_build(graph, stage, 1, batch, &flow));
    *returning = true;
    for (int32_t t = graph->n_input; t < graph->n_tensor; t++) {
        double us = least_us(&links, smp_tensor_bytes(graph, t, batch));
        bool back = returns(flow, graph, problem->n_stage == problem->pipeline, t);
        if (!back && graph->training && graph->tensor[t].needs_grad)
            us *= 0.5; /* the charge counts it twice */
        way_ns[t] = (int64_t)fmin(1e3 * us, 1e15);
        *returning &= back;
    }
    smp_flow_destroy(flow);
    return SMP_OK;
}
