/* A thread with numbered tasks: in order, no later than asked for, and what a failure leaves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "exec/transport/own_core.h"

enum { TASKS = 2000, FAILS = 7 };

/* Plain memory: what tells the two threads of each other's writes is the worker alone. */
static int64_t given[TASKS], made[TASKS];

static smp_status add_one(void *of, int64_t number)
{
    int64_t *last = of;
    made[number] = number == *last + 1 ? given[number] + 1 : -1;
    *last = number;
    return SMP_OK;
}

static smp_status fail_at(void *of, int64_t number)
{
    int *calls = of;
    ++*calls;
    return number == FAILS ? smp_fail(SMP_ERR_FAILED, "task %d has no luck", (int)number) : SMP_OK;
}

static smp_status wait_for(smp__worker *worker, int64_t number)
{
    const struct timespec nap = {.tv_nsec = 10000};
    for (bool done = false;;) {
        SMP_TRY(smp__worker_test(worker, number, &done));
        if (done)
            return SMP_OK;
        nanosleep(&nap, NULL);
    }
}

static void test_worker_in_order(void **state)
{
    (void)state;
    int64_t last = -1, asked = 0, seen = 0;
    smp__worker *worker;
    bool done;
    assert_int_equal(smp__worker_start(add_one, &last, &worker), SMP_OK);
    assert_int_equal(smp__worker_test(worker, 0, &done), SMP_OK);
    assert_false(done); /* it was not asked */
    while (seen < TASKS) {
        for (int k = 0; k < 1 + seen % 5 && asked < TASKS; k++) {
            given[asked] = 3 * asked;
            smp__worker_ask(worker, ++asked);
        }
        assert_int_equal(wait_for(worker, seen), SMP_OK);
        assert_int_equal(made[seen], 3 * seen + 1);
        seen++;
    }
    smp__worker_stop(worker);
    assert_int_equal(last, TASKS - 1);
}

static void test_worker_failure(void **state)
{
    (void)state;
    int calls = 0;
    smp__worker *worker;
    assert_int_equal(smp__worker_start(fail_at, &calls, &worker), SMP_OK);
    smp__worker_ask(worker, 2 * FAILS);
    assert_int_equal(wait_for(worker, FAILS - 1), SMP_OK);
    for (int i = FAILS; i < 2 * FAILS; i++) {
        assert_int_equal(wait_for(worker, i), SMP_ERR_FAILED);
        assert_string_equal(smp_last_error(), "task 7 has no luck");
    }
    assert_int_equal(wait_for(worker, FAILS - 1), SMP_OK);
    smp__worker_stop(worker);
    assert_int_equal(calls, FAILS + 1); /* what is behind it is left undone */
    smp__worker_stop(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_worker_in_order),
        cmocka_unit_test(test_worker_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
