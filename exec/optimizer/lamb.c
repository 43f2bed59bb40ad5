/* LAMB (You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", ICLR
 * 2020, algorithm 2, with phi the identity): Adam's direction, as long as the weight is.
 *   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
 *   r = m / (1 - b1^t) / (sqrt(v) / sqrt(1 - b2^t) + epsilon) + decay * w
 *   w -= lr |w| / |r| r
 * with the norms of the whole weight. The ratio is 1 where one of them is 0, and for weights of one
 * dimension (biases, norms), as in the authors' programs.
 *
 * State: m and v, 2 floats per weight. Two passes: `measure` makes m, v, and r in the place of the
 * gradient; when all norms are known, `update`. Both are bound by memory. */
#include "exec/optimizer/update_factors.h"

#include "graph/math/vector.h"

/* `grad` and `direction` may be the same array. */
SMP_VECTOR static void measure_elements(const float *restrict weight, const float *grad,
                                        float *direction, float *restrict mean,
                                        float *restrict square, int64_t n, smp__lamb_factors f)
{
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * f.adam.scale;
        float m = mean[i] * f.adam.b1 + g * f.adam.c1;
        float v = square[i] * f.adam.b2 + g * g * f.adam.c2;
        mean[i] = m;
        square[i] = v;
        direction[i] = f.mean * m / (sqrtf(v) / f.adam.root + f.adam.epsilon) + weight[i] * f.decay;
    }
}

static void measure(const smp_update *u)
{
    measure_elements(u->weight, u->grad, u->direction, u->state[0], u->state[1], u->elements,
                     smp__lamb_factors_of(u));
}

SMP_VECTOR static void update_elements(float *restrict weight, const float *restrict direction,
                                       int64_t n, float rate)
{
    for (int64_t i = 0; i < n; i++)
        weight[i] = weight[i] - rate * direction[i];
}

static void update(const smp_update *u)
{
    update_elements(u->weight, u->grad, u->elements, smp__lamb_rate(u));
}

static double trust(const smp_update *u, double weight_norm, double direction_norm)
{
    (void)u;
    return weight_norm / direction_norm;
}

const smp_optimizer smp__optimizer_lamb = {
    .name = "lamb",
    .summary = "Adam with steps as long as the weight is, for large batches",
    .states = 2,
    .reads = {.beta1 = 1, .beta2 = 1, .epsilon = 1},
    .update = update,
    .trust = trust,
    .measure = measure,
};
