/* Attributes of the losses, what those over two tensors of one shape share, and what cross_entropy
 * and linear_cross_entropy do. */
#ifndef SMP_GRAPH_OPS_LOSS_H
#define SMP_GRAPH_OPS_LOSS_H

#include "graph/ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SMP__LOGITS, SMP__TARGETS }; /* inputs of those that have logits */
enum { SMP__CROSS_ENTROPY_SMOOTHING, SMP__CROSS_ENTROPY_DEVICES };
enum { SMP__IGNORED_TARGET = -1 }; /* of cross_entropy: the row does not count */

/* The targets, input 1, are int32, one for each row of such logits, of a part of the classes of so
 * many devices; the output is one loss. */
smp_status smp__infer_cross_entropy(smp_infer *infer, const smp_shape *logits, int64_t devices);
/* How many targets are not ignored. */
int64_t smp__cross_entropy_counted(const int32_t *target, int64_t n);
/* In which a GPU adds the losses of parts of the rows: two doubles each. */
int64_t smp__cross_entropy_parts_bytes(int64_t rows);

/* Logits that linear_cross_entropy has in memory at once; a head and loss with more of a sample
 * become one (smp_graph_join). */
#define SMP__CHUNK_LOGITS ((int64_t)1 << 27)

/* What aux keeps of a row, and what a device of several has of it: its largest logit, the sum of
 * exp(logit - max), the target's logit or 0, and with label smoothing the sum of the logits. */
typedef struct smp__row_stats {
    float max, sum;
} smp__row_stats;
typedef struct smp__row_share {
    float max, sum, target, total;
} smp__row_share;

/* On the CPU: consecutive rows of a micro-batch, and the sums over those so far. */
typedef struct smp__class_rows {
    const smp_op_call *call;
    const float *logits; /* (rows, classes) */
    const int32_t *target;
    smp__row_stats *stats;
    int64_t first, counted; /* the first of them; how many belong to samples: the rest is padding */
    int64_t classes, devices;
    double smoothing;
    smp__row_share *own, *shares; /* (counted), (devices, counted) where there are several */
    double loss;
    int64_t count, hits[SMP_OP_HITS];
} smp__class_rows;

/* Makes the statistics of the rows and adds what they have to the sums. */
smp_status smp__class_rows_add(smp__class_rows *rows);
/* The mean to the call's output, and its hits. */
void smp__class_rows_end(const smp__class_rows *rows);
/* dlogits (rows + padding, classes), which may be the logits; scale: the loss's gradient by the
 * targets that count. */
void smp__class_rows_gradient(const smp__class_rows *rows, int64_t padding, float scale,
                              float *dlogits);

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
