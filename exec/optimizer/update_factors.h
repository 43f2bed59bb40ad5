/* What the optimizers on the CPU and on a GPU share: the factors of a step, which are made once, in
 * double, on the host. */
#ifndef SMP_EXEC_OPTIMIZER_UPDATE_FACTORS_H
#define SMP_EXEC_OPTIMIZER_UPDATE_FACTORS_H

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

/* What the direction is multiplied by. */
static inline float smp__lamb_rate(const smp_update *u)
{
    return (float)((double)u->lr * u->trust);
}

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

typedef struct smp__novograd_factors {
    float scale; /* of the gradient, by its size */
    float decay, b1, rate;
} smp__novograd_factors;

static inline smp__novograd_factors smp__novograd_factors_of(const smp_update *u)
{
    smp__novograd_factors f;
    f.scale = (float)((double)u->grad_scale * u->trust);
    f.decay = u->settings->weight_decay;
    f.b1 = u->settings->beta1;
    f.rate = u->lr;
    return f;
}

#endif
