/* What both files of linear_cross_entropy read: attributes, inputs, places in the workspace. */
#ifndef SMP_GRAPH_OPS_LINEAR_CROSS_ENTROPY_H
#define SMP_GRAPH_OPS_LINEAR_CROSS_ENTROPY_H

#include "graph/ops/loss/loss.h"
#include "graph/ops/matmul/linear.h"

enum { SMP__HIDDEN }; /* input 0; input 1: SMP__TARGETS */
enum {
    SMP__LINEAR_CROSS_ENTROPY_SMOOTHING = SMP__LINEAR_N,
    SMP__LINEAR_CROSS_ENTROPY_CHUNK,
    SMP__LINEAR_CROSS_ENTROPY_DEVICES
};

/* Bytes from the start of the workspace, multiples of 64. Of a chunk: logits, what this device and
 * what all have of its rows. A GPU's besides: parts of the rows, of all rows what cross_entropy.cu
 * has of each, of a chunk x without padding and sums of the columns. */
typedef struct smp__chunk_place {
    int64_t chunk; /* rows */
    int64_t logits, own, shares;
    int64_t parts, target_logit, mean, before, hidden, sums;
    int64_t end;
} smp__chunk_place;

#ifdef __cplusplus
extern "C" {
#endif
smp__chunk_place smp__chunk_place_of(const smp_graph *graph, const smp_op *op, int64_t batch,
                                     smp_backend backend);
#ifdef __cplusplus
}
#endif

#endif
