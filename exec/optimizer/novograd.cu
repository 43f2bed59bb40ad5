/* NovoGrad on a GPU: the arithmetic of exec/optimizer/novograd.c in one pass over weight, gradient
 * and mean that also writes the weight's copy in 16 bits; the bits are those of the CPU for the
 * same trust, as in adamw.cu. */
#include "exec/optimizer/cuda_update.cuh"
#include "exec/optimizer/update_factors.h"

struct novograd_rule {
    static constexpr int STATES = 1;
    smp__novograd_factors f;

    __device__ __forceinline__ void operator()(float &weight, float grad, float *mean) const
    {
        const float g = __fmul_rn(grad, f.scale) + __fmul_rn(weight, f.decay);
        const float m = __fmul_rn(*mean, f.b1) + g;
        *mean = m;
        weight = weight - __fmul_rn(f.rate, m);
    }
};

static smp_status update(const smp_update *u, void *stream)
{
    return smp_update_launch(u, stream, "novograd", [](const smp_update *of) {
        return novograd_rule{smp__novograd_factors_of(of)};
    });
}

const smp__cuda_optimizer smp__cuda_novograd = {.update = update};
