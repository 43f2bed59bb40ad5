/* Lion on a GPU: the arithmetic of exec/optimizer/lion.c in one pass over weight, gradient and mean
 * that also writes the weight's copy in 16 bits; the bits are those of the CPU, as in adamw.cu. */
#include "exec/optimizer/cuda_update.cuh"
#include "exec/optimizer/update_factors.h"

struct lion_rule {
    static constexpr int STATES = 1;
    smp__lion_factors f;

    __device__ __forceinline__ void operator()(float &weight, float grad, float *mean) const
    {
        const float g = __fmul_rn(grad, f.scale);
        const float c = __fmul_rn(*mean, f.b1) + __fmul_rn(g, f.c1);
        const float sign = (float)(c > 0.0f) - (float)(c < 0.0f);
        weight = __fmul_rn(weight, f.keep) - __fmul_rn(f.lr, sign);
        *mean = __fmul_rn(*mean, f.b2) + __fmul_rn(g, f.c2);
    }
};

static smp_status update(const smp_update *u, void *stream)
{
    return smp_update_launch(u, stream, "lion", [](const smp_update *of) {
        return lion_rule{smp__lion_factors_of(of)};
    });
}

const smp__cuda_optimizer smp__cuda_lion = {.update = update};
