/* What the element-wise kernels over a rank's arena share: 16-byte accesses where the addresses
 * allow them, and a grid that depends on the number of elements alone; and the one pass of every
 * optimizer, and its measurement. */
#ifndef SMP_EXEC_OPTIMIZER_CUDA_UPDATE_CUH
#define SMP_EXEC_OPTIMIZER_CUDA_UPDATE_CUH

#include "exec/optimizer/optimizer.h"
#include "graph/cuda/cuda_kernel.cuh"
#include "graph/cuda/cuda_philox.cuh"

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

/* What is kept of states: of elements i .. i + n - 1 of an update, n being 1 or 4, state j of
 * element i + k. A float as it is; bf16 rounded by 16 random bits (bf16_states.h), for which four
 * elements that are one block of words take one. */
template <class State> struct smp_kept;

template <> struct smp_kept<float> {
    __device__ __forceinline__ smp_kept(const smp_state_rounding &, int64_t, int) {}
    __device__ __forceinline__ float operator()(float value, int, int) const
    {
        return value;
    }
};

template <> struct smp_kept<bf16> {
    uint32_t word[4];
    bool nearest;

    __device__ __forceinline__ smp_kept(const smp_state_rounding &r, int64_t i, int n)
        : nearest(r.nearest)
    {
        const uint64_t place = (uint64_t)smp_state_place(r, i);
        const bool block = n == 4 && place % 4 == 0 && (int64_t)place % r.run + 4 <= r.run;
        const smp_words first = smp_philox(r.key, place / 4, r.counter_high);
        for (int k = 0; k < n; k++) {
            const uint64_t at = block ? place + k : (uint64_t)smp_state_place(r, i + k);
            const bool same = at / 4 == place / 4;
            word[k] = (same ? first : smp_philox(r.key, at / 4, r.counter_high)).v[at % 4];
        }
    }
    __device__ __forceinline__ bf16 operator()(float value, int k, int j) const
    {
        const uint32_t bits = __float_as_uint(value);
        const uint32_t random = nearest ? smp_state_nearest(bits) : word[k] >> 16 * j & 0xffff;
        return __ushort_as_bfloat16((unsigned short)smp_state_round(bits, random));
    }
};

/* One pass over weight, gradient and states, [n] each, that also writes the weight's copy in 16
 * bits (T), which may be NULL. A rule has STATES, and is called with one element of each:
 * rule(weight, gradient, state[STATES]). What it makes of the weight goes to `out`: the weight, or
 * a direction that may take the place of the gradient. */
template <typename T, class State, class Rule>
__global__ void __launch_bounds__(SMP_BLOCK)
    smp_update_kernel(const float *weight, const float *grad, State *state0, State *state1,
                      float *out, T *weight16, int64_t n, bool packed, Rule rule,
                      smp_state_rounding rounding)
{
    constexpr int ROOM = Rule::STATES > 0 ? Rule::STATES : 1;
    State *const state[2] = {state0, state1};
    const int64_t quads = packed ? n / 4 : 0;
    for (int64_t i = smp_thread(); i < quads; i += smp_threads()) {
        smp_pack<float> w = smp_load16(weight + 4 * i);
        smp_pack<State, 4> s[ROOM];
        const smp_pack<float> g = smp_load16(grad + 4 * i);
        const smp_kept<State> kept(rounding, 4 * i, 4);
        smp_pack<T, 4> w16;
        for (int j = 0; j < Rule::STATES; j++)
            s[j] = smp_load<4>(state[j] + 4 * i);
        for (int k = 0; k < 4; k++) {
            float element[ROOM];
            for (int j = 0; j < Rule::STATES; j++)
                element[j] = smp_float(s[j].v[k]);
            rule(w.v[k], g.v[k], element);
            for (int j = 0; j < Rule::STATES; j++)
                s[j].v[k] = kept(element[j], k, j);
            w16.v[k] = smp_from<T>(w.v[k]);
        }
        smp_store(out + 4 * i, w);
        for (int j = 0; j < Rule::STATES; j++)
            smp_store(state[j] + 4 * i, s[j]);
        if (weight16)
            smp_store(weight16 + 4 * i, w16);
    }
    for (int64_t i = quads * 4 + smp_thread(); i < n; i += smp_threads()) {
        const smp_kept<State> kept(rounding, i, 1);
        float element[ROOM];
        for (int j = 0; j < Rule::STATES; j++)
            element[j] = smp_float(state[j][i]);
        float w = weight[i];
        rule(w, grad[i], element);
        for (int j = 0; j < Rule::STATES; j++)
            state[j][i] = kept(element[j], 0, j);
        out[i] = w;
        if (weight16)
            weight16[i] = smp_from<T>(w);
    }
}

template <typename T, class State, class Rule>
static smp_status smp_update_as(const smp_update *u, State *state0, State *state1, void *stream,
                                const char *name, Rule rule)
{
    float *out = u->direction ? u->direction : u->weight;
    T *copy = u->direction ? NULL : static_cast<T *>(u->weight16);
    const bool packed =
        !(smp_misaligned(u->weight, 16) | smp_misaligned(u->grad, 16) | smp_misaligned(out, 16) |
          smp_misaligned(copy, 8) | smp_misaligned(state0, 4 * sizeof(State)) |
          smp_misaligned(state1, 4 * sizeof(State)));
    if (u->elements <= 0)
        return SMP_OK;
    const auto kernel = smp_update_kernel<T, State, Rule>;
    SMP_LAUNCH(kernel, smp_arena_grid(packed ? u->elements / 4 : u->elements), SMP_BLOCK, 0,
               static_cast<cudaStream_t>(stream), u->weight, u->grad, state0, state1, out, copy,
               u->elements, packed, rule, u->rounding);
    return smp__cuda_launched(name);
}

template <typename T, class Rule>
static smp_status smp_update_half(const smp_update *u, void *stream, const char *name, Rule rule)
{
    bf16 *const state16[2] = {reinterpret_cast<bf16 *>(u->state16[0]),
                              reinterpret_cast<bf16 *>(u->state16[1])};
    if (Rule::STATES > 0 && state16[0])
        return smp_update_as<T>(u, state16[0], state16[1], stream, name, rule);
    return smp_update_as<T>(u, u->state[0], u->state[1], stream, name, rule);
}

template <class Rule>
static smp_status smp_update_launch(const smp_update *u, void *stream, const char *name, Rule rule)
{
    return u->half == SMP_F16 ? smp_update_half<fp16>(u, stream, name, rule)
                              : smp_update_half<bf16>(u, stream, name, rule);
}

#endif
