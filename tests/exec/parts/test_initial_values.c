/* Initial values: those of a part are those of the whole at its places, however many at a time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "exec/parts/initial_values.h"
#include "graph/base/random.h"
#include "tests/graph/split/whole_index.h"

enum { MOST = 4096 };

static void check(smp_param *whole, int dim, int blocks, int devices, uint64_t *random)
{
    static float all[MOST], own[MOST];
    smp__initial_values(whole, 9, 0, whole->elements, all);
    for (int index = 0; index < devices; index++) {
        smp_param part = *whole;
        part.part = (smp_part){{SMP_SPLIT, (int8_t)dim, (int8_t)blocks}, index, devices};
        part.shape.dim[dim] /= devices;
        part.elements /= devices;
        for (int64_t begin = 0, end; begin < part.elements; begin = end) {
            *random = smp_random_mix(*random + 1);
            end = begin + 1 + (int64_t)(*random % 37);
            end = end < part.elements ? end : part.elements;
            smp__initial_values(&part, 9, begin, end, own + begin);
        }
        for (int64_t e = 0; e < part.elements; e++)
            assert_true(own[e] == all[whole_index(&part.shape, part.part, e)]);
    }
}

static void test_parts(void **state)
{
    (void)state;
    uint64_t random = 1;
    for (int round = 0; round < 60; round++) {
        smp_param whole = {.shape = {3, {6, 12, 18}},
                           .elements = 6 * 12 * 18,
                           .init = round % 3 ? SMP_INIT_NORMAL : SMP_INIT_UNIFORM,
                           .init_scale = 0.5f,
                           .number = round};
        check(&whole, round % 3, round % 2 ? 3 : 1, 2, &random);
        check(&whole, round % 2, 1, 3, &random);
    }
}

static void test_kinds(void **state)
{
    (void)state;
    float value[4] = {5, 5, 5, 5}, other[4];
    smp_param p = {.shape = {1, {4}}, .elements = 4, .init = SMP_INIT_ONE, .init_scale = 1};
    smp__initial_values(&p, 1, 0, 4, value);
    for (int i = 0; i < 4; i++)
        assert_true(value[i] == 1);
    p.init = SMP_INIT_ZERO;
    smp__initial_values(&p, 1, 1, 3, value);
    assert_true(value[0] == 0 && value[1] == 0 && value[2] == 1);
    p.init = SMP_INIT_UNIFORM;
    smp__initial_values(&p, 1, 0, 4, value);
    p.number = 1; /* another weight, then another seed: other values */
    smp__initial_values(&p, 1, 0, 4, other);
    assert_true(memcmp(value, other, sizeof value) != 0);
    smp__initial_values(&p, 2, 0, 4, value);
    assert_true(memcmp(value, other, sizeof value) != 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_kinds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
