/* AdamW on a GPU: the arithmetic of exec/optimizer/adamw.c, whose header names the source, in one
 * pass over weight, gradient and state that also writes the weight's copy in 16 bits. Bound by
 * memory: 28 bytes per weight, 30 with the copy.
 *
 * Products are rounded by themselves (__fmul_rn is never fused into an addition), division and
 * square root are IEEE: the bits are those of the CPU, with or without 16-byte accesses. */
#include "exec/optimizer/update_factors.h"
#include "exec/optimizer/cuda_update.cuh"

struct adamw_rule {
    static constexpr int STATES = 2;
    smp__adamw_factors f;

    __device__ __forceinline__ void operator()(float &weight, float grad, float *state) const
    {
        const float g = __fmul_rn(grad, f.scale);
        const float m = __fmul_rn(state[0], f.b1) + __fmul_rn(g, f.c1);
        const float v = __fmul_rn(state[1], f.b2) + __fmul_rn(__fmul_rn(g, g), f.c2);
        state[0] = m;
        state[1] = v;
        weight =
            __fmul_rn(weight, f.keep) - __fmul_rn(f.step_size, m) / (sqrtf(v) / f.root + f.epsilon);
    }
};

static smp_status update(const smp_update *u, void *stream)
{
    return smp_update_launch(u, stream, "adamw", [](const smp_update *of) {
        return adamw_rule{smp__adamw_factors_of(of)};
    });
}

const smp__cuda_optimizer smp__cuda_adamw = {.update = update};
