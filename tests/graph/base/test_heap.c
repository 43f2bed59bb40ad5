/* The event queue against a plain search, under random changes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "graph/base/random.h"
#include "graph/base/heap.h"

enum { N = 40 };

static int earliest(const double *time)
{
    int best = -1;
    for (int i = 0; i < N; i++)
        if (time[i] >= 0.0 && (best < 0 || time[i] < time[best]))
            best = i;
    return best;
}

static void test_heap_random_changes(void **state)
{
    (void)state;
    smp_arena *arena = smp_arena_create();
    smp_heap heap;
    assert_int_equal(smp_heap_init(&heap, arena, N), SMP_OK);
    double time[N]; /* -1: not in */
    for (int i = 0; i < N; i++)
        time[i] = -1.0;
    for (uint64_t i = 0; i < 20000; i++) {
        uint64_t bits = smp_random_mix(i);
        int entity = (int)(bits % N);
        if (bits >> 32 & 1) {
            time[entity] = (double)(bits >> 40 & 15); /* many ties */
            smp_heap_set(&heap, entity, time[entity]);
        } else if (bits >> 33 & 1) {
            time[entity] = -1.0;
            smp_heap_remove(&heap, entity);
        } else if (heap.n > 0) {
            int expected = earliest(time);
            assert_int_equal(smp_heap_pop(&heap), expected);
            time[expected] = -1.0;
        } else {
            assert_int_equal(earliest(time), -1);
        }
    }
    smp_arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heap_random_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
