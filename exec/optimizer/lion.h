/* What Lion on the CPU and on a GPU share: the factors of a step. */
#ifndef SMP_EXEC_OPTIMIZER_LION_H
#define SMP_EXEC_OPTIMIZER_LION_H

#include "exec/optimizer/optimizer.h"

typedef struct smp__lion_factors {
    float scale;  /* of the gradient */
    float keep;   /* 1 - lr * decay */
    float b1, c1; /* beta1, 1 - beta1 */
    float b2, c2;
    float lr;
} smp__lion_factors;

static inline smp__lion_factors smp__lion_factors_of(const smp_update *u)
{
    const smp_update_settings *set = u->settings;
    smp__lion_factors f;
    f.scale = u->grad_scale;
    f.keep = (float)(1.0 - (double)u->lr * set->weight_decay);
    f.b1 = set->beta1;
    f.c1 = (float)(1.0 - (double)set->beta1);
    f.b2 = set->beta2;
    f.c2 = (float)(1.0 - (double)set->beta2);
    f.lr = u->lr;
    return f;
}

#endif
