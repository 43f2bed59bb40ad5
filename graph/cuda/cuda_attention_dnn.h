/* Attention forward by cuDNN's fused kernels, for bf16 and fp16. What it saves is what our kernels
 * save, so the backward pass is ours: cuDNN's adds to dQ in the order in which its blocks run,
 * unless it is given a workspace of the T x T matrix (cuDNN 9.19). */
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

/* Is this a computation that cuDNN is asked for? The same on all ranks with one kind of card. */
bool smp__dnn_attention_suits(const smp_cuda *cuda, const smp__attention *at, int64_t batch);
/* Its name among choices: all that the plan and its bits depend on. */
void smp__dnn_attention_about(char about[SMP__CHOICE_ABOUT], const smp_cuda *cuda,
                              const smp__attention *at, int64_t batch);

/* Makes what suits. NULL if cuDNN is not here, or has no deterministic plan that fits the
 * workspace. Half a second to a second of compiling. */
smp__dnn_attention *smp__dnn_attention_create(const smp_cuda *cuda, const smp__attention *at,
                                              int64_t batch);
void smp__dnn_attention_destroy(smp__dnn_attention *plan); /* accepts NULL */
smp_status smp__dnn_attention_forward(const smp__dnn_attention *plan, const smp_cuda *cuda,
                                      const smp__dnn_attention_data *data);

#ifdef __cplusplus
}
#endif

#endif
