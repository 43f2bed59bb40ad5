/* Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as
 * 1, 2, 3", SC 2011). A number is a function of key and counter alone, so it does not depend on the
 * rank or on what was drawn before. */
#ifndef SMP_GRAPH_BASE_RANDOM_H
#define SMP_GRAPH_BASE_RANDOM_H

#include <stdint.h>

typedef struct smp_random4 {
    uint32_t v[4];
} smp_random4;

smp_random4 smp_random_philox(uint64_t key, uint64_t counter_low, uint64_t counter_high);

/* Uniform in [0, 1) with 24 bits from one word. */
static inline float smp_random_uniform(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}

/* splitmix64 finaliser: a good 64-bit mix of one word. */
static inline uint64_t smp_random_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

#endif
