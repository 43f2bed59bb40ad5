/* Maximum flow: Dinic's algorithm ("Algorithm for solution of a problem of maximum flow in networks
 * with power estimation", Soviet Math. Dokl. 1970). Real capacities. Stopping early leaves a flow
 * that is smaller, but one: by duality it bounds every cut from below all the same. */
#ifndef SMP_PARTITION_PROVE_MAX_FLOW_H
#define SMP_PARTITION_PROVE_MAX_FLOW_H

#include <stdbool.h>
#include <stdint.h>

#include "graph/base/arena.h"

#define SMP__UNBOUNDED 1e300 /* capacity that no flow uses up */

typedef struct smp__network_edge {
    int32_t to;
    int32_t next; /* of the same node; -1: none */
    double room;  /* left in this direction */
} smp__network_edge;

/* Edges come in pairs: edge e leads forward, e ^ 1 back. */
typedef struct smp__network {
    int32_t n_node;
    int32_t n_edge; /* both directions */
    size_t edge_capacity;
    int32_t *first; /* [n_node] edge; -1: none */
    smp__network_edge *edge;
    int32_t *level;  /* [n_node] distance from the source; -1: not reached */
    int32_t *cursor; /* [n_node] next edge to try */
    int32_t *queue;  /* [n_node] */
    double smallest; /* amounts that count as none */
} smp__network;

smp_status smp__network_init(smp__network *network, int32_t max_node);
void smp__network_free(smp__network *network);

/* Forgets all edges. */
void smp__network_reset(smp__network *network, int32_t n_node);
/* *edge (may be NULL): the forward one. */
smp_status smp__network_add(smp__network *network, int32_t from, int32_t to, double capacity,
                            double capacity_back, int32_t *edge);
/* Sends what can be sent, and returns it, until *work (edges looked at) is used up. */
double smp__network_run(smp__network *network, int32_t source, int32_t sink, int64_t *work);

#endif
