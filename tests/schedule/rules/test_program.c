/* Programs as text: what is written reads back, and what is wrong is named with its place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "schedule/rules/program.h"

static const smp_where where = {"plan.yaml", 7, 5};

static void test_program_round_trip(void **state)
{
    (void)state;
    const char *text = "F0.0 >F0.0 <F12.3 I1.0 W1.0 <B2147483647.1 B0.2147483647 >B0.0 R.0 R.15 O";
    const smp_action_kind kinds[] = {SMP_ACTION_F,      SMP_ACTION_SEND_F,  SMP_ACTION_RECV_F,
                                     SMP_ACTION_I,      SMP_ACTION_W,       SMP_ACTION_RECV_B,
                                     SMP_ACTION_B,      SMP_ACTION_SEND_B,  SMP_ACTION_REDUCE,
                                     SMP_ACTION_REDUCE, SMP_ACTION_OPTIMIZE};
    smp_program program = {0};
    assert_int_equal(smp_program_parse(text, 0, where, &program), SMP_OK);
    assert_int_equal(program.n, 11);
    for (int i = 0; i < 11; i++)
        assert_int_equal(program.action[i].kind, kinds[i]);
    assert_int_equal(program.action[2].microbatch, 12);
    assert_int_equal(program.action[2].chunk, 3);
    assert_int_equal(program.action[5].microbatch, INT32_MAX);
    assert_int_equal(program.action[9].microbatch, -1);
    assert_int_equal(program.action[9].chunk, 15);
    assert_int_equal(program.action[10].chunk, -1);
    smp_text again = {0};
    smp_program_format(&program, &again);
    assert_string_equal(again.data, text);
    smp_text_free(&again);
    smp_program_free(&program);
    assert_int_equal(program.n, 0);
}

static void test_program_blanks(void **state)
{
    (void)state;
    smp_program program = {0};
    assert_int_equal(smp_program_parse("", 0, where, &program), SMP_OK);
    assert_int_equal(program.n, 0);
    assert_int_equal(smp_program_parse(" \tF0.0\n  B0.0\r\n ", 0, where, &program), SMP_OK);
    assert_int_equal(program.n, 2);
    smp_program_free(&program);
}

static void test_program_bad_actions(void **state)
{
    (void)state;
    static const char *const bad[] = {"X0.0",
                                      "F",
                                      "F0",
                                      "F.0",
                                      "F0.",
                                      "F0.0.0",
                                      "F-1.0",
                                      "F0.-1",
                                      "F01.0",
                                      "f0.0",
                                      "> F0.0",
                                      ">R.0",
                                      "<<F0.0",
                                      ">I0.0",
                                      "R0.0",
                                      "R",
                                      "R.",
                                      "O0.0",
                                      "O.0",
                                      "F0,0",
                                      "F0.0B0.0",
                                      "F2147483648.0",
                                      ">",
                                      "<",
                                      "F0.0x",
                                      "F1e1.0",
                                      "F99999999999999999999.0"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[80];
        snprintf(text, sizeof text, "F0.0 F1.0 %s O", bad[i]);
        smp_program program = {.n = 77};
        assert_int_equal(smp_program_parse(text, 0, where, &program), SMP_ERR_INPUT);
        assert_int_equal(program.n, 77); /* untouched */
        if (!strstr(smp_last_error(), "plan.yaml:7:5: ") ||
            !strstr(smp_last_error(), "rank 0, action 3"))
            fail_msg("%s: %s", bad[i], smp_last_error());
    }
}

static void test_program_long_token_is_cut(void **state)
{
    (void)state;
    char text[3000];
    memset(text, 'F', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    smp_program program = {0};
    assert_int_equal(smp_program_parse(text, 0, where, &program), SMP_ERR_INPUT);
    assert_true(strlen(smp_last_error()) < 400);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_program_round_trip),
        cmocka_unit_test(test_program_blanks),
        cmocka_unit_test(test_program_bad_actions),
        cmocka_unit_test(test_program_long_token_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
