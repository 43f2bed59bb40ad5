/* Attributes of the losses, and what those over two tensors of one shape share. */
#ifndef SMP_GRAPH_OPS_LOSS_H
#define SMP_GRAPH_OPS_LOSS_H

#include "graph/ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SMP__LOGITS, SMP__TARGETS }; /* inputs of those that have logits */
enum { SMP__CROSS_ENTROPY_SMOOTHING, SMP__CROSS_ENTROPY_DEVICES };
enum { SMP__IGNORED_TARGET = -1 }; /* of cross_entropy: the row does not count */

/* Losses that are a mean over the elements of two tensors of one shape: what a GPU needs to add
 * them (graph/cuda/cuda_pair_loss.cuh), and how many elements belong to samples: the rest is
 * padding. */
smp_status smp__infer_pair_loss(smp_infer *infer);
void smp__cuda_needs_pair_loss(const smp_graph *graph, const smp_op *op, int64_t batch,
                               smp_op_needs *needs);
static inline int64_t smp__pair_loss_counted(const smp_op_call *call)
{
    return smp__count(smp__in(call->graph, call->op, 0), call->batch - call->padding);
}

#ifdef __cplusplus
}
#endif

#endif
