/* Interval packing: no two buffers that live at the same time overlap, and the result is near the
 * lower bound, which is compared with one counted by hand. */
#include "tests/schedule/fixture.h"

static int64_t aligned(int64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Gives total / bound. */
static double check(int64_t n, const int64_t *bytes, const int64_t *begin, const int64_t *end)
{
    int64_t *offset = calloc((size_t)n + 1, sizeof *offset), total = -1, bound = -1, most = 0;
    assert_int_equal(SMP_OK, smp_interval_pack(n, bytes, begin, end, 64, offset, &total, &bound));
    for (int64_t i = 0; i < n; i++) {
        int64_t alive = 0;
        assert_int_equal(0, offset[i] % 64);
        assert_true(offset[i] >= 0 && (bytes[i] == 0 || offset[i] + bytes[i] <= total));
        for (int64_t j = 0; j < n; j++) {
            if (begin[j] <= begin[i] && begin[i] <= end[j])
                alive += aligned(bytes[j]);
            if (i == j || begin[j] > end[i] || begin[i] > end[j] || !bytes[i] || !bytes[j])
                continue;
            assert_true(offset[i] + bytes[i] <= offset[j] || offset[j] + bytes[j] <= offset[i]);
        }
        if (alive > most)
            most = alive;
    }
    assert_int_equal(most, bound);
    assert_true(total >= bound);
    free(offset);
    return bound > 0 ? (double)total / (double)bound : 1;
}

static void test_interval_random(void **state)
{
    (void)state;
    enum { MOST = 400 };
    int64_t bytes[MOST], begin[MOST], end[MOST];
    double sum = 0;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        fixture_random random = {seed};
        int64_t n = fixture_below(&random, MOST), times = 1 + fixture_below(&random, 500);
        int64_t longest = 1 + fixture_below(&random, seed % 2 ? 8 : times);
        for (int64_t i = 0; i < n; i++) {
            bytes[i] = fixture_chance(&random, 5) ? 0 : 1 + fixture_below(&random, 5000);
            begin[i] = fixture_below(&random, times) - times / 2;
            end[i] = begin[i] + fixture_below(&random, longest);
        }
        double ratio = check(n, bytes, begin, end);
        assert_true(ratio <= 1.35);
        sum += ratio;
    }
    assert_true(sum / 300 <= 1.05);
}

/* Stash blocks of a pipeline: equal sizes are packed without loss. */
static void test_interval_equal_sizes_reach_the_bound(void **state)
{
    (void)state;
    enum { N = 200 };
    int64_t bytes[N], begin[N], end[N];
    for (uint64_t seed = 1; seed <= 50; seed++) {
        fixture_random random = {seed};
        for (int64_t i = 0; i < N; i++) {
            bytes[i] = 1000;
            begin[i] = fixture_below(&random, 300);
            end[i] = begin[i] + fixture_below(&random, 40);
        }
        assert_true(check(N, bytes, begin, end) == 1);
    }
}

static void test_interval_empty(void **state)
{
    (void)state;
    check(0, NULL, NULL, NULL);
    check(2, (int64_t[]){0, 0}, (int64_t[]){0, 1}, (int64_t[]){5, 5});
}

/* So many overlapping buffers that colouring by size takes over; pairs are not checked here. */
static void test_interval_many(void **state)
{
    (void)state;
    enum { N = 40000 };
    int64_t *data = calloc(4 * N, sizeof *data), total, bound;
    int64_t *bytes = data, *begin = data + N, *end = data + 2 * N, *offset = data + 3 * N;
    for (int64_t i = 0; i < N; i++) {
        bytes[i] = i % 2 ? 640 : 128;
        begin[i] = i;
        end[i] = i + N / 2;
    }
    assert_int_equal(SMP_OK, smp_interval_pack(N, bytes, begin, end, 64, offset, &total, &bound));
    assert_true(total >= bound && total <= bound + 640);
    bool *used = calloc((size_t)(total / 64) * 2, sizeof *used);
    for (int64_t now = 0; now < N; now += 4999) {
        memset(used, 0, (size_t)(total / 64));
        for (int64_t i = 0; i < N; i++)
            for (int64_t k = offset[i] / 64;
                 begin[i] <= now && now <= end[i] && k < (offset[i] + bytes[i]) / 64; k++) {
                assert_false(used[k]);
                used[k] = true;
            }
    }
    free(used);
    free(data);
}

/* Long lists with few buffers alive, in any order: one pass or the search, no overlaps, near the
 * bound. */
static void test_interval_long_lists(void **state)
{
    (void)state;
    enum { N = 6000 };
    int64_t *data = calloc(3 * N, sizeof *data);
    int64_t *bytes = data, *begin = data + N, *end = data + 2 * N;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        fixture_random random = {seed};
        int64_t n = seed % 3 == 0 ? 300 : N, longest = 1 + fixture_below(&random, 12);
        for (int64_t i = 0; i < n; i++) {
            int64_t at = seed % 4 == 3 ? n - i : i; /* falling: no pass can take it */
            bytes[i] = fixture_chance(&random, 5) ? 0 : 1 + fixture_below(&random, 5000);
            begin[i] = at - n / 2;
            end[i] = begin[i] + fixture_below(&random, longest);
        }
        assert_true(check(n, bytes, begin, end) <= 1.35);
    }
    free(data);
}

/* A value and what is computed from it, over and over: the pass loses nothing. */
static void test_interval_chain_reaches_the_bound(void **state)
{
    (void)state;
    enum { N = 5001 };
    int64_t *data = calloc(3 * N, sizeof *data);
    int64_t *bytes = data, *begin = data + N, *end = data + 2 * N;
    for (int64_t i = 0; i < N; i++) {
        bytes[i] = i % 3 == 2 ? 4096 : 1024;
        begin[i] = i;
        end[i] = i % 3 == 2 ? i + 3 : i / 3 * 3 + 2; /* x until the next x, a and b until x */
    }
    assert_true(check(N, bytes, begin, end) == 1);
    free(data);
}

static void test_interval_refuses(void **state)
{
    (void)state;
    int64_t offset[1], total = 7, bound = 7;
    assert_int_equal(SMP_ERR_INPUT, smp_interval_pack(1, (int64_t[]){-1}, (int64_t[]){0},
                                                      (int64_t[]){0}, 64, offset, &total, &bound));
    assert_int_equal(SMP_ERR_INPUT, smp_interval_pack(1, (int64_t[]){8}, (int64_t[]){3},
                                                      (int64_t[]){2}, 64, offset, &total, &bound));
    assert_int_equal(SMP_ERR_INPUT, smp_interval_pack(1, (int64_t[]){INT64_MAX}, (int64_t[]){0},
                                                      (int64_t[]){0}, 64, offset, &total, &bound));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_interval_random),
        cmocka_unit_test(test_interval_equal_sizes_reach_the_bound),
        cmocka_unit_test(test_interval_empty),
        cmocka_unit_test(test_interval_many),
        cmocka_unit_test(test_interval_long_lists),
        cmocka_unit_test(test_interval_chain_reaches_the_bound),
        cmocka_unit_test(test_interval_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
