/* SGD with momentum on a GPU: the arithmetic of exec/optimizer/sgd.c in one pass over weight,
 * gradient and buffer that also writes the weight's bf16 copy; the bits are those of the CPU, as in
 * adamw.cu. */
#include "exec/optimizer/cuda_update.cuh"

struct sgd_rule {
    static constexpr int STATES = 1;
    float scale; /* of the gradient */
    float keep;  /* 1 - lr * decay */
    float momentum, lr;

    __device__ __forceinline__ void operator()(float &weight, float grad, float *buffer) const
    {
        *buffer = __fmul_rn(*buffer, momentum) + __fmul_rn(grad, scale);
        weight = __fmul_rn(weight, keep) - __fmul_rn(lr, *buffer);
    }
};

smp_status smp__cuda_sgd(const smp_update *u, void *stream)
{
    const float keep = (float)(1.0 - (double)u->lr * u->weight_decay);
    return smp_update_launch(u, stream, "sgd",
                             sgd_rule{u->grad_scale, keep, u->options->momentum, u->lr});
}
