/* AdamW: Adam with decoupled weight decay (Loshchilov and Hutter, "Decoupled Weight Decay
 * Regularization", ICLR 2019), the form and order of operations of torch.optim.AdamW:
 *   w -= lr * decay * w;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
 *   w -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + epsilon)
 * The factors of a step are made in double, once; the loop is IEEE single precision without fused
 * operations, so each element's bits depend on that element alone, not on where its array begins.
 *
 * State: m and v, 2 floats per weight. One pass over five arrays: bound by memory. */
#include "exec/optimizer/optimizer.h"

#include <math.h>

#include "graph/math/vector.h"

/* What is the same for all elements of a step. */
typedef struct factors {
    float scale;  /* of the gradient */
    float keep;   /* 1 - lr * decay */
    float b1, c1; /* beta1, 1 - beta1 */
    float b2, c2;
    float step_size; /* lr / (1 - beta1^t) */
    float root;      /* sqrt(1 - beta2^t) */
    float epsilon;
} factors;

SMP_VECTOR static void update_elements(float *restrict weight, const float *restrict grad,
                                       float *restrict mean, float *restrict square, int64_t n,
                                       factors f)
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
    const smp_options *options = u->options;
    const double beta1 = options->beta1;
    const double beta2 = options->beta2;
    const double step = (double)u->step;
    const factors f = {
        .scale = u->grad_scale,
        .keep = (float)(1.0 - (double)u->lr * u->weight_decay),
        .b1 = options->beta1,
        .c1 = (float)(1.0 - beta1),
        .b2 = options->beta2,
        .c2 = (float)(1.0 - beta2),
        .step_size = (float)(u->lr / (1.0 - pow(beta1, step))),
        .root = (float)sqrt(1.0 - pow(beta2, step)),
        .epsilon = options->epsilon,
    };
    update_elements(u->weight, u->grad, u->state[0], u->state[1], u->elements, f);
}

const smp_optimizer smp__optimizer_adamw = {
    .name = "adamw",
    .states = 2,
    .update = update,
#ifdef SMP_HAVE_CUDA
    .cuda_update = smp__cuda_adamw,
#endif
};
