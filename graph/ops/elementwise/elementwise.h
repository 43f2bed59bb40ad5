/* Attributes of the elementwise operators, and what both backends of them use. */
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

/* Which elements a call drops, and what it multiplies the others by. */
typedef struct smp__dropout_mask {
    uint64_t key, counter_high;
    uint32_t threshold; /* an element is dropped if the upper 24 bits of its word lie below */
    float scale;
} smp__dropout_mask;

smp__dropout_mask smp__dropout_mask_of(const smp_op_call *call);

/* Is it a gelu in the tanh approximation? */
bool smp__is_gelu_tanh(const smp_op *op);

#ifdef __cplusplus
}
#endif

#endif
