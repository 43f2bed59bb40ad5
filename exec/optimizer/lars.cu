/* LARS on a GPU: the arithmetic of exec/optimizer/lars.c in one pass over weight, gradient and
 * buffer that also writes the weight's copy in 16 bits; the bits are those of the CPU for the same
 * trust, as in adamw.cu. */
#include "exec/optimizer/cuda_update.cuh"
#include "exec/optimizer/update_factors.h"

struct lars_rule {
    static constexpr int STATES = 1;
    smp__lars_factors f;

    __device__ __forceinline__ void operator()(float &weight, float grad, float *buffer) const
    {
        const float g = __fmul_rn(grad, f.scale) + __fmul_rn(weight, f.decay);
        const float b = __fmul_rn(*buffer, f.momentum) + __fmul_rn(f.rate, g);
        *buffer = b;
        weight = weight - b;
    }
};

static smp_status update(const smp_update *u, void *stream)
{
    return smp_update_launch(u, stream, "lars", [](const smp_update *of) {
        return lars_rule{smp__lars_factors_of(of)};
    });
}

const smp__cuda_optimizer smp__cuda_lars = {.update = update};
