/* Hashes of arrays side by side are those of the arrays one by one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "graph/base/text.h"
#include "graph/math/hash_lanes.h"

static void test_hash_each(void **state)
{
    (void)state;
    enum { MOST = 40 };
    static const size_t lengths[] = {64, 192, 4096};
    static unsigned char data[MOST * 4096 + 1];
    uint64_t hash[MOST + 1];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)((i * 2654435761u) >> 11);
    for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++)
        for (size_t n = 0; n <= MOST; n++)
            for (size_t odd = 0; odd < 2; odd++) { /* at any address */
                hash[n] = 42;
                smp_hash_each(data + odd, lengths[k], n, hash);
                assert_true(hash[n] == 42);
                for (size_t i = 0; i < n; i++)
                    assert_true(hash[i] == smp_hash(0, data + odd + i * lengths[k], lengths[k]));
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_hash_each)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
