/* The tree of gradient blocks against its definition, and who has which part of it: every number of
 * blocks up to 40 and every ddp. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "schedule/plan/gradient_blocks.h"
#include "tests/sum_tree.h"

enum { MOST = 40 };

/* Blocks one by one, and all at once. */
static void test_nodes_are_the_fewest_of_the_tree(void **state)
{
    (void)state;
    for (int blocks = 1; blocks <= MOST; blocks++)
        for (int begin = 0; begin < blocks; begin++) {
            smp_gradient_node one[SMP_MAX_GRADIENT_NODES], all[SMP_MAX_GRADIENT_NODES];
            int n = 0;
            for (int end = begin + 1; end <= blocks; end++) {
                n = smp_gradient_append(blocks, one, n, (smp_gradient_node){end - 1, end});
                assert_int_equal(smp_gradient_nodes(blocks, begin, end, all), n);
                assert_memory_equal(one, all, (size_t)n * sizeof *one);
                for (int i = 0; i < n; i++) {
                    assert_true(sum_tree_has(blocks, one[i]));
                    assert_true(i == 0 || one[i - 1].end == one[i].begin);
                    assert_false(i > 0 && sum_tree_has(blocks, (smp_gradient_node){one[i - 1].begin,
                                                                                   one[i].end}));
                }
                assert_true(one[0].begin == begin && one[n - 1].end == end);
            }
        }
}

/* All blocks, in order, each in one replica; none has none, or two more than another. */
static void test_blocks_are_shared_out_evenly(void **state)
{
    (void)state;
    for (int blocks = 1; blocks <= MOST; blocks++)
        for (int ddp = 1; ddp <= blocks; ddp++) {
            const int share = smp_gradient_share(blocks, ddp);
            assert_int_equal(smp_gradient_begin(blocks, ddp, 0), 0);
            assert_int_equal(smp_gradient_begin(blocks, ddp, ddp), blocks);
            for (int replica = 0; replica < ddp; replica++) {
                const int own = smp_gradient_begin(blocks, ddp, replica + 1) -
                                smp_gradient_begin(blocks, ddp, replica);
                assert_true(own >= 1 && (own == share || (own == share - 1 && replica > 0)));
                assert_true(own == share || blocks % ddp != 0);
            }
            assert_int_equal(smp_gradient_microbatches(blocks, ddp, 3 * share), 3 * blocks);
        }
    assert_int_equal(smp_gradient_microbatches(4, 4, 7), 28);
}

/* Of all groups of `group` replicas the most nodes that one makes. */
static int most_sent(int blocks, int ddp, int group)
{
    int most = 1;
    for (int first = 0; first < ddp; first += group) {
        smp_gradient_node node[SMP_MAX_GRADIENT_NODES];
        int n = 0;
        const int end = smp_gradient_begin(blocks, ddp, first + group);
        for (int i = smp_gradient_begin(blocks, ddp, first); i < end; i++)
            n = smp_gradient_append(blocks, node, n, (smp_gradient_node){i, i + 1});
        most = n > most ? n : most;
    }
    return most;
}

/* Before each block of a replica, and after the last but for the one in the accumulator. */
static int most_waiting(int blocks, int ddp)
{
    int most = 0;
    for (int replica = 0; replica < ddp; replica++) {
        smp_gradient_node node[SMP_MAX_GRADIENT_NODES];
        int n = 0;
        const int end = smp_gradient_begin(blocks, ddp, replica + 1);
        for (int i = smp_gradient_begin(blocks, ddp, replica); i < end; i++) {
            most = n > most ? n : most;
            n = smp_gradient_append(blocks, node, n, (smp_gradient_node){i, i + 1});
        }
        most = n - 1 > most ? n - 1 : most;
    }
    return most;
}

static void test_levels_hold_what_waits_and_what_is_sent(void **state)
{
    (void)state;
    for (int blocks = 1; blocks <= MOST; blocks++)
        for (int ddp = 1; ddp <= blocks; ddp++) {
            for (int group = 1; group <= ddp; group++) {
                if (ddp % group != 0)
                    continue;
                const int waits = most_waiting(blocks, ddp), sent = most_sent(blocks, ddp, group);
                assert_int_equal(smp_gradient_most_nodes(blocks, ddp, group), sent);
                assert_int_equal(smp_gradient_levels(blocks, ddp, group),
                                 waits > sent - 1 ? waits : sent - 1);
            }
            assert_true(smp_gradient_is_node(blocks, ddp) ==
                        (blocks % ddp == 0 && most_sent(blocks, ddp, 1) == 1));
        }
    assert_int_equal(smp_gradient_levels(6, 6, 3), 1); /* what a group makes: 0-1 and 2 */
    assert_int_equal(smp_gradient_levels(SMP_MAX_GRADIENT_BLOCKS, 1, 1), 20);
}

static void test_any_ddp_up_to_the_blocks_is_one(void **state)
{
    (void)state;
    assert_int_equal(smp_gradient_blocks_check(12, 4, 3), SMP_OK);
    assert_int_equal(smp_gradient_blocks_check(12, 4, 4), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "4 replicas have 3 blocks each, expected a divisor"));
    assert_int_equal(smp_gradient_blocks_check(12, 5, 12), SMP_OK);
    assert_int_equal(smp_gradient_blocks_check(12, 5, 10), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "5 replicas have up to 3 blocks each"));
    assert_int_equal(smp_gradient_blocks_check(4, 5, 12), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "got 4 for 5 replicas, expected at least as many"));
    assert_int_equal(smp_gradient_hops_check(12, 6, 2), SMP_OK);
    assert_int_equal(smp_gradient_hops_check(12, 4, 0), SMP_OK);
    assert_int_equal(smp_gradient_hops_check(12, 4, 2), SMP_ERR_INPUT);
    assert_int_equal(smp_gradient_hops_check(8, 6, 2), SMP_ERR_INPUT); /* two blocks or one */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nodes_are_the_fewest_of_the_tree),
        cmocka_unit_test(test_blocks_are_shared_out_evenly),
        cmocka_unit_test(test_levels_hold_what_waits_and_what_is_sent),
        cmocka_unit_test(test_any_ddp_up_to_the_blocks_is_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
