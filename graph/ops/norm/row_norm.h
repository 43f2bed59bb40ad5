/* What layernorm and rmsnorm share, which normalise the rows of the last dimension of input 0. */
#ifndef SMP_GRAPH_OPS_NORM_ROW_NORM_H
#define SMP_GRAPH_OPS_NORM_ROW_NORM_H

#include "graph/ops/ops.h"

enum { SMP__ROW_NORM_EPS };
extern const smp_attr_desc smp__row_norm_attrs[];

/* An output like the input; a weight, and maybe a bias. */
smp_status smp__infer_row_norm(smp_infer *infer, bool has_bias);

/* The rows of a call; and what backward needs, so many statistics of a row saved. On a GPU the sums
 * of parts of the rows stand in the workspace, (parts, n_param, columns). */
int64_t smp__norm_rows(const smp_op_call *call);
void smp__needs_norm(const smp_graph *graph, const smp_op *op, int statistics, smp_op_needs *needs);
void smp__cuda_needs_norm(const smp_graph *graph, const smp_op *op, int64_t batch, int statistics,
                          smp_op_needs *needs);

#endif
