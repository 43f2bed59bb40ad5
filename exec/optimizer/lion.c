/* Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", NeurIPS 2023, program 1):
 * every weight goes by the learning rate, up or down as a mean of past gradients and this one says.
 *   c = b1 m + (1 - b1) g;  w = w (1 - lr * decay) - lr sign(c);  m = b2 m + (1 - b2) g
 * The sign of 0 is 0. The authors take betas of 0.9 and 0.99, a learning rate a third to a tenth of
 * AdamW's and as many times its decay.
 *
 * State: m, 1 float per weight. One pass over three arrays: bound by memory. */
#include "exec/optimizer/update_factors.h"

#include "graph/math/vector.h"

SMP_VECTOR static void update_elements(float *restrict weight, const float *restrict grad,
                                       float *restrict mean, int64_t n, smp__lion_factors f)
{
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * f.scale;
        float c = mean[i] * f.b1 + g * f.c1;
        float sign = (float)(c > 0.0f) - (float)(c < 0.0f);
        weight[i] = weight[i] * f.keep - f.lr * sign;
        mean[i] = mean[i] * f.b2 + g * f.c2;
    }
}

static void update(const smp_update *u)
{
    update_elements(u->weight, u->grad, u->state[0], u->elements, smp__lion_factors_of(u));
}

const smp_optimizer smp__optimizer_lion = {
    .name = "lion",
    .summary = "the sign of a mean of gradients, decoupled weight decay",
    .states = 1,
    .reads = {.beta1 = 1, .beta2 = 1},
    .update = update,
};
