/* graph/base/random.h: known answers of Philox4x32-10 and the shape of its uniform numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "graph/base/random.h"

/* The known-answer vectors that the authors publish with their library, Random123. */
static void test_random_philox_known_answers(void **state)
{
    static const struct {
        uint64_t key, low, high;
        uint32_t expected[4];
    } cases[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822,
         0x85a308d3243f6a88,
         0x0370734413198a2e,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    (void)state;
    for (int i = 0; i < 3; i++) {
        smp_random4 r = smp_random_philox(cases[i].key, cases[i].low, cases[i].high);
        for (int w = 0; w < 4; w++)
            assert_int_equal(r.v[w], cases[i].expected[w]);
    }
}

static void test_random_uniform_range_and_mean(void **state)
{
    enum { DRAWS = 40000 };
    double sum = 0;
    int below_tenth = 0;
    (void)state;
    assert_true(smp_random_uniform(0) == 0);
    assert_true(smp_random_uniform(UINT32_MAX) < 1);
    for (uint64_t i = 0; i < DRAWS / 4; i++) {
        smp_random4 r = smp_random_philox(42, i, 0);
        for (int w = 0; w < 4; w++) {
            float u = smp_random_uniform(r.v[w]);
            assert_true(u >= 0 && u < 1);
            sum += u;
            below_tenth += u < 0.1f;
        }
    }
    /* Five standard deviations. */
    assert_true(sum / DRAWS > 0.4927 && sum / DRAWS < 0.5073);
    assert_in_range(below_tenth, 3700, 4300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_philox_known_answers),
        cmocka_unit_test(test_random_uniform_range_and_mean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
