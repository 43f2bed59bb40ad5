/* graph/base/units.c: sizes, rates and times, both ways. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "graph/base/text.h"

static void test_units_bytes(void **state)
{
    static const struct {
        const char *text;
        int64_t bytes; /* -1: refused */
    } cases[] = {
        {"0", 0},
        {"1024", 1024},
        {"80GB", 80000000000},
        {"512MiB", 536870912},
        {"1.5 KiB", 1536},
        {"274965987328B", 274965987328},
        {"9007199254740993", 9007199254740993}, /* above 2^53: exact */
        {"9223372036854775807", INT64_MAX},
        {"100TB", 100000000000000},
        {"2kB", 2000},
        {"1e9", 1000000000},
        {"1e3MB", 1000000000},
        {"7EB", 7000000000000000000},
        {"8EiB", -1},
        {"9223372036854775808", -1},
        {"-1", -1},
        {"-1GB", -1},
        {"", -1},
        {"GB", -1},
        {"80G", -1},
        {"80GBs", -1},
        {"80 apples", -1},
        {"1..5GB", -1},
        {"nan", -1},
        {"inf", -1},
        {"0x10", -1},
        {"1e999", -1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t bytes = -1;
        bool good = smp_parse_bytes(cases[i].text, &bytes);
        if (good != (cases[i].bytes >= 0) || bytes != cases[i].bytes)
            fail_msg("'%s': got %lld", cases[i].text, (long long)bytes);
    }
}

static void test_units_rates(void **state)
{
    double rate = 0;
    (void)state;
    assert_true(smp_parse_bytes_per_s("450GB/s", &rate) && rate == 450e9);
    assert_true(smp_parse_bytes_per_s("3.35TB/s", &rate) && rate == 3.35 * 1e12);
    assert_true(smp_parse_bytes_per_s("1GiB/s", &rate) && rate == 1073741824);
    assert_true(smp_parse_bytes_per_s("1000000TB/s", &rate) && rate == 1e18);
    assert_true(smp_parse_bytes_per_s("12.5", &rate) && rate == 12.5);
    assert_true(smp_parse_flops("989TFLOP/s", &rate) && rate == 989e12);
    assert_true(smp_parse_flops("60 GFLOPS", &rate) && rate == 60e9);
    assert_false(smp_parse_bytes_per_s("450GB", &rate));
    assert_false(smp_parse_bytes_per_s("450FLOP/s", &rate));
    assert_false(smp_parse_bytes_per_s("-1GB/s", &rate));
    assert_false(smp_parse_flops("989TB/s", &rate));
    assert_false(smp_parse_flops("1TiFLOP/s", &rate));
    assert_false(smp_parse_flops("fast", &rate));
    assert_true(rate == 60e9); /* untouched by the failures */
}

static void test_units_plain_numbers(void **state)
{
    double d = 0;
    int64_t i = 0;
    (void)state;
    assert_true(smp_parse_int("-9223372036854775808", &i) && i == INT64_MIN);
    assert_true(smp_parse_int("+17", &i) && i == 17);
    assert_false(smp_parse_int("9223372036854775808", &i));
    assert_false(smp_parse_int("-9223372036854775809", &i));
    assert_false(smp_parse_int("", &i) || smp_parse_int("-", &i) || smp_parse_int("1 ", &i) ||
                 smp_parse_int(" 1", &i) || smp_parse_int("1.0", &i) || smp_parse_int("0x1", &i));
    assert_true(smp_parse_double("-1.25e-3", &d) && d == -1.25e-3);
    assert_true(smp_parse_double(".5", &d) && d == 0.5);
    assert_false(smp_parse_double("", &d) || smp_parse_double("1e", &d) ||
                 smp_parse_double("1 ", &d) || smp_parse_double("nan", &d) ||
                 smp_parse_double("inf", &d) || smp_parse_double("1e999", &d) ||
                 smp_parse_double("0x1p3", &d) || smp_parse_double("1,5", &d));
}

static void test_units_format(void **state)
{
    char b[32];
    (void)state;
    assert_string_equal(smp_format_bytes(b, sizeof b, 0), "0 B");
    assert_string_equal(smp_format_bytes(b, sizeof b, 1023), "1023 B");
    assert_string_equal(smp_format_bytes(b, sizeof b, 1024), "1 KiB");
    assert_string_equal(smp_format_bytes(b, sizeof b, 1610612736), "1.5 GiB");
    assert_string_equal(smp_format_bytes(b, sizeof b, 1048575), "1 MiB");
    assert_string_equal(smp_format_bytes(b, sizeof b, -2048), "-2 KiB");
    assert_string_equal(smp_format_bytes(b, sizeof b, INT64_MAX), "8 EiB");
    assert_string_equal(smp_format_us(b, sizeof b, 12.34), "12.3 us");
    assert_string_equal(smp_format_us(b, sizeof b, 4560), "4.56 ms");
    assert_string_equal(smp_format_us(b, sizeof b, 1.2e6), "1.2 s");
    assert_string_equal(smp_format_us(b, sizeof b, 999.7), "1 ms");
    assert_string_equal(smp_format_us(b, sizeof b, 0), "0 us");
    assert_string_equal(smp_format_us(b, sizeof b, 1e12), "1000000 s");
    char tiny[4];
    assert_int_equal(strlen(smp_format_us(tiny, sizeof tiny, 1e300)), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_units_bytes),
        cmocka_unit_test(test_units_rates),
        cmocka_unit_test(test_units_plain_numbers),
        cmocka_unit_test(test_units_format),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
