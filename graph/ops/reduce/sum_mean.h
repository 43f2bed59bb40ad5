/* What sum and mean are on the CPU and on a GPU: the dimension, and the factor. */
#ifndef SMP_GRAPH_OPS_SUM_MEAN_H
#define SMP_GRAPH_OPS_SUM_MEAN_H

#include "graph/ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SMP__SUM_AXIS };

static inline smp__axis smp__sum_axis(const smp_op_call *call)
{
    return smp__axis_of(smp__in(call->graph, call->op, 0), call->op->attr[SMP__SUM_AXIS].i,
                        call->batch);
}

/* What sums and gradients are multiplied by. */
static inline float smp__sum_factor(const smp_op_call *call, smp__axis along)
{
    return call->op->kind == &smp__op_mean ? 1.0f / (float)along.size : 1.0f;
}

#ifdef __cplusplus
}
#endif

#endif
