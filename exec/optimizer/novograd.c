/* NovoGrad (Ginsburg et al., "Stochastic Gradient Methods with Layer-wise Adaptive Moments for
 * Training of Deep Networks", 2019, algorithm 1): momentum of gradients that are divided by a
 * second moment of their norm, one for a whole weight.
 *   v = b2 v + (1 - b2) |g|^2, at first |g|^2
 *   m = b1 m + g / (sqrt(v) + epsilon) + decay * w;  w -= lr m
 * with the norm of the whole gradient, of weights of one dimension, too. As in NVIDIA's program of
 * it (OpenSeq2Seq, NeMo) v begins with the first gradient that is not zero. Its grad_averaging
 * multiplies what m adds by 1 - b1, which is the same as to multiply lr by that.
 *
 * State: m, 1 float per weight, and v, one number for all of it. The norms, then one pass over
 * three arrays: bound by memory. */
#include "exec/optimizer/update_factors.h"

#include <math.h>

#include "graph/math/vector.h"

SMP_VECTOR static void update_elements(float *restrict weight, const float *restrict grad,
                                       float *restrict mean, int64_t n, smp__novograd_factors f)
{
    for (int64_t i = 0; i < n; i++) {
        float m = mean[i] * f.b1 + (grad[i] * f.scale + weight[i] * f.decay);
        mean[i] = m;
        weight[i] = weight[i] - f.rate * m;
    }
}

static void update(const smp_update *u)
{
    update_elements(u->weight, u->grad, u->state[0], u->elements, smp__novograd_factors_of(u));
}

/* The direction is the gradient before clipping. */
static double keep_norm(const smp_update *u, double kept, double direction_norm)
{
    const double gradient = direction_norm * u->grad_scale, b2 = u->settings->beta2;
    return kept > 0.0 ? b2 * kept + (1.0 - b2) * gradient * gradient : gradient * gradient;
}

static double trust(const smp_update *u, double weight_norm, double direction_norm)
{
    (void)weight_norm;
    (void)direction_norm;
    return 1.0 / (sqrt(u->kept) + u->settings->epsilon);
}

const smp_optimizer smp__optimizer_novograd = {
    .name = "novograd",
    .summary = "momentum of gradients over their size, one second moment for each weight",
    .states = 1,
    .reads = {.beta1 = 1, .beta2 = 1, .epsilon = 1},
    .update = update,
    .trust = trust,
    .keep = keep_norm,
};
