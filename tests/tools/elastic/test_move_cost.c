/* Hosts to places: the most that one lacks, then all together, against all permutations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "graph/base/random.h"
#include "tools/elastic/moves/move_cost.h"

enum { MOST = 7 };

typedef struct best {
    int64_t most, sum;
} best;

static bool is_better(best a, best b)
{
    return a.most != b.most ? a.most < b.most : a.sum < b.sum;
}

/* All ways to go on from the first `p` places, which are taken. */
static void try_all(const int64_t *bytes, int n, int p, unsigned taken, best so_far, best *found)
{
    if (p == n && is_better(so_far, *found))
        *found = so_far;
    for (int h = 0; h < n && p < n; h++) {
        const int64_t own = bytes[p * n + h];
        if ((taken >> h & 1) == 0 && own >= 0)
            try_all(bytes, n, p + 1, taken | 1u << h,
                    (best){own > so_far.most ? own : so_far.most, so_far.sum + own}, found);
    }
}

/* Some places are not for some hosts, many entries are alike. */
static void draw(uint64_t seed, int n, int64_t *bytes)
{
    const int64_t range = (int64_t[]){2, 5, 1000, INT64_C(1) << 40}[seed % 4];
    for (int i = 0; i < n * n; i++) {
        const uint64_t random = smp_random_mix(seed + smp_random_mix((uint64_t)i + 1));
        const bool own = i / n == i % n;
        bytes[i] = !own && random % 5 == 0 ? -1 : (int64_t)(random >> 8) % range;
    }
}

static void test_assign_is_best(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 600; seed++) {
        int64_t bytes[MOST * MOST];
        int host_of[MOST];
        unsigned seen = 0;
        const int n = 1 + (int)(seed % MOST);
        best expected = {INT64_MAX, INT64_MAX}, got = {0, 0};
        draw(seed, n, bytes);
        try_all(bytes, n, 0, 0, (best){0, 0}, &expected);
        assert_int_equal(smp__move_assign(bytes, n, host_of), SMP_OK);
        for (int p = 0; p < n; p++) {
            const int64_t own = bytes[p * n + host_of[p]];
            seen |= 1u << host_of[p];
            assert_true(own >= 0);
            got = (best){own > got.most ? own : got.most, got.sum + own};
        }
        if (seen != (1u << n) - 1 || got.most != expected.most || got.sum != expected.sum)
            fail_msg("seed %llu: most %lld, all %lld, expected %lld and %lld",
                     (unsigned long long)seed, (long long)got.most, (long long)got.sum,
                     (long long)expected.most, (long long)expected.sum);
    }
}

/* Where nothing is gained, hosts stay. */
static void test_assign_stays(void **state)
{
    const int64_t alike[] = {3, 3, 3, 3, 3, 3, 3, 3, 3}, better[] = {9, 9, 9, 9, 9, 2, 9, 2, 9};
    int host_of[3];
    (void)state;
    assert_int_equal(smp__move_assign(alike, 3, host_of), SMP_OK);
    for (int p = 0; p < 3; p++)
        assert_int_equal(host_of[p], p);
    assert_int_equal(smp__move_assign(better, 3, host_of), SMP_OK);
    assert_true(host_of[0] == 0 && host_of[1] == 2 && host_of[2] == 1);
}

/* A tenth slower over ten minutes is a minute. */
static void test_going_on(void **state)
{
    (void)state;
    assert_true(smp__going_on_s(0.0, 110.0, 100.0, 600.0) <
                smp__going_on_s(61.0, 100.0, 100.0, 600.0));
    assert_true(smp__going_on_s(0.0, 110.0, 100.0, 600.0) >
                smp__going_on_s(59.0, 100.0, 100.0, 600.0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_assign_is_best),
                                       cmocka_unit_test(test_assign_stays),
                                       cmocka_unit_test(test_going_on)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
