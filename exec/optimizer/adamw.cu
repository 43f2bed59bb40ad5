/* AdamW on a GPU: the arithmetic of exec/optimizer/adamw.c, whose header names the source, in one pass over
 * weight, gradient and state that also writes the weight's bf16 copy. Bound by memory: 28 bytes per
 * weight, 30 with the copy.
 *
 * Products are rounded by themselves (__fmul_rn is never fused into an addition), division and
 * square root are IEEE: the bits are those of the CPU, with or without 16-byte accesses. */
#include "exec/optimizer/adamw.h"
#include "exec/optimizer/cuda_update.cuh"

__device__ __forceinline__ void adamw_element(float &weight, float grad, float &mean, float &square,
                                              const smp__adamw_factors &f)
{
    const float g = __fmul_rn(grad, f.scale);
    const float m = __fmul_rn(mean, f.b1) + __fmul_rn(g, f.c1);
    const float v = __fmul_rn(square, f.b2) + __fmul_rn(__fmul_rn(g, g), f.c2);
    mean = m;
    square = v;
    weight =
        __fmul_rn(weight, f.keep) - __fmul_rn(f.step_size, m) / (sqrtf(v) / f.root + f.epsilon);
}

__global__ void __launch_bounds__(SMP_BLOCK)
    adamw_kernel(float *weight, const float *grad, float *mean, float *square, bf16 *weight16,
                 int64_t n, bool packed, smp__adamw_factors f) // each [n]; weight16 may be NULL
{
    const int64_t quads = packed ? n / 4 : 0;
    for (int64_t i = smp_thread(); i < quads; i += smp_threads()) {
        smp_pack<float> w = smp_load16(weight + 4 * i);
        const smp_pack<float> g = smp_load16(grad + 4 * i);
        smp_pack<float> m = smp_load16(mean + 4 * i);
        smp_pack<float> v = smp_load16(square + 4 * i);
        smp_pack<bf16, 4> w16;
        for (int k = 0; k < 4; k++) {
            adamw_element(w.v[k], g.v[k], m.v[k], v.v[k], f);
            w16.v[k] = smp_from<bf16>(w.v[k]);
        }
        smp_store(weight + 4 * i, w);
        smp_store(mean + 4 * i, m);
        smp_store(square + 4 * i, v);
        if (weight16)
            smp_store(weight16 + 4 * i, w16);
    }
    for (int64_t i = quads * 4 + smp_thread(); i < n; i += smp_threads()) {
        adamw_element(weight[i], grad[i], mean[i], square[i], f);
        if (weight16)
            weight16[i] = smp_from<bf16>(weight[i]);
    }
}

smp_status smp__cuda_adamw(const smp_update *u, void *stream)
{
    const smp__adamw_factors f = smp__adamw_factors_of(u);
    const bool packed = !(smp_misaligned(u->weight, 16) | smp_misaligned(u->grad, 16) |
                          smp_misaligned(u->state[0], 16) | smp_misaligned(u->state[1], 16) |
                          smp_misaligned(u->weight16, 8));
    if (u->elements <= 0)
        return SMP_OK;
    SMP_LAUNCH(adamw_kernel, smp_arena_grid(packed ? u->elements / 4 : u->elements), SMP_BLOCK, 0,
               static_cast<cudaStream_t>(stream), u->weight, u->grad, u->state[0], u->state[1],
               static_cast<bf16 *>(u->weight16), u->elements, packed, f);
    return smp__cuda_launched("adamw");
}
