/* Attributes of an embedding, and which rows of its table a device has. */
#ifndef SMP_GRAPH_OPS_EMBEDDING_H
#define SMP_GRAPH_OPS_EMBEDDING_H

#include "graph/ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SMP__EMBEDDING_ROWS,
    SMP__EMBEDDING_FEATURES,
    SMP__EMBEDDING_INIT_STD,
    SMP__EMBEDDING_PADDING
};

/* The rows of an embedding's table that this device has, and how many there are in all. */
typedef struct smp__own_rows {
    int64_t first, count, all;
} smp__own_rows;

smp__own_rows smp__embedding_rows(const smp_graph *graph, const smp_op *op);

#ifdef __cplusplus
}
#endif

#endif
