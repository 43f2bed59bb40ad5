/* graph/base/text.h: string builder, map, nearest name, hash, numbers as text. */
#include <float.h>
#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/base/random.h"
#include "graph/base/text.h"

static void test_text_append_grows(void **state)
{
    smp_text text = {0};
    (void)state;
    for (int i = 0; i < 3000; i++)
        smp_text_append(&text, "%d,", i % 10);
    smp_text_append(&text, "%0500d", 7);
    assert_false(text.failed);
    assert_int_equal(text.length, 6500);
    assert_int_equal(strlen(text.data), 6500);
    assert_memory_equal(text.data, "0,1,2,3,", 8);
    smp_text_append_bytes(&text, "xyz", 2);
    smp_text_append_bytes(&text, NULL, 0);
    assert_string_equal(text.data + 6500, "xy");
    smp_text_free(&text);
    assert_null(text.data);
    assert_int_equal(text.length, 0);
}

static void expect_double(double value, const char *expected)
{
    smp_text text = {0};
    smp_text_append_double(&text, value);
    assert_string_equal(text.data, expected);
    smp_text_free(&text);
}

static void test_text_double_is_short_and_exact(void **state)
{
    (void)state;
    expect_double(0.1, "0.1");
    expect_double(1e20, "1e+20");
    expect_double(123456789, "123456789");
    expect_double(0.1 + 0.2, "0.30000000000000004");
    expect_double(-2.5, "-2.5");
    expect_double(0, "0");
    expect_double(NAN, "null");
    expect_double(INFINITY, "null");
    uint64_t r = 1;
    for (int i = 0; i < 20000; i++) {
        r = smp_random_mix(r);
        double value;
        memcpy(&value, &r, sizeof value);
        if (!isfinite(value))
            continue;
        smp_text text = {0};
        smp_text_append_double(&text, value);
        double back;
        assert_true(smp_parse_double(text.data, &back));
        assert_memory_equal(&back, &value, sizeof back);
        smp_text_free(&text);
    }
}

static void test_text_quoted_escapes(void **state)
{
    smp_text text = {0};
    (void)state;
    smp_text_append_quoted(&text, "a\"b\\c\n\t\x01 \xc3\xa9");
    assert_string_equal(text.data, "\"a\\\"b\\\\c\\n\\t\\u0001 \xc3\xa9\"");
    smp_text_free(&text);
}

static void test_map_holds_what_was_set(void **state)
{
    enum { KEYS = 5000 };
    static char key[KEYS][16];
    (void)state;
    smp_map *map = smp_map_create();
    int64_t value = -5;
    assert_false(smp_map_get(map, "absent", &value));
    assert_int_equal(value, -5);
    for (int i = 0; i < KEYS; i++) {
        snprintf(key[i], sizeof key[i], "k%d", i);
        assert_int_equal(smp_map_set(map, key[i], i), SMP_OK);
    }
    assert_int_equal(smp_map_set(map, "k77", 1000000), SMP_OK); /* replaced */
    for (int i = 0; i < KEYS; i++) {
        assert_true(smp_map_get(map, key[i], &value));
        assert_int_equal(value, i == 77 ? 1000000 : i);
    }
    assert_false(smp_map_get(map, "k5000", &value));
    assert_int_equal(smp_map_set(map, "", 9), SMP_OK);
    assert_true(smp_map_get(map, "", &value));
    assert_int_equal(value, 9);
    smp_map_destroy(map);
    smp_map_destroy(NULL);
}

static void test_nearest_finds_misspellings_only(void **state)
{
    static const char *const names[] = {"linear", "layernorm", "add", "mul", "attention", "out"};
    enum { N = sizeof names / sizeof names[0] };
    (void)state;
    assert_string_equal(smp_nearest("linaer", names, N), "linear"); /* a swap */
    assert_string_equal(smp_nearest("Linear", names, N), "linear");
    assert_string_equal(smp_nearest("layer_norm", names, N), "layernorm");
    assert_string_equal(smp_nearest("atention", names, N), "attention");
    assert_string_equal(smp_nearest("ad", names, N), "add");
    assert_null(smp_nearest("convolution", names, N));
    assert_null(smp_nearest("xyz", names, N));
    assert_null(smp_nearest("", names, N));
    assert_null(smp_nearest("linear", names, 0));
    static const char *const equal[] = {"abcd1", "abcd2"};
    assert_string_equal(smp_nearest("abcd3", equal, 2), "abcd1"); /* the first of equals */
    char long_name[300];
    memset(long_name, 'l', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    assert_null(smp_nearest(long_name, names, N));
}

static void test_hash_depends_on_everything(void **state)
{
    (void)state;
    assert_int_equal(smp_hash(1, "abc", 3), smp_hash(1, "abc", 3));
    assert_true(smp_hash(1, "abc", 3) != smp_hash(2, "abc", 3));
    assert_true(smp_hash(1, "abc", 3) != smp_hash(1, "abd", 3));
    assert_true(smp_hash(1, "abc", 3) != smp_hash(1, "abc", 2));
    /* Low bits index tables: 4096 similar names into 4096 slots must not pile up. */
    static int slot[4096];
    int most = 0;
    for (int i = 0; i < 4096; i++) {
        char name[32];
        int n = snprintf(name, sizeof name, "h%d.mlp.fc", i);
        int *s = &slot[smp_hash(0, name, (size_t)n) & 4095];
        most = ++*s > most ? *s : most;
    }
    assert_in_range(most, 1, 9);
}

static void test_numbers_ignore_the_locale(void **state)
{
    (void)state;
    const char *names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8"};
    bool set = false;
    for (int i = 0; i < 3 && !set; i++)
        set = setlocale(LC_ALL, names[i]) != NULL;
    if (!set)
        skip();
    smp_text text = {0};
    double value = 0;
    smp_text_append_double(&text, 1.5);
    smp_text_append(&text, " %.1f", 2.5);
    bool parsed = smp_parse_double("3.5", &value);
    setlocale(LC_ALL, "C");
    assert_true(parsed && value == 3.5);
    assert_string_equal(text.data, "1.5 2.5");
    smp_text_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_append_grows),
        cmocka_unit_test(test_text_double_is_short_and_exact),
        cmocka_unit_test(test_text_quoted_escapes),
        cmocka_unit_test(test_map_holds_what_was_set),
        cmocka_unit_test(test_nearest_finds_misspellings_only),
        cmocka_unit_test(test_hash_depends_on_everything),
        cmocka_unit_test(test_numbers_ignore_the_locale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
