/* The environment is restored whatever happened to it: set, changed, removed, made anew. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "graph/base/environment.h"

extern char **environ;

static void assert_variable(const char *name, const char *value)
{
    const char *now = getenv(name);
    if (value)
        assert_string_equal(now ? now : "(none)", value);
    else
        assert_null(now);
}

static size_t count(void)
{
    size_t n = 0;
    while (environ[n])
        n++;
    return n;
}

static void begin(smp_environment *saved)
{
    assert_int_equal(setenv("SMP_TEST_KEPT", "a=b", 1), 0);
    assert_int_equal(setenv("SMP_TEST_EMPTY", "", 1), 0);
    assert_int_equal(unsetenv("SMP_TEST_NEW") | unsetenv("SMP_TEST_KEPT_LONGER"), 0);
    assert_int_equal(smp_environment_save(saved), SMP_OK);
}

static void assert_restored(smp_environment *saved, size_t n)
{
    smp_environment_restore(saved);
    assert_null(saved->arena);
    assert_int_equal(count(), n);
    assert_variable("SMP_TEST_KEPT", "a=b");
    assert_variable("SMP_TEST_EMPTY", "");
    assert_variable("SMP_TEST_NEW", NULL);
    assert_variable("SMP_TEST_KEPT_LONGER", NULL);
}

static void test_environment_takes_back_every_change(void **state)
{
    (void)state;
    smp_environment saved;
    begin(&saved);
    const size_t n = count();
    assert_int_equal(setenv("SMP_TEST_KEPT_LONGER", "1", 1) | setenv("SMP_TEST_NEW", "1", 1), 0);
    assert_int_equal(setenv("SMP_TEST_KEPT", "changed", 1) | unsetenv("SMP_TEST_EMPTY"), 0);
    assert_restored(&saved, n);
}

static void test_environment_is_the_same_after_no_change(void **state)
{
    (void)state;
    smp_environment saved;
    begin(&saved);
    const char *before = getenv("SMP_TEST_KEPT"); /* a host may hold on to it */
    assert_restored(&saved, count());
    assert_ptr_equal(getenv("SMP_TEST_KEPT"), before);
}

static void test_environment_comes_back_from_nothing(void **state)
{
    (void)state;
    smp_environment saved;
    begin(&saved);
    const size_t n = count();
    assert_int_equal(clearenv(), 0);
    assert_restored(&saved, n);
}

static void test_environment_restores_nothing_after_a_failed_save(void **state)
{
    (void)state;
    smp_environment none = {0};
    assert_int_equal(setenv("SMP_TEST_NEW", "1", 1), 0);
    smp_environment_restore(&none);
    assert_variable("SMP_TEST_NEW", "1");
}

/* execve passes any strings on. */
static void test_environment_keeps_what_no_library_sets(void **state)
{
    (void)state;
    char *odd[] = {"SMP_TEST_BARE", "SMP_TEST_TWICE=1", "SMP_TEST_TWICE=2", "=", NULL};
    char **before = calloc(count() + 1, sizeof *before); /* setenv() frees the array that it made */
    smp_environment saved;
    assert_non_null(before);
    memcpy(before, environ, count() * sizeof *before);
    environ = odd;
    assert_int_equal(smp_environment_save(&saved), SMP_OK);
    alarm(60);
    for (int changed = 0; changed < 2; changed++) {
        if (changed)
            assert_int_equal(setenv("SMP_TEST_TWICE", "3", 1) | setenv("SMP_TEST_NEW", "1", 1), 0);
        smp_environment_restore(&saved);
        assert_int_equal(count(), 4);
        assert_variable("SMP_TEST_TWICE", "1");
        assert_int_equal(smp_environment_save(&saved), SMP_OK);
    }
    alarm(0);
    smp_environment_restore(&saved);
    environ = before;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_environment_takes_back_every_change),
        cmocka_unit_test(test_environment_is_the_same_after_no_change),
        cmocka_unit_test(test_environment_comes_back_from_nothing),
        cmocka_unit_test(test_environment_restores_nothing_after_a_failed_save),
        cmocka_unit_test(test_environment_keeps_what_no_library_sets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
