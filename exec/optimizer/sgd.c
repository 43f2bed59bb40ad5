/* Stochastic gradient descent with momentum, as torch.optim.SGD computes it without dampening or
 * Nesterov's correction; the weight decay is decoupled (torch adds it to the gradient):
 *   w -= lr * decay * w;  b = momentum b + g;  w -= lr b
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

static void update(const smp_update *u)
{
    const float keep = (float)(1.0 - (double)u->lr * u->weight_decay);
    update_elements(u->weight, u->grad, u->state[0], u->elements, u->grad_scale, keep,
                    u->options->momentum, u->lr);
}

const smp_optimizer smp__optimizer_sgd = {
    .name = "sgd",
    .summary = "gradient descent with momentum and decoupled weight decay",
    .states = 1,
    .update = update,
#ifdef SMP_HAVE_CUDA
    .cuda_update = smp__cuda_sgd,
#endif
};
