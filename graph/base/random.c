/* Philox4x32-10 (Salmon et al., SC 2011): ten rounds of two 32x32 multiplications, a xor and a key
 * bump each. Stateless; about 20 ns per four words. */
#include "graph/base/random.h"

enum { ROUNDS = 10 };

smp_random4 smp_random_philox(uint64_t key, uint64_t counter_low, uint64_t counter_high)
{
    uint32_t k0 = (uint32_t)key;
    uint32_t k1 = (uint32_t)(key >> 32);
    smp_random4 x = {{(uint32_t)counter_low, (uint32_t)(counter_low >> 32), (uint32_t)counter_high,
                      (uint32_t)(counter_high >> 32)}};
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * x.v[0];
        uint64_t p1 = (uint64_t)0xCD9E8D57u * x.v[2];
        x = (smp_random4){{(uint32_t)(p1 >> 32) ^ x.v[1] ^ k0, (uint32_t)p1,
                           (uint32_t)(p0 >> 32) ^ x.v[3] ^ k1, (uint32_t)p0}};
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return x;
}
