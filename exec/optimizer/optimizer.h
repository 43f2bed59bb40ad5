/* The optimizer interface: one static smp_optimizer per file, listed in exec/optimizer/optimizer.c. Updates
 * are element-wise, so they do not depend on how weights are spread over ranks. */
#ifndef SMP_EXEC_OPTIMIZER_OPTIMIZER_H
#define SMP_EXEC_OPTIMIZER_OPTIMIZER_H

#include "smp.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct smp_update {
    float *weight;     /* [elements], updated */
    const float *grad; /* [elements] */
    float *state[2];   /* [elements] each, updated; zero before the first step */
    void *weight16;    /* [elements] bf16 copy of the weight, written; NULL: none */
    int64_t elements;
    float grad_scale; /* clipping: multiply the gradient */
    float lr;
    float weight_decay; /* 0 where it does not apply */
    int64_t step;       /* from 1 */
    const smp_options *options;
} smp_update;

typedef struct smp_optimizer {
    const char *name;
    int states;                               /* arrays of one float per weight: 0..2 */
    void (*update)(const smp_update *update); /* on the CPU */
    /* On a GPU, enqueued on a cudaStream_t; NULL: not built in. */
    smp_status (*cuda_update)(const smp_update *update, void *stream);
} smp_optimizer;

/* cuda_update of the optimizers, in their .cu files. */
smp_status smp__cuda_adamw(const smp_update *update, void *stream);
smp_status smp__cuda_sgd(const smp_update *update, void *stream);

const smp_optimizer *smp_optimizer_find(const char *name); /* NULL if unknown */
const smp_optimizer *const *smp_optimizers(void);          /* NULL-terminated */

/* Linear warm-up to options->lr over warmup_steps, then cosine to min_lr at decay_steps. */
float smp_learning_rate(const smp_options *options, int64_t step);

#ifdef __cplusplus
}
#endif

#endif
