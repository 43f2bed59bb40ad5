/* What computing constants shares: the output that is made and how elements are found. */
#ifndef SMP_GRAPH_ONNX_ONNX_FOLD_H
#define SMP_GRAPH_ONNX_ONNX_FOLD_H

#include "graph/onnx/onnx_model.h"

typedef struct smp__fold {
    smp_onnx_model *m;
    const smp_onnx_node *node;
    const smp_onnx_value *in[3];
    smp_onnx_value *out;
    int64_t n; /* elements of out */
    float *floats;
    int64_t *ints;
} smp__fold;

/* Memory for the output; false: none. */
bool smp__fold_make(smp__fold *f);
double smp__fold_number(const smp_onnx_value *v, int64_t i);
/* Element i of the output: a number, or that of another constant without loss. */
void smp__fold_set(smp__fold *f, int64_t i, double value);
void smp__fold_copy(smp__fold *f, int64_t to, const smp_onnx_value *from, int64_t at);
/* Strides of v's own dimensions, and those by which v repeats itself as the output's shape has it.
 */
void smp__fold_strides_of(const smp_onnx_value *v, int64_t stride[]);
void smp__fold_broadcast_strides(const smp_onnx_value *v, const smp_onnx_value *out,
                                 int64_t stride[]);

/* Keeps which initializer the first input is of. */
void smp__fold_rearranged(const smp__fold *f, bool repeats);

/* onnx_fold_gather.c */
void smp__fold_gather(smp__fold *f);
void smp__fold_gather_elements(smp__fold *f);
void smp__fold_gather_nd(smp__fold *f);
/* onnx_fold_arithmetic.c */
void smp__fold_trilu(smp__fold *f);
void smp__fold_where(smp__fold *f);
void smp__fold_binary(smp__fold *f);
void smp__fold_unary(smp__fold *f);
void smp__fold_reduce(smp__fold *f);
void smp__fold_cum_sum(smp__fold *f);
void smp__fold_matmul(smp__fold *f);

#endif
