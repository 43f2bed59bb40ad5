/* SGD with momentum on a GPU: the arithmetic of exec/optimizer/sgd.c in one pass over weight,
 * gradient and buffer that also writes the weight's copy in 16 bits; the bits are those of the CPU,
 * as in adamw.cu. */
#include "exec/optimizer/cuda_update.cuh"

struct sgd_rule {
    static constexpr int STATES = 1;
    float scale; /* of the gradient */
    float keep;  /* 1 - lr * decay */
    float momentum, lr;
    bool nesterov;

    __device__ __forceinline__ void operator()(float &weight, float grad, float *buffer) const
    {
        const float g = __fmul_rn(grad, scale);
        const float b = __fmul_rn(*buffer, momentum) + g;
        const float step = nesterov ? g + __fmul_rn(b, momentum) : b;
        *buffer = b;
        weight = __fmul_rn(weight, keep) - __fmul_rn(lr, step);
    }
};

static smp_status update(const smp_update *u, void *stream)
{
    return smp_update_launch(u, stream, "sgd", [](const smp_update *of) {
        const float keep = (float)(1.0 - (double)of->lr * of->settings->weight_decay);
        return sgd_rule{of->grad_scale, keep, of->settings->momentum, of->lr,
                        of->settings->nesterov};
    });
}

const smp__cuda_optimizer smp__cuda_sgd = {.update = update};
