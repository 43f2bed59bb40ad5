/* What LAMB on the CPU and on a GPU share: the factors of a step. */
#ifndef SMP_EXEC_OPTIMIZER_LAMB_H
#define SMP_EXEC_OPTIMIZER_LAMB_H

#include "exec/optimizer/adamw.h"

typedef struct smp__lamb_factors {
    smp__adamw_factors adam; /* all but `keep` and `step_size` */
    float mean;              /* 1 / (1 - beta1^t) */
    float decay;
} smp__lamb_factors;

static inline smp__lamb_factors smp__lamb_factors_of(const smp_update *u)
{
    smp__lamb_factors f;
    f.adam = smp__adamw_factors_of(u);
    f.mean = (float)(1.0 / (1.0 - pow(u->settings->beta1, (double)u->step)));
    f.decay = u->settings->weight_decay;
    return f;
}

#ifdef __cplusplus
extern "C" {
#endif
smp_status smp__cuda_lamb_measure(const smp_update *u, void *stream);
#ifdef __cplusplus
}
#endif

/* What the direction is multiplied by. */
static inline float smp__lamb_rate(const smp_update *u)
{
    return (float)((double)u->lr * u->trust);
}

#endif
