/* Hashes side by side; see the header. A cache line of each array at a time, so that lines of
 * arrays that fall on one set of the cache need not stay there. */
#include "graph/math/hash_lanes.h"

#include <stdbool.h>
#include <string.h>

#include "graph/base/text.h"
#include "graph/math/vector.h"

enum { LINE = 64, WORDS = LINE / 8, WORTH = 3 /* arrays that one by one take as long as a pass */ };

/* Of SMP_HASH_ARRAYS arrays. */
SMP_VECTOR static void hash_pass(const unsigned char *const *data, size_t bytes, uint64_t *hash)
{
    uint64_t h[SMP_HASH_ARRAYS], word[WORDS][SMP_HASH_ARRAYS];
    for (int l = 0; l < SMP_HASH_ARRAYS; l++)
        h[l] = SMP_HASH_BEGIN;
    for (size_t at = 0; at < bytes; at += LINE) {
        for (int l = 0; l < SMP_HASH_ARRAYS; l++)
            for (int w = 0; w < WORDS; w++)
                memcpy(&word[w][l], data[l] + at + 8 * w, 8);
        for (int w = 0; w < WORDS; w++)
            for (int byte = 0; byte < 8; byte++)
                for (int l = 0; l < SMP_HASH_ARRAYS; l++) {
                    h[l] = (h[l] ^ (word[w][l] & 255)) * SMP_HASH_PRIME;
                    word[w][l] >>= 8;
                }
    }
    for (int l = 0; l < SMP_HASH_ARRAYS; l++)
        hash[l] = smp_hash_end(h[l]);
}

void smp_hash_each(const void *data, size_t bytes, size_t n, uint64_t *hash)
{
    const unsigned char *at = data;
    for (size_t done = 0; done < n;) {
        const size_t left = n - done, count = left < SMP_HASH_ARRAYS ? left : SMP_HASH_ARRAYS;
        const unsigned char *array[SMP_HASH_ARRAYS];
        uint64_t of[SMP_HASH_ARRAYS];
        for (size_t l = 0; l < SMP_HASH_ARRAYS;
             l++) /* where fewer are left, the last one several times */
            array[l] = at + (done + (l < count ? l : count - 1)) * bytes;
        if (count > WORTH)
            hash_pass(array, bytes, of);
        for (size_t l = 0; l < count; l++)
            hash[done + l] = count > WORTH ? of[l] : smp_hash(0, array[l], bytes);
        done += count;
    }
}
