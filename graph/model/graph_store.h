/* What stands behind an smp_graph: the graph itself and what only its owner may touch. */
#ifndef SMP_GRAPH_MODEL_GRAPH_STORE_H
#define SMP_GRAPH_MODEL_GRAPH_STORE_H

#include "graph/model/graph.h"
#include "graph/model/name_index.h"

typedef struct smp__graph_store {
    smp_graph graph; /* first: an smp_graph pointer is a pointer to its store */
    smp__name_index op_index;
    smp__name_index param_index;
    smp_param *param; /* graph.param; grows while reading, so not in the arena */
    size_t param_capacity;
    smp_graph *owned; /* graph.whole, if nobody else frees it */
} smp__graph_store;

/* An empty graph with its arena; freed with smp_graph_destroy. */
smp__graph_store *smp__graph_store_create(void);

/* The steps that complete a graph once its ops, tensors and weights stand. O(size). */
smp_status smp__graph_index_uses(smp__graph_store *store);
smp_status smp__graph_index_consumers(smp__graph_store *store);
smp_status smp__graph_mark_gradients(smp__graph_store *store, smp_tensor *tensor);
/* Decides which tensors are channels_last: a function of the graph and its target. */
smp_status smp__graph_lay_out(smp_graph *graph);
/* The fingerprint that the graph has, or would have, in that mode. */
uint64_t smp__graph_fingerprint(const smp_graph *graph, bool training);

#endif
