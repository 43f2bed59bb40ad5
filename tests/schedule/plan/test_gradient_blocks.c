/* The tree of gradient blocks against its definition, and who has which part of it: every number of
 * blocks up to 40 and every ddp that divides it. */
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

static void test_levels_hold_what_waits_and_what_is_sent(void **state)
{
    (void)state;
    for (int blocks = 1; blocks <= MOST; blocks++)
        for (int ddp = 1; ddp <= blocks; ddp++) {
            const int own = blocks / ddp;
            if (blocks % ddp != 0)
                continue;
            int most = 0, sent = 1;
            for (int replica = 0; replica < ddp; replica++) {
                smp_gradient_node node[SMP_MAX_GRADIENT_NODES];
                int n = 0;
                for (int i = replica * own; i < (replica + 1) * own; i++) {
                    most = n > most ? n : most;
                    n = smp_gradient_append(blocks, node, n, (smp_gradient_node){i, i + 1});
                }
                most = n - 1 > most ? n - 1 : most;
                sent = n > sent ? n : sent;
            }
            assert_int_equal(smp_gradient_levels(blocks, ddp, 1), most);
            assert_int_equal(smp_gradient_most_nodes(blocks, own), sent);
            assert_true(smp_gradient_is_node(blocks, ddp) == (sent == 1));
        }
    assert_int_equal(smp_gradient_levels(6, 6, 3), 1); /* what a group makes: 0-1 and 2 */
    assert_int_equal(smp_gradient_levels(SMP_MAX_GRADIENT_BLOCKS, 1, 1), 20);
}

static void test_every_divisor_is_a_ddp(void **state)
{
    (void)state;
    assert_int_equal(smp_gradient_blocks_check(12, 4, 3), SMP_OK);
    assert_int_equal(smp_gradient_blocks_check(12, 4, 4), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "4 replicas have 3 blocks each, expected a divisor"));
    assert_int_equal(smp_gradient_blocks_check(12, 5, 12), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "so many blocks go with ddp 1, 2, 3, 4, 6, 12"));
    assert_int_equal(smp_gradient_hops_check(12, 6, 2), SMP_OK);
    assert_int_equal(smp_gradient_hops_check(12, 4, 0), SMP_OK);
    assert_int_equal(smp_gradient_hops_check(12, 4, 2), SMP_ERR_INPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nodes_are_the_fewest_of_the_tree),
        cmocka_unit_test(test_levels_hold_what_waits_and_what_is_sent),
        cmocka_unit_test(test_every_divisor_is_a_ddp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
