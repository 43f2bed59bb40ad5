/* Floats of 8 bits against their definition: every code, what lies between two and beside the
 * middle, what is too large or no number; scales. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/graph/math/fp8_values.h"

static const smp_fp8 formats[] = {SMP_E4M3, SMP_E5M2};

static void check(smp_fp8 format, float x, int size)
{
    for (int negative = 0; negative < 2; negative++) {
        const float value = negative ? -x : x;
        const float want = copysignf((float)fp8_value(format, size), value);
        const float got = smp_fp8_round(format, value);
        const int code = smp_fp8_encode(format, value);
        if (memcmp(&got, &want, sizeof got) != 0 || code != (size | negative << 7))
            fail_msg("%s: %a is %a, code 0x%02x; expected %a, code 0x%02x",
                     format == SMP_E4M3 ? "E4M3" : "E5M2", (double)value, (double)got,
                     (unsigned)code, (double)want, (unsigned)(size | negative << 7));
    }
}

static void test_fp8_has_every_code(void **state)
{
    (void)state;
    assert_true(smp_fp8_largest(SMP_E4M3) == 448 && smp_fp8_largest(SMP_E5M2) == 57344);
    for (int f = 0; f < 2; f++)
        for (int code = 0; code < 256; code++) {
            const int size = code & 0x7f;
            const double value = (double)smp_fp8_decode(formats[f], (uint8_t)code);
            if (size < fp8_sizes(formats[f]))
                assert_true(value == (code < 128 ? 1 : -1) * fp8_value(formats[f], size));
            else if (formats[f] == SMP_E5M2 && size == 0x7c)
                assert_true(isinf(value) && (value < 0) == (code >= 128));
            else
                assert_true(isnan(value));
        }
    assert_true(signbit(smp_fp8_decode(SMP_E4M3, 0x80)));
}

static void test_fp8_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (int f = 0; f < 2; f++) {
        const int last = fp8_sizes(formats[f]) - 1;
        for (int size = 0; size < last; size++) {
            const float low = (float)fp8_value(formats[f], size);
            const float high = (float)fp8_value(formats[f], size + 1), middle = (low + high) / 2;
            check(formats[f], low, size);
            check(formats[f], nextafterf(low, high), size);
            check(formats[f], nextafterf(middle, low), size);
            check(formats[f], middle, size % 2 == 0 ? size : size + 1);
            check(formats[f], nextafterf(middle, high), size + 1);
            check(formats[f], nextafterf(high, low), size + 1);
        }
        const float beyond[] = {1.01f, 1.0625f, 1.07f, 1.5f, 8.0f, 1e10f, 1e30f};
        const float largest = (float)fp8_value(formats[f], last);
        check(formats[f], largest, last);
        for (int i = 0; i < 7; i++)
            check(formats[f], largest * beyond[i], last);
        check(formats[f], INFINITY, last);
        check(formats[f], 1e-30f, 0);
        check(formats[f], 0x1p-149f, 0);
        assert_true(isnan(smp_fp8_round(formats[f], NAN)));
        assert_int_equal(smp_fp8_encode(formats[f], NAN) & 0x7f, 0x7f);
    }
}

/* Powers of two, inverses of each other; twice as much would not fit. */
static void test_fp8_scales_are_the_largest_that_fit(void **state)
{
    (void)state;
    for (int f = 0; f < 2; f++) {
        const float largest = smp_fp8_largest(formats[f]);
        for (uint32_t bits = 1; bits < 0x7f80; bits++) { /* of bf16 */
            const float value = smp__fp8_of_bits(bits << 16);
            const smp_fp8_scale s = smp_fp8_scale_of(formats[f], value);
            int exponent;
            assert_true(frexpf(s.to, &exponent) == 0.5f && s.to * s.from == 1);
            assert_true(value * s.to <= largest && s.from >= 0x1p-110f);
            assert_true((double)value * (double)s.to * 2 > (double)largest || s.to == 0x1p110f);
        }
        const smp_fp8_scale none = smp_fp8_scale_of(formats[f], 0);
        assert_true(none.to == 1 && none.from == 1);
        assert_true(isnan(smp_fp8_scale_of(formats[f], INFINITY).from));
        assert_true(isnan(smp_fp8_scale_of(formats[f], NAN).from));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fp8_has_every_code),
        cmocka_unit_test(test_fp8_rounds_to_nearest_even),
        cmocka_unit_test(test_fp8_scales_are_the_largest_that_fit),
    };
    return cmocka_run_group_tests_name("fp8", tests, NULL, NULL);
}
