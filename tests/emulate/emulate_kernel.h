/* What a thread of a kernel sees of its block: its index, shared memory, barriers, shuffles, votes,
 * atomics. Carried out in emulate_block.cc. */
#ifndef SMP_TESTS_EMULATE_EMULATE_KERNEL_H
#define SMP_TESTS_EMULATE_EMULATE_KERNEL_H

#include <stdint.h>
#include <string.h>

#include "vector_types.h"

/* Blocks run one after another on one thread of the system, so a static is shared by the threads of
 * one block. thread_local marks it: those of kernels are found and poisoned before each block. */
#define __shared__ static thread_local
#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__
#define __restrict__ __restrict

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

/* The dynamic shared memory of the launch. */
#define SMP_SHARED(type, name) type *name = reinterpret_cast<type *>(emulate_shared_memory())

void *emulate_shared_memory();
void emulate_barrier(int id, int threads); /* threads 0: all of the block */
int emulate_barrier_count(bool predicate); /* how many threads of the block say yes */
void emulate_warp_sync(unsigned mask);
unsigned emulate_ballot(unsigned mask, bool predicate);
/* Gives `value` to the lanes that ask for it and returns that of lane `source`. */
uint64_t emulate_exchange(unsigned mask, uint64_t value, int source);
int emulate_lane();
/* Every lane's value is put at gathered[lane]; others are untouched. */
void emulate_gather(unsigned mask, uint64_t value, uint64_t gathered[32]);

static inline void __syncthreads()
{
    emulate_barrier(0, 0);
}
static inline int __syncthreads_count(int predicate)
{
    return emulate_barrier_count(predicate != 0);
}
static inline int __syncthreads_or(int predicate)
{
    return emulate_barrier_count(predicate != 0) > 0;
}
static inline int __syncthreads_and(int predicate)
{
    return emulate_barrier_count(predicate == 0) == 0;
}
static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    emulate_warp_sync(mask);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate)
{
    return emulate_ballot(mask, predicate != 0);
}
static inline int __any_sync(unsigned mask, int predicate)
{
    return emulate_ballot(mask, predicate != 0) != 0;
}
static inline int __all_sync(unsigned mask, int predicate)
{
    return emulate_ballot(mask, predicate != 0) == mask;
}

template <typename T> inline T emulate_shuffle(unsigned mask, T value, int source)
{
    static_assert(sizeof(T) <= 8 && __is_trivially_copyable(T), "shuffles move 8 bytes at most");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = emulate_exchange(mask, bits, source);
    memcpy(static_cast<void *>(&value), &bits, sizeof value);
    return value;
}
/* The lanes of a warp form groups of `width`; a source outside of the own group is the own lane. */
template <typename T> inline T __shfl_sync(unsigned mask, T value, int source, int width = 32)
{
    const int group = emulate_lane() & ~(width - 1);
    return emulate_shuffle(mask, value, group + (source & (width - 1)));
}
template <typename T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32)
{
    const int lane = emulate_lane(), group = lane & ~(width - 1);
    const int source = lane - static_cast<int>(delta);
    return emulate_shuffle(mask, value, source < group ? lane : source);
}
template <typename T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32)
{
    const int lane = emulate_lane(), group = lane & ~(width - 1);
    const int source = lane + static_cast<int>(delta);
    return emulate_shuffle(mask, value, source >= group + width ? lane : source);
}
template <typename T> inline T __shfl_xor_sync(unsigned mask, T value, int flip, int width = 32)
{
    const int lane = emulate_lane(), group = lane & ~(width - 1);
    const int source = lane ^ flip;
    return emulate_shuffle(mask, value, source >= group + width ? lane : source);
}

template <typename T> inline unsigned __match_any_sync(unsigned mask, T value)
{
    uint64_t bits = 0, all[32];
    memcpy(&bits, &value, sizeof value);
    emulate_gather(mask, bits, all);
    unsigned same = 0;
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1 && all[lane] == bits)
            same |= 1u << lane;
    return same;
}

#define EMULATE_REDUCE(name, expression)                                                           \
    template <typename T> inline T name(unsigned mask, T value)                                    \
    {                                                                                              \
        static_assert(sizeof(T) == 4 && static_cast<T>(0.5f) == 0, "32-bit integers only");        \
        uint64_t all[32];                                                                          \
        emulate_gather(mask, static_cast<uint32_t>(value), all);                                   \
        bool first = true;                                                                         \
        T a = 0;                                                                                   \
        for (int lane = 0; lane < 32; lane++)                                                      \
            if (mask >> lane & 1) {                                                                \
                const T b = static_cast<T>(static_cast<uint32_t>(all[lane]));                      \
                a = first ? b : static_cast<T>(expression);                                        \
                first = false;                                                                     \
            }                                                                                      \
        return a;                                                                                  \
    }
EMULATE_REDUCE(__reduce_add_sync, a + b)
EMULATE_REDUCE(__reduce_min_sync, a < b ? a : b)
EMULATE_REDUCE(__reduce_max_sync, a > b ? a : b)
EMULATE_REDUCE(__reduce_and_sync, a &b)
EMULATE_REDUCE(__reduce_or_sync, a | b)
EMULATE_REDUCE(__reduce_xor_sync, a ^ b)
#undef EMULATE_REDUCE

static inline void __threadfence() {}
static inline void __threadfence_block() {}

/* Threads switch only at barriers, so plain accesses are atomic. On integers alone: sums of floats
 * in the order of arrival are forbidden here. */
#define EMULATE_ATOMIC(name, expression)                                                           \
    template <typename T> inline T name(T *p, T b)                                                 \
    {                                                                                              \
        static_assert(static_cast<T>(0.5f) == 0, "no atomics on floats");                          \
        const T a = *p;                                                                            \
        *p = expression;                                                                           \
        return a;                                                                                  \
    }
EMULATE_ATOMIC(atomicAdd, a + b)
EMULATE_ATOMIC(atomicSub, a - b)
EMULATE_ATOMIC(atomicMin, a < b ? a : b)
EMULATE_ATOMIC(atomicMax, a > b ? a : b)
EMULATE_ATOMIC(atomicAnd, a &b)
EMULATE_ATOMIC(atomicOr, a | b)
EMULATE_ATOMIC(atomicXor, a ^ b)
EMULATE_ATOMIC(atomicExch, b)
#undef EMULATE_ATOMIC
template <typename T> inline T atomicCAS(T *p, T compare, T value)
{
    const T old = *p;
    if (old == compare)
        *p = value;
    return old;
}

#define EMULATE_LOAD(name)                                                                         \
    template <typename T> inline T name(const T *p)                                                \
    {                                                                                              \
        return *p;                                                                                 \
    }
EMULATE_LOAD(__ldg)
EMULATE_LOAD(__ldcg)
EMULATE_LOAD(__ldca)
EMULATE_LOAD(__ldcs)
EMULATE_LOAD(__ldlu)
EMULATE_LOAD(__ldcv)
#undef EMULATE_LOAD
#define EMULATE_STORE(name)                                                                        \
    template <typename T> inline void name(T *p, T value)                                          \
    {                                                                                              \
        *p = value;                                                                                \
    }
EMULATE_STORE(__stwb)
EMULATE_STORE(__stcg)
EMULATE_STORE(__stcs)
EMULATE_STORE(__stwt)
#undef EMULATE_STORE

#endif
