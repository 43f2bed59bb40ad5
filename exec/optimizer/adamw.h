/* What AdamW on the CPU and on a GPU share: the factors of a step. */
#ifndef SMP_EXEC_OPTIMIZER_ADAMW_H
#define SMP_EXEC_OPTIMIZER_ADAMW_H

#include <math.h>

#include "exec/optimizer/optimizer.h"

/* The same for all elements of a step. */
typedef struct smp__adamw_factors {
    float scale;  /* of the gradient */
    float keep;   /* 1 - lr * decay */
    float b1, c1; /* beta1, 1 - beta1 */
    float b2, c2;
    float step_size; /* lr / (1 - beta1^t) */
    float root;      /* sqrt(1 - beta2^t) */
    float epsilon;
} smp__adamw_factors;

/* On the host, in double: 1 - beta^t must go to 1 at large t. */
static inline smp__adamw_factors smp__adamw_factors_of(const smp_update *u)
{
    const double beta1 = u->settings->beta1;
    const double beta2 = u->settings->beta2;
    const double step = (double)u->step;
    smp__adamw_factors f;
    f.scale = u->grad_scale;
    f.keep = (float)(1.0 - (double)u->lr * u->settings->weight_decay);
    f.b1 = u->settings->beta1;
    f.c1 = (float)(1.0 - beta1);
    f.b2 = u->settings->beta2;
    f.c2 = (float)(1.0 - beta2);
    f.step_size = (float)(u->lr / (1.0 - pow(beta1, step)));
    f.root = (float)sqrt(1.0 - pow(beta2, step));
    f.epsilon = u->settings->epsilon;
    return f;
}

#endif
