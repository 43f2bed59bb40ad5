/* How operators are written in ONNX: one function each, in one table. */
#ifndef SMP_GRAPH_EXPORT_EXPORT_TABLE_H
#define SMP_GRAPH_EXPORT_EXPORT_TABLE_H

#include "graph/export/export_nodes.h"

/* Makes the nodes of x->op and says what its outputs are called (smp__node_is). */
typedef void smp__export_rule(smp__node_out *x);

/* Writes x->op. SMP_ERR_INPUT: it has no meaning in ONNX, and why. */
smp_status smp__export_op(smp__node_out *x);

/* The kinds that have a line in the table, NULL-terminated, in its order. */
const char *const *smp__export_kinds(void);

/* What the table names; export_products.c, export_norms.c, export_shapes.c, export_attention.c,
 * export_experts.c. */
smp__export_rule smp__export_linear, smp__export_expert_linear, smp__export_conv2d,
    smp__export_embedding, smp__export_position_embedding, smp__export_parameter, smp__export_bias;
smp__export_rule smp__export_layernorm, smp__export_rmsnorm, smp__export_groupnorm,
    smp__export_batchnorm, smp__export_softmax;
smp__export_rule smp__export_reshape, smp__export_concat, smp__export_split, smp__export_slice,
    smp__export_transpose, smp__export_sum, smp__export_mean, smp__export_mean_pool,
    smp__export_global_avg_pool, smp__export_max_pool, smp__export_avg_pool, smp__export_upsample,
    smp__export_patchify;
smp__export_rule smp__export_attention, smp__export_rope;
smp__export_rule smp__export_expert_dispatch, smp__export_expert_combine;

#endif
