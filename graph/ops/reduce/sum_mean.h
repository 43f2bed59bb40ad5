/* What sums and means are on the CPU and on a GPU: what is added up, and the factor. */
#ifndef SMP_GRAPH_OPS_SUM_MEAN_H
#define SMP_GRAPH_OPS_SUM_MEAN_H

#include "graph/ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SMP__SUM_AXIS };

/* The elements that become one: along the axis, all positions, or the pixels of a channel. */
smp__axis smp__sum_axis(const smp_graph *graph, const smp_op *op, int64_t batch);

/* What sums and gradients are multiplied by. */
static inline float smp__sum_factor(const smp_op_call *call, smp__axis along)
{
    return call->op->kind == &smp__op_sum ? 1.0f : 1.0f / (float)along.size;
}

#ifdef __cplusplus
}
#endif

#endif
