/* What cross_entropy and linear_cross_entropy share on a GPU: rows of logits, and what is made of
 * them by the kernels of cross_entropy.cu. Readable as C. */
#ifndef SMP_GRAPH_OPS_CROSS_ENTROPY_CUH
#define SMP_GRAPH_OPS_CROSS_ENTROPY_CUH

extern "C" {
#include "graph/ops/loss/loss.h"
}

struct alignas(8) smp_row_stats {
    float max, sum;
};

/* What a device has of a row, as in loss.h. */
struct alignas(16) smp_row_share {
    float max, sum, target, total;
};

/* Sum of losses and number of targets of some rows. */
struct alignas(16) smp_loss_part {
    double loss, count;
};

/* Rows of a micro-batch and where what is made of them lies. */
struct smp_class_rows {
    int64_t rows, counted;           // how many belong to samples; the rest is padding
    int64_t classes, first, devices; // of this device, from `first` on, of so many
    const void *logits;              // (rows, classes) of the call's type
    const int32_t *target;
    smp_row_stats *stats; // (rows)
    double *count;        // targets that count, of the whole micro-batch
    int parts;
    smp_loss_part *part; // (parts)
    float smoothing;
    float *mean;                  // (rows); NULL without smoothing
    smp_row_share *own, *shares;  // (rows), (devices, rows) and, closely packed, (devices, counted)
    float *target_logit, *before; // (rows); NULL, as `own`, if the logits are all there at once
};

/* Statistics, means and the targets' logits of rows, exchanged with the other devices; for hits the
 * classes before each target too. */
smp_status smp_class_rows_make(const smp_op_call *call, const smp_class_rows *rows);
/* The mean loss of rows of which all that is made, and the hits. */
smp_status smp_class_rows_add(const smp_op_call *call, const smp_class_rows *rows);
/* dlogits (rows, classes), which may be the logits. */
smp_status smp_class_rows_gradient(const smp_op_call *call, const smp_class_rows *rows,
                                   void *dlogits);

#endif
