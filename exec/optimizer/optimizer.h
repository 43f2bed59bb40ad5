/* The optimizers: one smp_optimizer per file, listed in SMP_OPTIMIZERS. Updates are element-wise,
 * so they do not depend on how weights are spread over ranks. */
#ifndef SMP_EXEC_OPTIMIZER_OPTIMIZER_H
#define SMP_EXEC_OPTIMIZER_OPTIMIZER_H

#include "graph/base/text.h"
#include "smp.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SMP_MAX_OPTIMIZER_STATES = 2 }; /* as many as the planner reserves memory for */

typedef struct smp_update {
    float *weight;     /* [elements], updated */
    const float *grad; /* [elements] */
    /* [elements] each, updated; zero before the first step */
    float *state[SMP_MAX_OPTIMIZER_STATES];
    void *weight16; /* [elements] bf16 copy of the weight, written; NULL: none */
    int64_t elements;
    float grad_scale; /* clipping: multiply the gradient */
    float lr;
    float weight_decay; /* 0 where it does not apply */
    int64_t step;       /* from 1 */
    const smp_options *options;
} smp_update;

typedef struct smp_optimizer {
    const char *name;
    const char *summary;                      /* a line of smp-run --help */
    int states;                               /* arrays of one float per weight */
    void (*update)(const smp_update *update); /* on the CPU */
    /* On a GPU, enqueued on a cudaStream_t; NULL: not built in. */
    smp_status (*cuda_update)(const smp_update *update, void *stream);
} smp_optimizer;

/* All optimizers, the default first. <name>.c defines smp__optimizer_<name>; its cuda_update, if it
 * has one, is smp__cuda_<name>, defined by <name>.cu. */
#define SMP_OPTIMIZERS(X)                                                                          \
    X(adamw)                                                                                       \
    X(sgd)

#define SMP__OPTIMIZER_DECLARE(name)                                                               \
    extern const smp_optimizer smp__optimizer_##name;                                              \
    smp_status smp__cuda_##name(const smp_update *update, void *stream);
SMP_OPTIMIZERS(SMP__OPTIMIZER_DECLARE)
#undef SMP__OPTIMIZER_DECLARE

const smp_optimizer *smp_optimizer_find(const char *name); /* NULL if unknown */
const smp_optimizer *const *smp_optimizers(void);          /* NULL-terminated */
void smp_optimizer_list(smp_text *text);                   /* appends "adamw or sgd" */

/* Linear warm-up to options->lr over warmup_steps, then cosine to min_lr at decay_steps. */
float smp_learning_rate(const smp_options *options, int64_t step);

#ifdef __cplusplus
}
#endif

#endif
