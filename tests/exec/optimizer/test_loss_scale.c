/* The loss scale: the rule against a plain one, over random overflows, and what options say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "exec/optimizer/loss_scale.h"
#include "graph/base/random.h"

static smp_optimizer_options options_of(const char *loss_scale)
{
    return (smp_optimizer_options){.loss_scale = loss_scale,
                                   .loss_scale_init = 65536.0f,
                                   .scale_window = 1000,
                                   .min_scale = 1.0f,
                                   .delayed_shift = 2};
}

/* Written by the numbers of the step and of the last overflow. */
static void test_loss_scale_follows_the_rule(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 200; round++) {
        smp_optimizer_options o = options_of("auto");
        const uint64_t mix = smp_random_mix(round);
        o.scale_window = 1 + (int64_t)(mix % 7);
        o.delayed_shift = 1 + (int)(mix >> 8 & 3);
        o.min_scale = mix >> 16 & 1 ? 1.0f : 4096.0f;
        smp_loss_scaling scaling;
        assert_int_equal(smp_loss_scaling_read(&o, SMP_PRECISION_FP32, &scaling), SMP_OK);
        smp_loss_scale got = smp_loss_scale_begin(&scaling);
        double scale = 65536;
        int64_t last = -1;
        int hysteresis = o.delayed_shift;
        for (int64_t step = 0; step < 300; step++) {
            const bool overflowed = smp_random_mix(round * 1000 + (uint64_t)step) % 5 == 0;
            assert_true((double)got.scale == scale);
            assert_true(smp_loss_scale_can_fall(&scaling, got) == (scale > (double)o.min_scale));
            if (overflowed) {
                if (hysteresis == 1)
                    scale = scale / 2 < (double)o.min_scale ? (double)o.min_scale : scale / 2;
                else
                    hysteresis--;
                last = step;
            } else if ((step - last) % o.scale_window == 0) {
                hysteresis = o.delayed_shift;
                scale = scale < 0x1p100 ? 2 * scale : scale;
            }
            smp_loss_scale_next(&scaling, overflowed, &got);
        }
    }
}

static void test_loss_scale_stays(void **state)
{
    (void)state;
    smp_loss_scaling scaling;
    smp_optimizer_options o = options_of("3.5");
    assert_int_equal(smp_loss_scaling_read(&o, SMP_PRECISION_FP16, &scaling), SMP_OK);
    smp_loss_scale scale = smp_loss_scale_begin(&scaling);
    for (int i = 0; i < 2000; i++)
        smp_loss_scale_next(&scaling, i % 2 == 0, &scale);
    assert_true(scaling.on && scale.scale == 3.5f && !smp_loss_scale_can_fall(&scaling, scale));
    o.loss_scale = "auto";
    o.scale_window = 1;
    o.delayed_shift = 1;
    assert_int_equal(smp_loss_scaling_read(&o, SMP_PRECISION_FP32, &scaling), SMP_OK);
    scale = smp_loss_scale_begin(&scaling);
    for (int i = 0; i < 300; i++)
        smp_loss_scale_next(&scaling, false, &scale);
    assert_true(scale.scale == 0x1p100f);
    for (int i = 0; i < 300; i++)
        smp_loss_scale_next(&scaling, true, &scale);
    assert_true(scale.scale == 1.0f);
}

static void test_loss_scale_defaults(void **state)
{
    (void)state;
    const smp_optimizer_options o = options_of(NULL);
    for (int p = 0; p < SMP_N_PRECISION; p++) {
        smp_loss_scaling scaling;
        assert_int_equal(smp_loss_scaling_read(&o, (smp_precision)p, &scaling), SMP_OK);
        assert_true(scaling.on == (p == SMP_PRECISION_FP16));
        assert_true(scaling.dynamic == scaling.on);
        assert_true(smp_loss_scale_begin(&scaling).scale == (scaling.on ? 65536.0f : 1.0f));
    }
}

/* A checkpoint of a job with other options. */
static void test_loss_scale_resumes_within_options(void **state)
{
    (void)state;
    smp_loss_scaling scaling;
    smp_optimizer_options o = options_of("auto");
    o.min_scale = 8.0f;
    o.scale_window = 10;
    assert_int_equal(smp_loss_scaling_read(&o, SMP_PRECISION_FP16, &scaling), SMP_OK);
    smp_loss_scale scale = smp_loss_scale_resume(&scaling, (smp_loss_scale){2.0f, 500, 4});
    assert_true(scale.scale == 8.0f && scale.good == 9 && scale.left == 2);
    scale = smp_loss_scale_resume(&scaling, (smp_loss_scale){64.0f, 3, 1});
    assert_true(scale.scale == 64.0f && scale.good == 3 && scale.left == 1);
}

static void assert_refused(smp_optimizer_options o, const char *message)
{
    smp_loss_scaling scaling;
    assert_int_equal(smp_loss_scaling_read(&o, SMP_PRECISION_FP16, &scaling), SMP_ERR_INPUT);
    if (!strstr(smp_last_error(), message))
        fail_msg("'%s' is not in '%s'", message, smp_last_error());
}

static void test_loss_scale_refuses(void **state)
{
    (void)state;
    static const char *const names[] = {"", "on", "0", "-1", "nan", "1e39", "8x"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_refused(options_of(names[i]), "expected auto, off, or a number from");
    smp_optimizer_options o = options_of("auto");
    o.loss_scale_init = 0.0f;
    assert_refused(o, "loss scale at first 0");
    o = options_of("auto");
    o.min_scale = 1e6f;
    assert_refused(o, "least loss scale 1e+06");
    o = options_of("auto");
    o.scale_window = 0;
    assert_refused(o, "scale window 0");
    o = options_of("auto");
    o.delayed_shift = 0;
    assert_refused(o, "delayed shift 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss_scale_follows_the_rule),
        cmocka_unit_test(test_loss_scale_stays),
        cmocka_unit_test(test_loss_scale_defaults),
        cmocka_unit_test(test_loss_scale_resumes_within_options),
        cmocka_unit_test(test_loss_scale_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
