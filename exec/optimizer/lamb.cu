/* LAMB on a GPU: the arithmetic of exec/optimizer/lamb.c. The measurement is a pass over weight,
 * gradient and state that leaves the direction where the gradient was; the update one over weight
 * and direction that also writes the weight's copy in 16 bits. The bits are those of the CPU for
 * the same trust, as in adamw.cu. */
#include "exec/optimizer/cuda_update.cuh"
#include "exec/optimizer/update_factors.h"

struct lamb_measure_rule {
    static constexpr int STATES = 2;
    smp__lamb_factors f;

    /* What it makes of the weight is the direction. */
    __device__ __forceinline__ void operator()(float &weight, float grad, float *state) const
    {
        const float g = __fmul_rn(grad, f.adam.scale);
        const float m = __fmul_rn(state[0], f.adam.b1) + __fmul_rn(g, f.adam.c1);
        const float v = __fmul_rn(state[1], f.adam.b2) + __fmul_rn(__fmul_rn(g, g), f.adam.c2);
        state[0] = m;
        state[1] = v;
        weight = __fmul_rn(f.mean, m) / (sqrtf(v) / f.adam.root + f.adam.epsilon) +
                 __fmul_rn(weight, f.decay);
    }
};

struct lamb_update_rule {
    static constexpr int STATES = 0;
    float rate;

    __device__ __forceinline__ void operator()(float &weight, float direction, float *) const
    {
        weight = weight - __fmul_rn(rate, direction);
    }
};

static smp_status measure(const smp_update *u, void *stream)
{
    return smp_update_launch(u, stream, "lamb", [](const smp_update *of) {
        return lamb_measure_rule{smp__lamb_factors_of(of)};
    });
}

static smp_status update(const smp_update *u, void *stream)
{
    return smp_update_launch(u, stream, "lamb", [](const smp_update *of) {
        return lamb_update_rule{smp__lamb_rate(of)};
    });
}

const smp__cuda_optimizer smp__cuda_lamb = {.update = update, .measure = measure};
