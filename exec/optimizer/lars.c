/* LARS (You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks", 2017,
 * algorithm 1): gradient descent with momentum, whose rate for a weight goes by the weight's size.
 *   trust = eta |w| / (|g| + decay |w|)
 *   b = momentum b + lr trust (g + decay * w);  w -= b
 * with the norms of the whole weight, and eta the trust coefficient. The trust is 1 where a norm is
 * 0, and for weights of one dimension (biases, norms). The rate stands inside of b, as in the
 * paper: when it changes, past gradients keep theirs.
 *
 * State: b, 1 float per weight. The norms, then one pass over three arrays: bound by memory. */
#include "exec/optimizer/update_factors.h"

#include "graph/math/vector.h"

SMP_VECTOR static void update_elements(float *restrict weight, const float *restrict grad,
                                       float *restrict buffer, int64_t n, smp__lars_factors f)
{
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * f.scale + weight[i] * f.decay;
        float b = buffer[i] * f.momentum + f.rate * g;
        buffer[i] = b;
        weight[i] = weight[i] - b;
    }
}

static void update(const smp_update *u)
{
    update_elements(u->weight, u->grad, u->state[0], u->elements, smp__lars_factors_of(u));
}

/* The direction is the gradient before clipping. */
static double trust(const smp_update *u, double weight_norm, double direction_norm)
{
    const double gradient = direction_norm * u->grad_scale;
    return u->settings->trust_coefficient * weight_norm /
           (gradient + u->settings->weight_decay * weight_norm);
}

const smp_optimizer smp__optimizer_lars = {
    .name = "lars",
    .summary = "momentum with steps in proportion to the weight, for large batches",
    .states = 1,
    .reads = {.momentum = 1, .trust_coefficient = 1},
    .update = update,
    .trust = trust,
};
