/* What LARS on the CPU and on a GPU share: the factors of a step. */
#ifndef SMP_EXEC_OPTIMIZER_LARS_H
#define SMP_EXEC_OPTIMIZER_LARS_H

#include "exec/optimizer/optimizer.h"

typedef struct smp__lars_factors {
    float scale; /* of the gradient */
    float decay, momentum;
    float rate; /* lr * trust */
} smp__lars_factors;

static inline smp__lars_factors smp__lars_factors_of(const smp_update *u)
{
    smp__lars_factors f;
    f.scale = u->grad_scale;
    f.decay = u->settings->weight_decay;
    f.momentum = u->settings->momentum;
    f.rate = (float)((double)u->lr * u->trust);
    return f;
}

#endif
