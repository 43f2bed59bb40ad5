/* Parts of a weight against the map of every index, for random shapes, dimensions, blocks, devices
 * and ranges: places, counts, copies there and back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "exec/parts/weight_runs.h"
#include "graph/base/random.h"
#include "tests/graph/split/whole_index.h"

enum { ROUNDS = 400, MOST_DEVICES = 5 };

static uint64_t seed = 3;

static int64_t below(int64_t n)
{
    seed = smp_random_mix(seed + 1);
    return (int64_t)(seed % (uint64_t)n);
}

static int64_t place_of(const smp_param *p, int64_t e)
{
    return whole_index(&p->shape, p->part, e);
}

/* A random weight as device `index` of `devices` has it. */
static smp_param random_part(int devices)
{
    static const uint8_t ways[] = {SMP_SPLIT, SMP_SPLIT, SMP_SPLIT, SMP_WHOLE, SMP_SHARED};
    smp_param p = {.shape = {.n_dim = 1 + (int)below(4)}, .elements = 1};
    const int dim = (int)below(p.shape.n_dim), blocks = 1 + (int)below(3);
    for (int d = 0; d < p.shape.n_dim; d++)
        p.shape.dim[d] = (1 + below(5)) * (d == dim ? blocks : 1);
    for (int d = 0; d < p.shape.n_dim; d++)
        p.elements *= p.shape.dim[d];
    p.part = (smp_part){{ways[below(5)], (int8_t)dim, (int8_t)blocks}, 0, devices};
    return p;
}

/* Every place of the whole belongs to one element of one device, and every count agrees. */
static void check_places(smp_param *p)
{
    const bool is_split = p->part.spread.way == SMP_SPLIT;
    const int64_t whole = smp__runs_whole(p);
    int *owners = calloc((size_t)whole, sizeof *owners);
    assert_non_null(owners);
    assert_int_equal(whole, p->elements * (is_split ? p->part.count : 1));
    for (p->part.index = 0; p->part.index < p->part.count; p->part.index++) {
        const smp__runs runs = smp__runs_of(p);
        int64_t before = 0, e = 0;
        for (int64_t place = 0; place <= whole; place++) {
            assert_int_equal(smp__runs_before(runs, place), before);
            if (before < p->elements && place_of(p, before) == place) {
                owners[place]++;
                before++;
            }
        }
        for (int64_t left = 0; e < p->elements; e++, left--) {
            assert_int_equal(smp__runs_place(runs, e), place_of(p, e));
            if (left == 0)
                left = smp__runs_left(runs, e);
            assert_int_equal(smp__runs_left(runs, e), left);
            assert_true(left > 0);
            if (left > 1)
                assert_int_equal(place_of(p, e + 1), place_of(p, e) + 1);
        }
    }
    for (int64_t place = 0; place < whole; place++)
        assert_int_equal(owners[place], is_split ? 1 : p->part.count);
    free(owners);
}

/* A range of a part goes through an array that holds just what it needs of the whole. */
static void check_copies(smp_param *p)
{
    float *part = malloc((size_t)p->elements * sizeof *part);
    float *again = malloc((size_t)p->elements * sizeof *again);
    assert_true(part && again);
    for (int64_t e = 0; e < p->elements; e++)
        part[e] = (float)e;
    for (p->part.index = 0; p->part.index < p->part.count; p->part.index++) {
        const smp__runs runs = smp__runs_of(p);
        const int64_t first = below(p->elements), n = below(p->elements - first + 1);
        const int64_t begin = place_of(p, first),
                      end = n > 0 ? place_of(p, first + n - 1) + 1 : begin;
        float *whole = malloc((size_t)(end - begin) * sizeof *whole + 1);
        assert_non_null(whole);
        for (int64_t at = begin; at < end; at++)
            whole[at - begin] = -1;
        smp__runs_put(runs, part + first, first, n, whole, begin);
        for (int64_t at = begin, e = first; at < end; at++) {
            const bool own = e < first + n && place_of(p, e) == at;
            assert_true(whole[at - begin] == (own ? (float)e : -1));
            e += own;
        }
        for (int64_t e = 0; e < p->elements; e++)
            again[e] = -2;
        smp__runs_take(runs, again + first, first, n, whole, begin);
        for (int64_t e = 0; e < p->elements; e++)
            assert_true(again[e] == (e >= first && e < first + n ? (float)e : -2));
        free(whole);
    }
    free(part);
    free(again);
}

static void test_runs_places(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        smp_param p = random_part(1 + (int)below(MOST_DEVICES));
        check_places(&p);
    }
}

static void test_runs_copies(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        smp_param p = random_part(1 + (int)below(MOST_DEVICES));
        check_copies(&p);
    }
}

/* Of the whole graph's weights: no part at all. */
static void test_runs_of_a_whole_weight(void **state)
{
    (void)state;
    const smp_param p = {.shape = {2, {3, 4}}, .elements = 12};
    const smp__runs runs = smp__runs_of(&p);
    assert_int_equal(runs.count, 1);
    assert_int_equal(smp__runs_whole(&p), 12);
    for (int64_t e = 0; e < 12; e++) {
        assert_int_equal(smp__runs_place(runs, e), e);
        assert_int_equal(smp__runs_before(runs, e), e);
        assert_int_equal(smp__runs_left(runs, e), 12 - e);
    }
    assert_int_equal(smp__runs_before(runs, 12), 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs_places),
        cmocka_unit_test(test_runs_copies),
        cmocka_unit_test(test_runs_of_a_whole_weight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
