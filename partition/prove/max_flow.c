#include "partition/prove/max_flow.h"

#include <math.h>
#include <stdlib.h>

#define SMALLEST 1e-13 /* of the largest bounded capacity */

smp_status smp__flow_init(smp__flow *flow, int32_t max_node)
{
    size_t n = (size_t)max_node + 1;
    *flow = (smp__flow){.max_node = max_node};
    flow->first = calloc(n, sizeof *flow->first);
    flow->level = calloc(n, sizeof *flow->level);
    flow->cursor = calloc(n, sizeof *flow->cursor);
    flow->queue = calloc(n, sizeof *flow->queue);
    if (flow->first && flow->level && flow->cursor && flow->queue)
        return SMP_OK;
    smp__flow_free(flow);
    return smp_fail_memory(n * 4 * sizeof *flow->first);
}

void smp__flow_free(smp__flow *flow)
{
    free(flow->first);
    free(flow->edge);
    free(flow->level);
    free(flow->cursor);
    free(flow->queue);
    *flow = (smp__flow){0};
}

void smp__flow_reset(smp__flow *flow, int32_t n_node)
{
    flow->n_node = n_node;
    flow->n_edge = 0;
    flow->smallest = 0.0;
    for (int32_t v = 0; v < n_node; v++)
        flow->first[v] = -1;
}

smp_status smp__flow_add(smp__flow *flow, int32_t from, int32_t to, double capacity,
                         double capacity_back, int32_t *edge)
{
    SMP_TRY(smp_array_reserve(&flow->edge, &flow->edge_capacity, sizeof *flow->edge,
                              (size_t)flow->n_edge + 2));
    int32_t e = flow->n_edge;
    flow->n_edge += 2;
    flow->edge[e] = (smp__flow_edge){to, flow->first[from], capacity};
    flow->first[from] = e;
    flow->edge[e + 1] = (smp__flow_edge){from, flow->first[to], capacity_back};
    flow->first[to] = e + 1;
    if (capacity < SMP__FLOW_UNBOUNDED)
        flow->smallest = fmax(flow->smallest, SMALLEST * capacity);
    if (edge)
        *edge = e;
    return SMP_OK;
}

/* Distances from the source; false if the sink is out of reach. */
static bool find_levels(smp__flow *flow, int32_t source, int32_t sink, int64_t *work)
{
    for (int32_t v = 0; v < flow->n_node; v++) {
        flow->level[v] = -1;
        flow->cursor[v] = flow->first[v];
    }
    int32_t n = 0;
    flow->queue[n++] = source;
    flow->level[source] = 0;
    for (int32_t head = 0; head < n && flow->level[sink] < 0; head++) {
        int32_t v = flow->queue[head];
        for (int32_t e = flow->first[v]; e >= 0; e = flow->edge[e].next) {
            int32_t to = flow->edge[e].to;
            (*work)--;
            if (flow->level[to] >= 0 || flow->edge[e].room <= flow->smallest)
                continue;
            flow->level[to] = flow->level[v] + 1;
            flow->queue[n++] = to;
        }
    }
    *work -= flow->n_node / 8;
    return flow->level[sink] >= 0;
}

/* The next edge from v to the level behind, or -1. */
static int32_t next_edge(smp__flow *flow, int32_t v, int64_t *work)
{
    int32_t e = flow->cursor[v];
    while (e >= 0 && (flow->edge[e].room <= flow->smallest ||
                      flow->level[flow->edge[e].to] != flow->level[v] + 1)) {
        e = flow->edge[e].next;
        (*work)--;
    }
    flow->cursor[v] = e;
    return e;
}

/* Sends as much as fits along the path of `n` edges in the queue; *keep: edges before the first
 * that is now full. */
static double send(smp__flow *flow, int32_t n, int32_t *keep)
{
    double amount = INFINITY;
    for (int32_t i = 0; i < n; i++)
        amount = fmin(amount, flow->edge[flow->queue[i]].room);
    *keep = n;
    for (int32_t i = n - 1; i >= 0; i--) {
        flow->edge[flow->queue[i]].room -= amount;
        flow->edge[flow->queue[i] ^ 1].room += amount;
        if (flow->edge[flow->queue[i]].room <= flow->smallest)
            *keep = i;
    }
    return amount;
}

/* A flow that blocks every shortest path. */
static double block_paths(smp__flow *flow, int32_t source, int32_t sink, int64_t *work)
{
    double total = 0.0;
    int32_t n = 0, v = source; /* path in the queue, and its end */
    while (*work > 0) {
        if (v == sink) {
            int32_t keep;
            total += send(flow, n, &keep);
            *work -= n;
            n = keep;
            v = flow->edge[flow->queue[n] ^ 1].to;
            continue;
        }
        int32_t e = next_edge(flow, v, work);
        if (e >= 0) {
            flow->queue[n++] = e;
            v = flow->edge[e].to;
        } else if (n == 0) {
            break;
        } else {
            flow->level[v] = -1; /* a dead end */
            v = flow->edge[flow->queue[--n] ^ 1].to;
        }
    }
    return total;
}

double smp__flow_run(smp__flow *flow, int32_t source, int32_t sink, int64_t *work)
{
    double total = 0.0;
    while (*work > 0 && find_levels(flow, source, sink, work))
        total += block_paths(flow, source, sink, work);
    return total;
}
