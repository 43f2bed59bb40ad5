/* A plan of 512 ranks and 2048 micro-batches: made, verified and simulated in seconds, at a million
 * simulated actions a second and more. */
#include <time.h>

#include "tests/schedule/rules/unit_simulation.h"

#if defined __SANITIZE_ADDRESS__
enum { RANKS = 64, MICROBATCHES = 256 };
#else
enum { RANKS = 512, MICROBATCHES = 2048 };
#endif

static int64_t count_actions(const made_plan *made)
{
    int64_t n = 0;
    for (int r = 0; r < made->plan.pipeline; r++)
        n += made->program[r].n;
    return n;
}

/* Of the processor: the machine may be busy. */
static double seconds(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

/* Gives the time the simulation alone took. */
static double simulate(const made_plan *made, double expected_us)
{
    double begin_s = seconds();
    smp_simulation *s = unit_simulation(made);
    double took_s = seconds() - begin_s;
    if (expected_us > 0.0 && (s->step_us < expected_us - 1e-3 || s->step_us > expected_us + 1e-3))
        fail_msg("takes %g, formula %g", s->step_us, expected_us);
    smp_simulation_destroy(s);
    return took_s;
}

static void check_large(const char *schedule, int chunks, int microbatches, double expected_us)
{
    made_plan made;
    made_plan_stages(&made, schedule, RANKS, chunks, microbatches, true, made_chain);
    double begin_s = seconds();
    made_plan_lower(&made);
    double made_s = seconds();
    if (smp_verify_programs(&made.plan, made.flow))
        fail_msg("%s", smp_last_error());
    double verified_s = seconds(), simulated_s = simulate(&made, expected_us);
    double total_s = verified_s - begin_s + simulated_s;
    double per_s = (double)count_actions(&made) / simulated_s;
    print_message("%s, %d chunks: %lld actions made in %.2f s, verified in %.2f s, simulated in "
                  "%.2f s (%.1f million a second)\n",
                  schedule, chunks, (long long)count_actions(&made), made_s - begin_s,
                  verified_s - made_s, simulated_s, per_s / 1e6);
#if !defined __SANITIZE_ADDRESS__
    assert_true(total_s < 30.0);
    assert_true(per_s > 1e6);
#endif
    (void)total_s;
    made_plan_free(&made);
}

static void test_schedules_large(void **state)
{
    (void)state;
    check_large("interleaved", 1, MICROBATCHES, 3.0 * (MICROBATCHES + RANKS - 1));
    check_large("zero-bubble", 1, MICROBATCHES, 3.0 * MICROBATCHES + RANKS - 1);
    check_large("zero-bubble", 2, MICROBATCHES / 2, 0.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedules_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
