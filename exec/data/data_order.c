/* The order of samples in one pass: a permutation that is a function of seed and pass alone.
 *
 * A Feistel network permutes the 2^bits numbers around n; a result outside [0, n) is put through
 * again until it lands inside (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA
 * 2002: cycle walking). That is a bijection of [0, n), needs no table, and any place of it costs
 * the same: fewer than 2 turns expected, as 2^bits < 2n (more where n is below the least domain).
 *
 * The halves may differ by one bit; a round changes one of them, so every round can be undone. */
#include "exec/data/data_source.h"

#include "graph/base/random.h"

/* Halves of 4 bits at least: a smaller network reaches too few of the n! orders. */
enum { MIN_BITS = 8 };

void smp__order_init(smp_order *order, int64_t n, uint64_t seed, uint64_t pass)
{
    int bits = MIN_BITS;
    while (bits < 63 && (uint64_t)n > UINT64_C(1) << bits)
        bits++;
    order->n = (uint64_t)n;
    order->low_bits = bits / 2;
    order->high_bits = bits - bits / 2;
    /* Mixed one after the other: (seed, pass) and (seed + 1, pass - 1) must not meet. */
    uint64_t key = smp_random_mix(smp_random_mix(seed) + pass);
    for (int round = 0; round < SMP_ORDER_ROUNDS; round++) {
        key = smp_random_mix(key);
        order->key[round] = key;
    }
}

static uint64_t feistel(const smp_order *order, uint64_t x)
{
    const uint64_t low_mask = (UINT64_C(1) << order->low_bits) - 1;
    const uint64_t high_mask = (UINT64_C(1) << order->high_bits) - 1;
    uint64_t low = x & low_mask;
    uint64_t high = x >> order->low_bits;
    for (int round = 0; round < SMP_ORDER_ROUNDS; round += 2) {
        high ^= smp_random_mix(order->key[round] ^ low) & high_mask;
        low ^= smp_random_mix(order->key[round + 1] ^ high) & low_mask;
    }
    return high << order->low_bits | low;
}

int64_t smp__order_at(const smp_order *order, int64_t i)
{
    uint64_t x = (uint64_t)i;
    if (order->n <= 1)
        return 0;
    do
        x = feistel(order, x);
    while (x >= order->n);
    return (int64_t)x;
}
