/* A rank that falls behind is named once, behind ten steps, and once when it has recovered. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "exec/log/slow_ranks.h"

enum { RANKS = 4 };

static smp__slow_ranks slow;

static int open_ranks(void **state)
{
    const double predicted_us[RANKS] = {100.0, 200.0, 100.0, 100.0};
    (void)state;
    return smp__slow_ranks_open(predicted_us, RANKS, &slow) != SMP_OK;
}

static int close_ranks(void **state)
{
    (void)state;
    smp__slow_ranks_close(&slow);
    return 0;
}

/* Steps in which every rank takes `usual` times its prediction, the second one `ratio` times;
 * changes of the second one by the last of them, of the others never. */
static smp__rank_change take_steps(int n, double usual, double ratio)
{
    for (int i = 0; i < n; i++) {
        const double work_us[RANKS] = {100.0 * usual, 200.0 * ratio, 100.0 * usual, 100.0 * usual};
        smp__slow_ranks_add(&slow, work_us);
        for (int rank = 0; rank < RANKS; rank++)
            if (rank != 1 || i < n - 1)
                assert_int_equal(slow.rank[rank].change, SMP__RANK_SAME);
    }
    return slow.rank[1].change;
}

static void test_slow_ranks_are_named_once_after_ten_steps(void **state)
{
    (void)state;
    assert_int_equal(take_steps(9, 1.0, 1.3), SMP__RANK_SAME);
    assert_int_equal(take_steps(1, 1.0, 1.3), SMP__RANK_SLOW);
    assert_true(slow.rank[1].mean > 1.299 && slow.rank[1].mean < 1.301);
    assert_int_equal(take_steps(30, 1.0, 1.3), SMP__RANK_SAME);
}

static void test_slow_ranks_are_not_named_for_less(void **state)
{
    (void)state;
    assert_int_equal(take_steps(30, 1.0, 1.19), SMP__RANK_SAME);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(take_steps(9, 1.0, 1.3), SMP__RANK_SAME);
        assert_int_equal(take_steps(1, 1.0, 1.1), SMP__RANK_SAME);
    }
}

/* A prediction that is wrong for all ranks makes none of them slow. */
static void test_slow_ranks_are_measured_by_the_others(void **state)
{
    (void)state;
    assert_int_equal(take_steps(30, 3.0, 3.5), SMP__RANK_SAME);
    assert_int_equal(take_steps(30, 0.5, 1.1), SMP__RANK_SAME); /* as predicted */
    assert_int_equal(take_steps(10, 3.0, 3.9), SMP__RANK_SLOW);
    assert_true(slow.rank[1].times > 1.299 && slow.rank[1].times < 1.301); /* so much slower */
}

static void test_slow_ranks_recover_once(void **state)
{
    (void)state;
    assert_int_equal(take_steps(10, 1.0, 2.0), SMP__RANK_SLOW);
    assert_int_equal(take_steps(9, 1.0, 1.0), SMP__RANK_SAME);
    assert_int_equal(take_steps(1, 1.0, 2.0), SMP__RANK_SAME);
    assert_int_equal(take_steps(10, 1.0, 1.0), SMP__RANK_RECOVERED);
    assert_int_equal(take_steps(30, 1.0, 1.0), SMP__RANK_SAME);
    assert_int_equal(take_steps(10, 1.0, 2.0), SMP__RANK_SLOW);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(test_slow_ranks_##name, open_ranks, close_ranks)
    const struct CMUnitTest tests[] = {
        TEST(are_named_once_after_ten_steps),
        TEST(are_not_named_for_less),
        TEST(are_measured_by_the_others),
        TEST(recover_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
