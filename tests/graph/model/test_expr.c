/* graph/model/expr.h: values, precedence, and the place of every error. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "graph/model/expr.h"
#include "graph/base/random.h"

static bool look_up(void *context, const char *name, size_t length, smp_expr_name *out)
{
    static const int64_t d = 128, big = INT64_MIN, list[] = {2, 30, -4};
    (void)context;
    if (length == 1 && name[0] == 'd')
        *out = (smp_expr_name){&d, 0};
    else if (length == 5 && memcmp(name, "big_1", 5) == 0)
        *out = (smp_expr_name){&big, 0};
    else if (length == 1 && name[0] == 'l')
        *out = (smp_expr_name){list, 3};
    else
        return false;
    return true;
}

static const smp_where where = {"m.yaml", 4, 10};

static void test_expr_values(void **state)
{
    static const struct {
        const char *text;
        int64_t value;
    } cases[] = {
        {"7", 7},
        {"3*d", 384},
        {" 1 + 2 * 3 ", 7},
        {"(1+2)*3", 9},
        {"10-4-3", 3},
        {"100/10/5", 2},
        {"7/2", 3},
        {"-7/2", -3},
        {"2*-3", -6},
        {"--5", 5},
        {"-(d - 130)", 2},
        {"d/4*2+d", 192},
        {"big_1 + 1", INT64_MIN + 1},
        {"9223372036854775807", INT64_MAX},
        {"((((((1))))))", 1},
        {"l[1]", 30},
        {"-l [ l[0] ] * 2", 8},
        {"l[d / 128] / l[0]", 15},
        {"d == 128", 1},
        {"d != 128", 0},
        {"d==127", 0},
        {"d!=127", 1},
        {"1 + 1 < 2", 0},
        {"1 < 1 + 1", 1},
        {"2 <= 2", 1},
        {"3 <= 2", 0},
        {"3 > 2", 1},
        {"2 > 2", 0},
        {"2 >= 2", 1},
        {"1>=2", 0},
        {"(d < 1) + (l[0] == 2) * 7", 7},
        {"l[d > 100]", 30},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t value = 0;
        if (smp_expr_eval(cases[i].text, where, look_up, NULL, &value) != SMP_OK)
            fail_msg("%s", smp_last_error());
        if (value != cases[i].value)
            fail_msg("'%s': got %lld", cases[i].text, (long long)value);
    }
}

static void test_expr_errors_name_the_column(void **state)
{
    static const struct {
        const char *text;
        const char *message;
    } cases[] = {
        {"", "m.yaml:4:10: expression '': got the end, expected a number"},
        {"3*", "m.yaml:4:12: expression '3*': got the end"},
        {"1+x", "m.yaml:4:12: expression '1+x': unknown name 'x'"},
        {"1/(d-128)", "m.yaml:4:11: expression '1/(d-128)': division by zero"},
        {"(1+2", "m.yaml:4:14: expression '(1+2': got the end, expected ')'"},
        {"1+2)", "m.yaml:4:13: expression '1+2)': got ')', expected an operator"},
        {"1 2", "m.yaml:4:12: expression '1 2': got '2', expected an operator"},
        {"2d", "m.yaml:4:11: expression '2d': got 'd', expected a decimal integer"},
        {"1.5", "m.yaml:4:11: expression '1.5': got '.'"},
        {"2^3", "m.yaml:4:11: expression '2^3': got '^'"},
        {"9223372036854775808", "m.yaml:4:10: expression '9223372036854775808': the result"},
        {"9223372036854775807+1", "does not fit into 64 bits"},
        {"big_1-1", "m.yaml:4:15: expression 'big_1-1': the result"},
        {"-big_1", "m.yaml:4:10: expression '-big_1': the result"},
        {"big_1/-1", "m.yaml:4:15: expression 'big_1/-1': the result"},
        {"big_1*2", "m.yaml:4:15: expression 'big_1*2': the result"},
        {"\x80", "got '?'"},
        {"1+l", "m.yaml:4:12: expression '1+l': 'l' is a list, expected an item of it, 'l[0]'"},
        {"l[1+2]", "m.yaml:4:12: expression 'l[1+2]': got index 3 of 'l', expected 0 to 2"},
        {"l[-1]", "m.yaml:4:12: expression 'l[-1]': got index -1 of 'l', expected 0 to 2"},
        {"l[1", "m.yaml:4:13: expression 'l[1': got the end, expected ']'"},
        {"l[1)", "m.yaml:4:13: expression 'l[1)': got ')', expected ']'"},
        {"(1]", "m.yaml:4:12: expression '(1]': got ']', expected ')'"},
        {"d[0]", "m.yaml:4:11: expression 'd[0]': 'd' is not a list"},
        {"4[0]", "m.yaml:4:11: expression '4[0]': got '[', expected an operator"},
        {"x[0]", "m.yaml:4:10: expression 'x[0]': unknown name 'x'"},
        {"1 = 1", "m.yaml:4:12: expression '1 = 1': got '=', expected an operator"},
        {"1 !", "m.yaml:4:12: expression '1 !': got '!'"},
        {"1 < 2 < 3", "m.yaml:4:16: expression '1 < 2 < 3': got '<', expected an operator"},
        {"1 ==", "m.yaml:4:14: expression '1 ==': got the end"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t value = 77;
        if (smp_expr_eval(cases[i].text, where, look_up, NULL, &value) != SMP_ERR_INPUT)
            fail_msg("'%s' was accepted", cases[i].text);
        if (!strstr(smp_last_error(), cases[i].message))
            fail_msg("'%s': %s", cases[i].text, smp_last_error());
        assert_int_equal(value, 77);
    }
}

static void test_expr_depth_is_limited_length_is_not(void **state)
{
    static char text[200001];
    int64_t value = 0;
    (void)state;
    memset(text, '(', 100000);
    assert_int_equal(smp_expr_eval(text, where, look_up, NULL, &value), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "nested deeper"));
    memset(text, '-', 100000);
    assert_int_equal(smp_expr_eval(text, where, look_up, NULL, &value), SMP_ERR_INPUT);
    for (int i = 0; i < 50000; i++)
        memcpy(text + 2 * i, "l[", 2);
    assert_int_equal(smp_expr_eval(text, where, look_up, NULL, &value), SMP_ERR_INPUT);
    for (int i = 0; i < 100000; i++)
        memcpy(text + 2 * i, "1+", 2);
    text[199999] = '\0';
    assert_int_equal(smp_expr_eval(text, where, look_up, NULL, &value), SMP_OK);
    assert_int_equal(value, 100000);
}

/* Any text ends in a value or one message. */
static void test_expr_random_text(void **state)
{
    static const char alphabet[] = "0123456789+-*/()d big_1\t.xl[]<>=!";
    uint64_t r = 3;
    (void)state;
    for (int i = 0; i < 50000; i++) {
        char text[24];
        r = smp_random_mix(r);
        size_t length = r % (sizeof text - 1);
        for (size_t k = 0; k < length; k++) {
            r = smp_random_mix(r);
            text[k] = alphabet[r % (sizeof alphabet - 1)];
        }
        text[length] = '\0';
        int64_t value;
        smp_status status = smp_expr_eval(text, where, look_up, NULL, &value);
        assert_true(status == SMP_OK || status == SMP_ERR_INPUT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expr_values),
        cmocka_unit_test(test_expr_errors_name_the_column),
        cmocka_unit_test(test_expr_depth_is_limited_length_is_not),
        cmocka_unit_test(test_expr_random_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
