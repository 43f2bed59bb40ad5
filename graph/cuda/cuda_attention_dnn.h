/* Attention by cuDNN's fused kernels, for bf16 and fp16, forward and backward. What forward saves
 * is what our kernels save, so either may be followed by the other. Backward adds to dQ in one
 * order only with a workspace of the T x T matrix (cuDNN 9.19), which the caller has planned
 * (graph/ops/attention/attention_choice.h). */
#ifndef SMP_GRAPH_CUDA_CUDA_ATTENTION_DNN_H
#define SMP_GRAPH_CUDA_CUDA_ATTENTION_DNN_H

#include "graph/math/attention.h"
#include "graph/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct smp__dnn_attention smp__dnn_attention;

/* q, k, v: (B, T, heads, width) with strides as in smp__attention, 16-byte aligned;
 * out: (B, Tq, d); lse: (B, heads, Tq). */
typedef struct smp__dnn_attention_data {
    const void *q, *k, *v;
    void *out;
    float *lse;
} smp__dnn_attention_data;

/* dout as out; dq, dk, dv as q, k, v: all are written. */
typedef struct smp__dnn_attention_gradients {
    const void *dout;
    void *dq, *dk, *dv;
    void *workspace; /* 256-byte aligned */
} smp__dnn_attention_gradients;

/* Is this a computation that cuDNN is asked for? The same on all ranks with one kind of card. */
bool smp__dnn_attention_suits(const smp_cuda *cuda, const smp__attention *at, int64_t batch);

/* Makes what suits. NULL if cuDNN is not here, or has no deterministic plan that fits the
 * workspace: forward the libraries', backward so many bytes. Half a second to a second of
 * compiling. */
smp__dnn_attention *smp__dnn_attention_create(const smp_cuda *cuda, const smp__attention *at,
                                              int64_t batch);
smp__dnn_attention *smp__dnn_attention_create_backward(const smp_cuda *cuda,
                                                       const smp__attention *at, int64_t batch,
                                                       int64_t workspace_bytes);
void smp__dnn_attention_destroy(smp__dnn_attention *plan);            /* accepts NULL */
int64_t smp__dnn_attention_workspace(const smp__dnn_attention *plan); /* bytes that it needs */
smp_status smp__dnn_attention_forward(const smp__dnn_attention *plan, const smp_cuda *cuda,
                                      const smp__dnn_attention_data *data);
/* `data`: what forward read and made. */
smp_status smp__dnn_attention_backward(const smp__dnn_attention *plan, const smp_cuda *cuda,
                                       const smp__dnn_attention_data *data,
                                       const smp__dnn_attention_gradients *to);

#ifdef __cplusplus
}
#endif

#endif
