/* Stochastic gradient descent with momentum, as torch.optim.SGD computes it without dampening; the
 * weight decay is decoupled (torch adds it to the gradient):
 *   w -= lr * decay * w;  b = momentum b + g;  w -= lr b
 * With Nesterov's momentum (Sutskever et al., "On the importance of initialization and momentum in
 * deep learning", ICML 2013, in torch's form) the last is w -= lr (g + momentum b).
 * The buffer starts at zero, so the first step uses the gradient itself.
 *
 * State: b, 1 float per weight. One pass over three arrays: bound by memory. */
#include "exec/optimizer/optimizer.h"

#include "graph/math/vector.h"

SMP_VECTOR static void update_elements(float *restrict weight, const float *restrict grad,
                                       float *restrict buffer, int64_t n, float scale, float keep,
                                       float momentum, float lr)
{
    for (int64_t i = 0; i < n; i++) {
        float b = buffer[i] * momentum + grad[i] * scale;
        buffer[i] = b;
        weight[i] = weight[i] * keep - lr * b;
    }
}

SMP_VECTOR static void update_ahead(float *restrict weight, const float *restrict grad,
                                    float *restrict buffer, int64_t n, float scale, float keep,
                                    float momentum, float lr)
{
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * scale;
        float b = buffer[i] * momentum + g;
        buffer[i] = b;
        weight[i] = weight[i] * keep - lr * (g + b * momentum);
    }
}

static void update(const smp_update *u)
{
    const smp_update_settings *set = u->settings;
    const float keep = (float)(1.0 - (double)u->lr * set->weight_decay);
    (set->nesterov ? update_ahead : update_elements)(u->weight, u->grad, u->state[0], u->elements,
                                                     u->grad_scale, keep, set->momentum, u->lr);
}

const smp_optimizer smp__optimizer_sgd = {
    .name = "sgd",
    .summary = "gradient descent with momentum and decoupled weight decay",
    .states = 1,
    .reads = {.momentum = 1, .nesterov = true},
    .update = update,
};
