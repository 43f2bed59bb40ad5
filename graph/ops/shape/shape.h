/* Attributes of the operators that move elements, and where these lie. */
#ifndef SMP_GRAPH_OPS_SHAPE_H
#define SMP_GRAPH_OPS_SHAPE_H

#include "graph/ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SMP__CONCAT_AXIS };
enum { SMP__SPLIT_AXIS, SMP__SPLIT_SIZES };
enum { SMP__PATCHIFY_PATCH };

/* Where the elements of a slice lie: `width` of every `stride`, from `offset` on. */
typedef struct smp__slice {
    int64_t rows, stride, offset, width;
} smp__slice;

smp__slice smp__slice_of(const smp_graph *graph, const smp_op *op, int64_t batch);

/* A transpose: the output's dimensions, the outermost first, and how far apart their elements lie
 * in the input. */
typedef struct smp__permutation {
    int n_dim;
    int64_t dim[SMP_MAX_DIMS], stride[SMP_MAX_DIMS];
} smp__permutation;

smp__permutation smp__permutation_of(const smp_graph *graph, const smp_op *op);

#ifdef __cplusplus
}
#endif

#endif
