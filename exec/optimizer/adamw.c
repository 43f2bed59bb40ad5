/* AdamW: Adam with decoupled weight decay (Loshchilov and Hutter, "Decoupled Weight Decay
 * Regularization", ICLR 2019), the form and order of operations of torch.optim.AdamW:
 *   w -= lr * decay * w;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
 *   w -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + epsilon)
 * The factors of a step are made in double, once; the loop is IEEE single precision without fused
 * operations, so each element's bits depend on that element alone, not on where its array begins.
 *
 * State: m and v, 2 floats per weight. One pass over five arrays: bound by memory. */
#include "exec/optimizer/update_factors.h"

#include "graph/math/vector.h"

SMP_VECTOR static void update_elements(float *restrict weight, const float *restrict grad,
                                       float *restrict mean, float *restrict square, int64_t n,
                                       smp__adamw_factors f)
{
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * f.scale;
        float m = mean[i] * f.b1 + g * f.c1;
        float v = square[i] * f.b2 + g * g * f.c2;
        mean[i] = m;
        square[i] = v;
        weight[i] = weight[i] * f.keep - f.step_size * m / (sqrtf(v) / f.root + f.epsilon);
    }
}

static void update(const smp_update *u)
{
    update_elements(u->weight, u->grad, u->state[0], u->state[1], u->elements,
                    smp__adamw_factors_of(u));
}

const smp_optimizer smp__optimizer_adamw = {
    .name = "adamw",
    .summary = "Adam with decoupled weight decay",
    .states = 2,
    .reads = {.beta1 = 1, .beta2 = 1, .epsilon = 1},
    .update = update,
};
