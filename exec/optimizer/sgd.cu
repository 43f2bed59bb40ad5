/* SGD with momentum on a GPU: the arithmetic of exec/optimizer/sgd.c in one pass over weight, gradient and
 * buffer that also writes the weight's bf16 copy; the bits are those of the CPU, as in adamw.cu. */
#include "exec/optimizer/cuda_update.cuh"

struct sgd_factors {
    float scale; /* of the gradient */
    float keep;  /* 1 - lr * decay */
    float momentum, lr;
};

__device__ __forceinline__ void sgd_element(float &weight, float grad, float &buffer,
                                            const sgd_factors &f)
{
    buffer = __fmul_rn(buffer, f.momentum) + __fmul_rn(grad, f.scale);
    weight = __fmul_rn(weight, f.keep) - __fmul_rn(f.lr, buffer);
}

__global__ void __launch_bounds__(SMP_BLOCK)
    sgd_kernel(float *weight, const float *grad, float *buffer, bf16 *weight16, int64_t n,
               bool packed, sgd_factors f) // each [n]; weight16 may be NULL
{
    const int64_t quads = packed ? n / 4 : 0;
    for (int64_t i = smp_thread(); i < quads; i += smp_threads()) {
        smp_pack<float> w = smp_load16(weight + 4 * i);
        const smp_pack<float> g = smp_load16(grad + 4 * i);
        smp_pack<float> b = smp_load16(buffer + 4 * i);
        smp_pack<bf16, 4> w16;
        for (int k = 0; k < 4; k++) {
            sgd_element(w.v[k], g.v[k], b.v[k], f);
            w16.v[k] = smp_from<bf16>(w.v[k]);
        }
        smp_store(weight + 4 * i, w);
        smp_store(buffer + 4 * i, b);
        if (weight16)
            smp_store(weight16 + 4 * i, w16);
    }
    for (int64_t i = quads * 4 + smp_thread(); i < n; i += smp_threads()) {
        sgd_element(weight[i], grad[i], buffer[i], f);
        if (weight16)
            weight16[i] = smp_from<bf16>(weight[i]);
    }
}

smp_status smp__cuda_sgd(const smp_update *u, void *stream)
{
    sgd_factors f;
    f.scale = u->grad_scale;
    f.keep = (float)(1.0 - (double)u->lr * u->weight_decay);
    f.momentum = u->options->momentum;
    f.lr = u->lr;
    const bool packed = !(smp_misaligned(u->weight, 16) | smp_misaligned(u->grad, 16) |
                          smp_misaligned(u->state[0], 16) | smp_misaligned(u->weight16, 8));
    if (u->elements <= 0)
        return SMP_OK;
    SMP_LAUNCH(sgd_kernel, smp_arena_grid(packed ? u->elements / 4 : u->elements), SMP_BLOCK, 0,
               static_cast<cudaStream_t>(stream), u->weight, u->grad, u->state[0],
               static_cast<bf16 *>(u->weight16), u->elements, packed, f);
    return smp__cuda_launched("sgd");
}
