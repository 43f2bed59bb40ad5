/* What the exact search visits. Its answers are held by test_exact; what it leaves out unvisited only
 * shows in the work, which is counted, so that it can be held without a clock. */
#include "tests/partition/branch_fixture.h"

#include "partition/prove/exact.h"

enum { ENOUGH = 1 << 30 };

/* Work of one search, which finds a pipeline exactly if there is one below the target. */
static int64_t work_of(const fixture *f, double target_us, double *found_us)
{
    smp__units *units;
    smp__window window;
    smp__exact_answer answer;
    int32_t unit_stage[256];
    int64_t work = ENOUGH;
    smp__exact_limits limits = {.work = work, .bytes = (size_t)1 << 30};
    smp_arena *arena = smp_arena_create();
    assert_int_equal(smp__units_build(&f->problem, &units), SMP_OK);
    assert_true(units->n <= 256);
    assert_int_equal(smp__window_init(&window, &f->problem, units, arena), SMP_OK);
    smp__window_set(&window, target_us);
    *found_us = INFINITY;
    assert_int_equal(
        smp__exact_search(&window, target_us, &limits, &work, &answer, found_us, unit_stage),
        SMP_OK);
    assert_true(answer == (isfinite(*found_us) ? SMP__EXACT_FOUND : SMP__EXACT_NONE));
    smp__units_destroy(units);
    smp_arena_destroy(arena);
    return ENOUGH - work;
}

/* Any pipeline; none, just below the best; some, above it; with links that hide behind compute and
 * with memory that binds, and without. */
static void test_exact_work_does_not_grow(void **state)
{
    (void)state;
    int64_t total = 0;
    for (int seed = 0; seed < 24; seed++) {
        fixture_random random = {(uint64_t)seed};
        fixture f;
        branch_shape shape = {.blocks = 3,
                              .branches = 3,
                              .length = 3,
                              .transfer_percent = 5 + 60 * (seed % 3),
                              .training = seed % 2};
        char *model = branch_model(&random, &shape);
        double best, found;
        fixture_cluster(&f, 8, 8, 1e9);
        fixture_open(&f, model, 3 + seed % 3, 1);
        f.cluster.overlap = seed % 4 == 3;
        for (int s = 0; seed % 4 > 1 && s < f.problem.n_stage; s++) {
            f.live[s] = f.problem.n_stage - s;
            f.limit[s] = 22000000;
        }
        f.problem.recompute = seed % 8 < 4 ? SMP_RECOMPUTE_NONE : SMP_RECOMPUTE_AUTO;
        total += work_of(&f, INFINITY, &best);
        assert_true(isfinite(best));
        total += work_of(&f, best * 0.999, &found);
        assert_false(isfinite(found));
        total += work_of(&f, best * 1.1, &found);
        assert_close(found, best);
        fixture_close(&f);
        free(model);
    }
    assert_in_range(total, 3000000, 3074807); /* less: better, or no longer counted */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_work_does_not_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
