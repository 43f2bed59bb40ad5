/* SGD with momentum on a GPU: the arithmetic of exec/optimizer/sgd.c in one pass over weight,
 * gradient and buffer that also writes the weight's copy in 16 bits; the bits are those of the CPU,
 * as in adamw.cu. */
#include "exec/optimizer/cuda_update.cuh"

template <bool NESTEROV> struct sgd_rule {
    static constexpr int STATES = 1;
    float scale; /* of the gradient */
    float keep;  /* 1 - lr * decay */
    float momentum, lr;

    __device__ __forceinline__ void operator()(float &weight, float grad, float *buffer) const
    {
        const float g = __fmul_rn(grad, scale);
        const float b = __fmul_rn(*buffer, momentum) + g;
        const float step = NESTEROV ? g + __fmul_rn(b, momentum) : b;
        *buffer = b;
        weight = __fmul_rn(weight, keep) - __fmul_rn(lr, step);
    }
};

smp_status smp__cuda_sgd(const smp_update *u, void *stream)
{
    const float keep = (float)(1.0 - (double)u->lr * u->settings->weight_decay);
    const float momentum = u->settings->momentum;
    if (u->settings->nesterov)
        return smp_update_launch(u, stream, "sgd",
                                 sgd_rule<true>{u->grad_scale, keep, momentum, u->lr});
    return smp_update_launch(u, stream, "sgd",
                             sgd_rule<false>{u->grad_scale, keep, momentum, u->lr});
}
