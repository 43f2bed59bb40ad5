/* graph/base/status.h: one bounded message per thread. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "graph/base/status.h"

static void test_status_names_and_exit_codes(void **state)
{
    (void)state;
    assert_string_equal(smp_status_name(SMP_OK), "SMP_OK");
    assert_string_equal(smp_status_name(SMP_ERR_NO_FIT), "SMP_ERR_NO_FIT");
    assert_string_equal(smp_status_name((smp_status)99), "unknown status");
    assert_int_equal(smp_status_exit_code(SMP_OK), 0);
    assert_int_equal(smp_status_exit_code(SMP_ERR_FAILED), 1);
    assert_int_equal(smp_status_exit_code(SMP_ERR_PEER), 1);
    assert_int_equal(smp_status_exit_code(SMP_ERR_INPUT), 2);
    assert_int_equal(smp_status_exit_code(SMP_ERR_NO_FIT), 3);
    assert_int_equal(smp_status_exit_code((smp_status)99), 1);
    assert_string_equal(smp_version(), SMP_VERSION_STRING);
}

static void test_status_fail_formats_and_returns(void **state)
{
    (void)state;
    assert_int_equal(smp_fail(SMP_ERR_NO_FIT, "stage %d: %s", 3, "full"), SMP_ERR_NO_FIT);
    assert_string_equal(smp_last_error(), "stage 3: full");
    assert_int_equal(smp_fail_memory(4096), SMP_ERR_NO_MEMORY);
    assert_non_null(strstr(smp_last_error(), "4096"));
}

static void test_status_fail_at_leaves_out_what_is_unknown(void **state)
{
    (void)state;
    assert_int_equal(smp_fail_at((smp_where){"a.yaml", 3, 7}, "bad %s", "key"), SMP_ERR_INPUT);
    assert_string_equal(smp_last_error(), "a.yaml:3:7: bad key");
    smp_fail_at((smp_where){"a.yaml", 3, 0}, "bad");
    assert_string_equal(smp_last_error(), "a.yaml:3: bad");
    smp_fail_at((smp_where){"a.yaml", 0, 0}, "bad");
    assert_string_equal(smp_last_error(), "a.yaml: bad");
    smp_fail_at((smp_where){NULL, 0, 0}, "bad");
    assert_string_equal(smp_last_error(), "bad");
}

static void test_status_context_goes_in_front(void **state)
{
    (void)state;
    smp_fail(SMP_ERR_FAILED, "disk full");
    assert_int_equal(smp_fail_context(SMP_OK, "unused"), SMP_OK);
    assert_string_equal(smp_last_error(), "disk full");
    assert_int_equal(smp_fail_context(SMP_ERR_FAILED, "saving %d", 5), SMP_ERR_FAILED);
    assert_string_equal(smp_last_error(), "saving 5: disk full");
    smp_fail(SMP_ERR_FAILED, "%s, then %s", smp_last_error(), "more"); /* its own message */
    assert_string_equal(smp_last_error(), "saving 5: disk full, then more");
}

static void test_status_message_is_bounded_and_clean(void **state)
{
    (void)state;
    static char text[9000];
    memset(text, 'x', sizeof text - 1);
    smp_fail(SMP_ERR_FAILED, "%s", text);
    size_t length = strlen(smp_last_error());
    assert_in_range(length, 1000, 4096);
    assert_string_equal(smp_last_error() + length - 3, "...");
    for (int i = 0; i < 10; i++)
        smp_fail_context(SMP_ERR_FAILED, "%s", text);
    assert_int_equal(strlen(smp_last_error()), length);
    smp_fail(SMP_ERR_FAILED, "a\x1b[31mb\nc\rd");
    assert_string_equal(smp_last_error(), "a?[31mb\nc?d");
}

static void *fail_elsewhere(void *unused)
{
    (void)unused;
    smp_fail(SMP_ERR_FAILED, "elsewhere");
    return NULL;
}

static void test_status_message_belongs_to_the_thread(void **state)
{
    (void)state;
    pthread_t thread;
    smp_fail(SMP_ERR_FAILED, "here");
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, NULL), 0);
    pthread_join(thread, NULL);
    assert_string_equal(smp_last_error(), "here");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status_names_and_exit_codes),
        cmocka_unit_test(test_status_fail_formats_and_returns),
        cmocka_unit_test(test_status_fail_at_leaves_out_what_is_unknown),
        cmocka_unit_test(test_status_context_goes_in_front),
        cmocka_unit_test(test_status_message_is_bounded_and_clean),
        cmocka_unit_test(test_status_message_belongs_to_the_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
