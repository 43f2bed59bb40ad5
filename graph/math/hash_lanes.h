/* smp_hash of many arrays of one length, 32 side by side: a byte's product waits for the one before
 * it, products of several arrays do not wait for each other. With 512-bit registers, whose products
 * take 15 cycles on Intel's cores, 16 arrays would be done at 0.6 of the rate. */
#ifndef SMP_GRAPH_MATH_HASH_LANES_H
#define SMP_GRAPH_MATH_HASH_LANES_H

#include <stddef.h>
#include <stdint.h>

enum { SMP_HASH_ARRAYS = 32 }; /* as many are done at once, or fewer as slowly */

/* hash[i] = smp_hash(0, ...) of the i-th of n arrays of `bytes`, a multiple of 64, which lie one
 * after the other. */
void smp_hash_each(const void *data, size_t bytes, size_t n, uint64_t *hash);

#endif
