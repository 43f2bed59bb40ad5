/* Sixteen blocks of Philox4x32-10 (smp_random_philox) side by side, for loops that the compiler is
 * to turn into vectors: to be called in a function that is SMP_VECTOR. */
#ifndef SMP_GRAPH_MATH_PHILOX_LANES_H
#define SMP_GRAPH_MATH_PHILOX_LANES_H

#include "graph/math/vector.h"

enum { SMP__PHILOX_ROUNDS = 10, SMP__PHILOX_WORDS = 4, SMP__PHILOX_GROUP = 4 * SMP_LANES };

/* Words of blocks 16 g .. 16 g + 15: word w of block l goes to word[w][l]. The blocks fill the low
 * bits of the counter, so there is no carry into its upper half. The rounds of one block are the
 * inner loop: unrolled, they leave a loop over blocks whose state stays in registers. */
static inline void smp__philox_group(uint64_t key, uint64_t counter_high, uint64_t g,
                                     uint32_t word[SMP__PHILOX_WORDS][SMP_LANES])
{
    uint64_t block = g * SMP_LANES;
    for (uint32_t l = 0; l < SMP_LANES; l++) {
        uint32_t key0 = (uint32_t)key, key1 = (uint32_t)(key >> 32);
        uint32_t x0 = (uint32_t)block + l, x1 = (uint32_t)(block >> 32);
        uint32_t x2 = (uint32_t)counter_high, x3 = (uint32_t)(counter_high >> 32);
        for (int round = 0; round < SMP__PHILOX_ROUNDS; round++) {
            uint64_t a = (uint64_t)0xD2511F53u * x0;
            uint64_t b = (uint64_t)0xCD9E8D57u * x2;
            x0 = (uint32_t)(b >> 32) ^ x1 ^ key0;
            x1 = (uint32_t)b;
            x2 = (uint32_t)(a >> 32) ^ x3 ^ key1;
            x3 = (uint32_t)a;
            key0 += 0x9E3779B9u;
            key1 += 0xBB67AE85u;
        }
        word[0][l] = x0;
        word[1][l] = x1;
        word[2][l] = x2;
        word[3][l] = x3;
    }
}

#endif
