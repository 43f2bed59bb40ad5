/* See message.h. */
#include "partition/problem/message.h"

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

double smp__charge_us(const smp_problem *problem, smp__link link, int32_t op)
{
    const smp_graph *graph = problem->graph;
    bool returns = graph->training && graph->tensor[graph->op[op].out].needs_grad;
    return (returns ? 2 : 1) * smp__link_us(problem, link, problem->costs->op[op].output_bytes);
}
