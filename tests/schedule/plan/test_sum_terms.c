/* Terms of sums over replicas, in one sum and in two, against one process that has all blocks: to
 * the bit, for every number of blocks up to 30, every ddp and every shard group. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "schedule/plan/sum_terms.h"
#include "tests/sum_tree.h"

enum { MOST = 30 };

static smp_gradient_node leaf[MOST];
static float block[MOST];

static void draw_blocks(int blocks)
{
    for (int i = 0; i < blocks; i++) {
        leaf[i] = (smp_gradient_node){i, i + 1};
        block[i] = 1.0f / (float)(3 + 7 * i) - 0.3f * (float)(i % 3);
    }
}

/* The terms that members bring: whole nodes. Returns how many. */
static int bring(const smp_sum_terms *t, int blocks, int ddp, smp_sum_members of, float *term)
{
    for (int member = 0; member < t->members; member++) {
        smp_gradient_node node[SMP_MAX_GRADIENT_NODES];
        const int first = of.first + member * of.each;
        const int n = smp_gradient_nodes(blocks, smp_gradient_begin(blocks, ddp, first),
                                         smp_gradient_begin(blocks, ddp, first + of.each), node);
        assert_int_equal(smp__sum_terms_of(t, member), n);
        for (int i = 0; i < n; i++)
            term[t->first[member] + i] = sum_tree_value(leaf, block, blocks, node[i]);
        assert_true(n <= t->width);
    }
    assert_true(t->n_left <= t->width && t->n_add + t->n_left == t->n);
    return t->n;
}

static void add_up(const smp_sum_terms *t, float *term)
{
    for (int i = 0; i < t->n_add; i++)
        term[t->to[i]] += term[t->from[i]];
}

static float whole_of(int blocks)
{
    return sum_tree_value(leaf, block, blocks, (smp_gradient_node){0, blocks});
}

static void test_one_sum_has_the_bits_of_one_process(void **state)
{
    (void)state;
    for (int blocks = 1; blocks <= MOST; blocks++) {
        draw_blocks(blocks);
        for (int ddp = 1; ddp <= blocks; ddp++) {
            const smp_sum_members all = {.n = ddp, .each = 1};
            smp_sum_terms t;
            float term[MOST];
            assert_int_equal(smp__sum_terms_make(&t, blocks, ddp, all), SMP_OK);
            bring(&t, blocks, ddp, all, term);
            add_up(&t, term);
            assert_int_equal(t.n_left, 1);
            const float whole = whole_of(blocks);
            assert_memory_equal(&term[t.left[0]], &whole, sizeof whole);
            smp__sum_terms_free(&t);
        }
    }
}

/* In groups of `shard` replicas, then of what each group has left. */
static void check_groups(int blocks, int ddp, int shard)
{
    const smp_sum_members groups = {.n = ddp / shard, .each = shard};
    smp_sum_terms across;
    float left[MOST];
    assert_int_equal(smp__sum_terms_make(&across, blocks, ddp, groups), SMP_OK);
    for (int g = 0; g < groups.n; g++) {
        const smp_sum_members inside = {.n = shard, .first = g * shard, .each = 1};
        smp_sum_terms t;
        float term[MOST];
        assert_int_equal(smp__sum_terms_make(&t, blocks, ddp, inside), SMP_OK);
        bring(&t, blocks, ddp, inside, term);
        add_up(&t, term);
        assert_int_equal(t.n_left, smp__sum_terms_of(&across, g));
        for (int i = 0; i < t.n_left; i++)
            left[across.first[g] + i] = term[t.left[i]];
        smp__sum_terms_free(&t);
    }
    add_up(&across, left);
    const float whole = whole_of(blocks);
    assert_int_equal(across.n_left, 1);
    assert_memory_equal(&left[across.left[0]], &whole, sizeof whole);
    smp__sum_terms_free(&across);
}

static void test_groups_have_the_bits_of_one_process(void **state)
{
    (void)state;
    for (int blocks = 1; blocks <= MOST; blocks++) {
        draw_blocks(blocks);
        for (int ddp = 1; ddp <= blocks; ddp++)
            for (int shard = 1; shard <= ddp; shard++)
                if (ddp % shard == 0)
                    check_groups(blocks, ddp, shard);
    }
}

static void test_pieces_have_room_for_every_array(void **state)
{
    (void)state;
    smp_sum_terms t;
    assert_int_equal(smp__sum_terms_make(&t, 12, 4, (smp_sum_members){.n = 4, .each = 1}),
                     SMP_OK); /* 0-1 2 | 3 4-5 | 6-7 8 | ... */
    assert_int_equal(t.n, 8);
    assert_int_equal(t.width, 2);
    assert_int_equal(smp__sum_terms_piece(&t, 1000), 96);
    assert_int_equal(smp__sum_terms_piece(&t, 100), 12);
    smp__sum_terms_free(&t);
    smp__sum_terms_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_sum_has_the_bits_of_one_process),
        cmocka_unit_test(test_groups_have_the_bits_of_one_process),
        cmocka_unit_test(test_pieces_have_room_for_every_array),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
