/* The planning clock goes on with work alone, unless a ceiling in processor time pushes it on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "graph/base/clock.h"

static void use_core(double seconds)
{
    const double begin_s = smp_clock_thread_s();
    while (smp_clock_thread_s() - begin_s < seconds)
        ;
}

static void test_work_is_the_clock(void **state)
{
    (void)state;
    const double begin_s = smp_work_s();
    assert_true(begin_s > 0.0); /* 0 is no deadline */
    assert_false(smp_work_past(0.0));
    use_core(0.01);
    assert_true(smp_work_s() == begin_s);
    double passed_s[SMP_N_WORK];
    for (int kind = 0; kind < SMP_N_WORK; kind++) {
        const double before_s = smp_work_s();
        smp_work_count((smp_work_kind)kind, 1e6);
        passed_s[kind] = smp_work_s() - before_s;
        assert_true(passed_s[kind] > 0.0);
        smp_work_count((smp_work_kind)kind, 2e6);
        assert_float_equal(smp_work_s() - before_s, 3.0 * passed_s[kind], 1e-6);
    }
    assert_true(smp_work_past(begin_s + passed_s[0]));
    assert_false(smp_work_past(smp_work_s() + 1e-6));
}

static void test_work_ceiling_pushes_the_clock(void **state)
{
    (void)state;
    const double begin_s = smp_work_s();
    smp_work_limit(100.0, 0.02);
    assert_false(smp_work_is_late());
    smp_work_count(SMP_WORK_OP, 1e8); /* ahead of what the ceiling has let pass */
    assert_false(smp_work_past(begin_s + 99.0));
    use_core(0.02);
    smp_work_count(SMP_WORK_OP, 1e6);
    assert_true(smp_work_past(begin_s + 100.0) && smp_work_is_late());
    smp_work_limit(100.0, 0.0);
    const double now_s = smp_work_s();
    use_core(0.02);
    smp_work_count(SMP_WORK_OP, 1.0);
    assert_true(smp_work_s() - now_s < 1e-3 && !smp_work_is_late());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_work_is_the_clock),
        cmocka_unit_test(test_work_ceiling_pushes_the_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
