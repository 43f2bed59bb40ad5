/* What the element-wise kernels over a rank's arena share: 16-byte accesses where the addresses
 * allow them, and a grid that depends on the number of elements alone; and the one pass of every
 * optimizer, and its measurement, over many weights in a launch. */
#ifndef SMP_EXEC_OPTIMIZER_CUDA_UPDATE_CUH
#define SMP_EXEC_OPTIMIZER_CUDA_UPDATE_CUH

#include "exec/optimizer/cuda_optimizer.h"
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

/* One update of a launch. A rule has STATES, and is called with one element of each array:
 * rule(weight, gradient, state[STATES]). What it makes of the weight goes to `out`: the weight, or
 * a direction that may take the place of the gradient. */
template <typename T, class State, class Rule> struct smp_update_item {
    const float *weight, *grad; /* [n], as all else */
    State *state[2];
    float *out;
    T *weight16; /* the weight's copy in 16 bits, or NULL */
    int64_t n;
    bool packed; /* 16 bytes at a time */
    Rule rule;
    smp_state_rounding rounding;
};

/* Those that are made in one launch: as many as its parameters hold. Blocks first[i] to
 * first[i + 1] - 1 make item i, as many as it would have alone. */
template <typename T, class State, class Rule> struct smp_update_table {
    enum { BYTES = 4096, N = (BYTES - 8) / (sizeof(smp_update_item<T, State, Rule>) + 4) };
    smp_update_item<T, State, Rule> item[N];
    unsigned first[N + 1];
};

template <typename T, class State, class Rule>
__global__ void __launch_bounds__(SMP_BLOCK)
    smp_update_kernel(const __grid_constant__ smp_update_table<T, State, Rule> table)
{
    constexpr int ROOM = Rule::STATES > 0 ? Rule::STATES : 1;
    int at = 0;
    while (blockIdx.x >= table.first[at + 1])
        at++;
    const smp_update_item<T, State, Rule> &u = table.item[at];
    const int64_t thread = (int64_t)(blockIdx.x - table.first[at]) * SMP_BLOCK + threadIdx.x;
    const int64_t threads = (int64_t)(table.first[at + 1] - table.first[at]) * SMP_BLOCK;
    const int64_t quads = u.packed ? u.n / 4 : 0;
    for (int64_t i = thread; i < quads; i += threads) {
        smp_pack<float> w = smp_load16(u.weight + 4 * i);
        smp_pack<State, 4> s[ROOM];
        const smp_pack<float> g = smp_load16(u.grad + 4 * i);
        const smp_kept<State> kept(u.rounding, 4 * i, 4);
        smp_pack<T, 4> w16;
        for (int j = 0; j < Rule::STATES; j++)
            s[j] = smp_load<4>(u.state[j] + 4 * i);
        for (int k = 0; k < 4; k++) {
            float element[ROOM];
            for (int j = 0; j < Rule::STATES; j++)
                element[j] = smp_float(s[j].v[k]);
            u.rule(w.v[k], g.v[k], element);
            for (int j = 0; j < Rule::STATES; j++)
                s[j].v[k] = kept(element[j], k, j);
            w16.v[k] = smp_from<T>(w.v[k]);
        }
        smp_store(u.out + 4 * i, w);
        for (int j = 0; j < Rule::STATES; j++)
            smp_store(u.state[j] + 4 * i, s[j]);
        if (u.weight16)
            smp_store(u.weight16 + 4 * i, w16);
    }
    for (int64_t i = quads * 4 + thread; i < u.n; i += threads) {
        const smp_kept<State> kept(u.rounding, i, 1);
        float element[ROOM];
        for (int j = 0; j < Rule::STATES; j++)
            element[j] = smp_float(u.state[j][i]);
        float w = u.weight[i];
        u.rule(w, u.grad[i], element);
        for (int j = 0; j < Rule::STATES; j++)
            u.state[j][i] = kept(element[j], 0, j);
        u.out[i] = w;
        if (u.weight16)
            u.weight16[i] = smp_from<T>(w);
    }
}

static inline void smp_update_state(const smp_update *u, int k, float **out)
{
    *out = u->state[k];
}
static inline void smp_update_state(const smp_update *u, int k, bf16 **out)
{
    *out = reinterpret_cast<bf16 *>(u->state16[k]);
}

template <typename T, class State, class Rule>
static smp_update_item<T, State, Rule> smp_update_item_of(const smp_update *u, Rule rule)
{
    State *state[2];
    for (int k = 0; k < 2; k++)
        smp_update_state(u, k, &state[k]);
    float *out = u->direction ? u->direction : u->weight;
    T *copy = u->direction ? NULL : static_cast<T *>(u->weight16);
    const bool packed =
        !(smp_misaligned(u->weight, 16) | smp_misaligned(u->grad, 16) | smp_misaligned(out, 16) |
          smp_misaligned(copy, 8) | smp_misaligned(state[0], 4 * sizeof(State)) |
          smp_misaligned(state[1], 4 * sizeof(State)));
    return {u->weight, u->grad, {state[0], state[1]}, out, copy, u->elements,
            packed,    rule,    u->rounding};
}

/* rule_of(update) makes a rule. */
template <typename T, class State, class Of>
static smp_status smp_update_as(const smp_update *u, void *stream, const char *name, Of rule_of)
{
    typedef decltype(rule_of(u)) rule;
    smp_update_table<T, State, rule> table;
    while (u) {
        int n = 0;
        for (table.first[0] = 0; u && n < table.N; u = u->next) {
            if (u->elements <= 0)
                continue;
            table.item[n] = smp_update_item_of<T, State>(u, rule_of(u));
            const int64_t items = table.item[n].packed ? u->elements / 4 : u->elements;
            table.first[n + 1] = table.first[n] + smp_arena_grid(items);
            n++;
        }
        if (n == 0)
            break;
        const auto kernel = smp_update_kernel<T, State, rule>;
        const unsigned blocks = table.first[n];
        for (int i = n; i < table.N; i++) /* no block looks there, but all of it is copied */
            table.item[i] = table.item[0], table.first[i + 1] = blocks;
        SMP_LAUNCH(kernel, blocks, SMP_BLOCK, 0, static_cast<cudaStream_t>(stream), table);
        SMP_TRY(smp__cuda_launched(name));
    }
    return SMP_OK;
}

template <typename T, class Of>
static smp_status smp_update_half(const smp_update *u, void *stream, const char *name, Of rule_of)
{
    return decltype(rule_of(u))::STATES > 0 && u->state16[0]
               ? smp_update_as<T, bf16>(u, stream, name, rule_of)
               : smp_update_as<T, float>(u, stream, name, rule_of);
}

/* An update, or a measurement, and those after it (smp_update.next). */
template <class Of>
static smp_status smp_update_launch(const smp_update *u, void *stream, const char *name, Of rule_of)
{
    return u->half == SMP_F16 ? smp_update_half<fp16>(u, stream, name, rule_of)
                              : smp_update_half<bf16>(u, stream, name, rule_of);
}

#endif
