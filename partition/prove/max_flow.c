/* See max_flow.h. Distances by breadth first search; then depth first search along edges that lead
 * one level further, each node remembering the edge it tries next. */
#include "partition/prove/max_flow.h"

#include <math.h>
#include <stdlib.h>

#include "graph/base/clock.h"

#define SMALLEST 1e-13 /* of the largest bounded capacity */

smp_status smp__network_init(smp__network *network, int32_t max_node)
{
    size_t n = (size_t)max_node + 1;
    *network = (smp__network){0};
    network->first = calloc(n, sizeof *network->first);
    network->level = calloc(n, sizeof *network->level);
    network->cursor = calloc(n, sizeof *network->cursor);
    network->queue = calloc(n, sizeof *network->queue);
    if (network->first && network->level && network->cursor && network->queue)
        return SMP_OK;
    smp__network_free(network);
    return smp_fail_memory(n * 4 * sizeof *network->first);
}

void smp__network_free(smp__network *network)
{
    free(network->first);
    free(network->edge);
    free(network->level);
    free(network->cursor);
    free(network->queue);
    *network = (smp__network){0};
}

void smp__network_reset(smp__network *network, int32_t n_node)
{
    network->n_node = n_node;
    network->n_edge = 0;
    network->smallest = 0.0;
    for (int32_t v = 0; v < n_node; v++)
        network->first[v] = -1;
}

smp_status smp__network_add(smp__network *network, int32_t from, int32_t to, double capacity,
                            double capacity_back, int32_t *edge)
{
    SMP_TRY(smp_array_reserve(&network->edge, &network->edge_capacity, sizeof *network->edge,
                              (size_t)network->n_edge + 2));
    int32_t e = network->n_edge;
    network->n_edge += 2;
    network->edge[e] = (smp__network_edge){to, network->first[from], capacity};
    network->first[from] = e;
    network->edge[e + 1] = (smp__network_edge){from, network->first[to], capacity_back};
    network->first[to] = e + 1;
    if (capacity < SMP__UNBOUNDED)
        network->smallest = fmax(network->smallest, SMALLEST * capacity);
    if (edge)
        *edge = e;
    return SMP_OK;
}

/* Distances from the source; false if the sink is out of reach. */
static bool find_levels(smp__network *network, int32_t source, int32_t sink, int64_t *work)
{
    for (int32_t v = 0; v < network->n_node; v++) {
        network->level[v] = -1;
        network->cursor[v] = network->first[v];
    }
    int32_t n = 0;
    network->queue[n++] = source;
    network->level[source] = 0;
    for (int32_t head = 0; head < n && network->level[sink] < 0; head++) {
        int32_t v = network->queue[head];
        for (int32_t e = network->first[v]; e >= 0; e = network->edge[e].next) {
            int32_t to = network->edge[e].to;
            (*work)--;
            if (network->level[to] >= 0 || network->edge[e].room <= network->smallest)
                continue;
            network->level[to] = network->level[v] + 1;
            network->queue[n++] = to;
        }
    }
    *work -= network->n_node / 8;
    return network->level[sink] >= 0;
}

/* The next edge from v to the level after, or -1. */
static int32_t next_edge(smp__network *network, int32_t v, int64_t *work)
{
    int32_t e = network->cursor[v];
    while (e >= 0 && (network->edge[e].room <= network->smallest ||
                      network->level[network->edge[e].to] != network->level[v] + 1)) {
        e = network->edge[e].next;
        (*work)--;
    }
    network->cursor[v] = e;
    return e;
}

/* Sends as much as fits along the path of `n` edges in the queue; *keep: edges before the first
 * that is now full. */
static double send(smp__network *network, int32_t n, int32_t *keep)
{
    double amount = INFINITY;
    for (int32_t i = 0; i < n; i++)
        amount = fmin(amount, network->edge[network->queue[i]].room);
    *keep = n;
    for (int32_t i = n - 1; i >= 0; i--) {
        network->edge[network->queue[i]].room -= amount;
        network->edge[network->queue[i] ^ 1].room += amount;
        if (network->edge[network->queue[i]].room <= network->smallest)
            *keep = i;
    }
    return amount;
}

/* A flow that blocks every shortest path. */
static double block_paths(smp__network *network, int32_t source, int32_t sink, int64_t *work)
{
    double total = 0.0;
    int32_t n = 0, v = source; /* path in the queue, and its end */
    while (*work > 0) {
        if (v == sink) {
            int32_t keep;
            total += send(network, n, &keep);
            *work -= n;
            n = keep;
            v = network->edge[network->queue[n] ^ 1].to;
            continue;
        }
        int32_t e = next_edge(network, v, work);
        if (e >= 0) {
            network->queue[n++] = e;
            v = network->edge[e].to;
        } else if (n == 0) {
            break;
        } else {
            network->level[v] = -1; /* a dead end */
            v = network->edge[network->queue[--n] ^ 1].to;
        }
    }
    return total;
}

double smp__network_run(smp__network *network, int32_t source, int32_t sink, int64_t *work)
{
    const int64_t begin = *work;
    double total = 0.0;
    while (*work > 0 && find_levels(network, source, sink, work))
        total += block_paths(network, source, sink, work);
    smp_work_count(SMP_WORK_PROOF, (double)(begin - *work));
    return total;
}
