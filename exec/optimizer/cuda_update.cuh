/* What the element-wise kernels over a rank's arena share: 16-byte accesses where the addresses
 * allow them, and a grid that depends on the number of elements alone; and the one pass of every
 * optimizer, and its measurement. */
#ifndef SMP_EXEC_OPTIMIZER_CUDA_UPDATE_CUH
#define SMP_EXEC_OPTIMIZER_CUDA_UPDATE_CUH

#include "exec/optimizer/optimizer.h"
#include "graph/cuda/cuda_kernel.cuh"

/* 0 for NULL too: an array that is not there allows everything. */
static inline uintptr_t smp_misaligned(const void *p, uintptr_t bytes)
{
    return reinterpret_cast<uintptr_t>(p) % bytes;
}

/* Blocks for `items` items of a thread: up to several times what fits on any device. */
static inline unsigned smp_arena_grid(int64_t items)
{
    return smp_blocks(items, SMP_BLOCK, 1 << 14);
}

/* One pass over weight, gradient and states, [n] each, that also writes the weight's copy in 16
 * bits (T), which may be NULL. A rule has STATES, and is called with one element of each:
 * rule(weight, gradient, state[STATES]). What it makes of the weight goes to `out`: the weight, or
 * a direction that may take the place of the gradient. */
template <typename T, class Rule>
__global__ void __launch_bounds__(SMP_BLOCK)
    smp_update_kernel(const float *weight, const float *grad, float *state0, float *state1,
                      float *out, T *weight16, int64_t n, bool packed, Rule rule)
{
    constexpr int ROOM = Rule::STATES > 0 ? Rule::STATES : 1;
    float *const state[2] = {state0, state1};
    const int64_t quads = packed ? n / 4 : 0;
    for (int64_t i = smp_thread(); i < quads; i += smp_threads()) {
        smp_pack<float> w = smp_load16(weight + 4 * i), s[ROOM];
        const smp_pack<float> g = smp_load16(grad + 4 * i);
        smp_pack<T, 4> w16;
        for (int j = 0; j < Rule::STATES; j++)
            s[j] = smp_load16(state[j] + 4 * i);
        for (int k = 0; k < 4; k++) {
            float element[ROOM];
            for (int j = 0; j < Rule::STATES; j++)
                element[j] = s[j].v[k];
            rule(w.v[k], g.v[k], element);
            for (int j = 0; j < Rule::STATES; j++)
                s[j].v[k] = element[j];
            w16.v[k] = smp_from<T>(w.v[k]);
        }
        smp_store(out + 4 * i, w);
        for (int j = 0; j < Rule::STATES; j++)
            smp_store(state[j] + 4 * i, s[j]);
        if (weight16)
            smp_store(weight16 + 4 * i, w16);
    }
    for (int64_t i = quads * 4 + smp_thread(); i < n; i += smp_threads()) {
        float element[ROOM];
        for (int j = 0; j < Rule::STATES; j++)
            element[j] = state[j][i];
        float w = weight[i];
        rule(w, grad[i], element);
        for (int j = 0; j < Rule::STATES; j++)
            state[j][i] = element[j];
        out[i] = w;
        if (weight16)
            weight16[i] = smp_from<T>(w);
    }
}

template <typename T, class Rule>
static smp_status smp_update_launch_as(const smp_update *u, void *stream, const char *name,
                                       Rule rule)
{
    float *out = u->direction ? u->direction : u->weight;
    T *copy = u->direction ? NULL : static_cast<T *>(u->weight16);
    bool packed = !(smp_misaligned(u->weight, 16) | smp_misaligned(u->grad, 16) |
                    smp_misaligned(out, 16) | smp_misaligned(copy, 8));
    for (int j = 0; j < Rule::STATES; j++)
        packed = packed && !smp_misaligned(u->state[j], 16);
    if (u->elements <= 0)
        return SMP_OK;
    const auto kernel = smp_update_kernel<T, Rule>;
    SMP_LAUNCH(kernel, smp_arena_grid(packed ? u->elements / 4 : u->elements), SMP_BLOCK, 0,
               static_cast<cudaStream_t>(stream), u->weight, u->grad, u->state[0], u->state[1], out,
               copy, u->elements, packed, rule);
    return smp__cuda_launched(name);
}

template <class Rule>
static smp_status smp_update_launch(const smp_update *u, void *stream, const char *name, Rule rule)
{
    return u->half == SMP_F16 ? smp_update_launch_as<fp16>(u, stream, name, rule)
                              : smp_update_launch_as<bf16>(u, stream, name, rule);
}

#endif
