/* Attributes of the elementwise operators. */
#ifndef SMP_GRAPH_OPS_ELEMENTWISE_H
#define SMP_GRAPH_OPS_ELEMENTWISE_H

#include "graph/ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SMP__GELU_APPROXIMATE };
enum { SMP__GELU_TANH, SMP__GELU_ERF, SMP__GELU_NONE }; /* PyTorch says "none" for erf */
enum { SMP__SCALE_FACTOR };
enum { SMP__BIAS_AXIS };
enum { SMP__DROPOUT_P, SMP__DROPOUT_DEVICES, SMP__DROPOUT_AXIS, SMP__DROPOUT_BLOCKS };

/* Is it a gelu in the tanh approximation? */
bool smp__is_gelu_tanh(const smp_op *op);

#ifdef __cplusplus
}
#endif

#endif
