/* Times of stores and loads, and of updates beside a step, by hand: a byte takes 1 us each way,
 * F 10, B 20. */
#include "tests/schedule/simulate/simulate_fixture.h"

#include <math.h>

#include "graph/model/op.h"

enum { FORWARD_US = 10, BACKWARD_US = 20 };

static const char order[] =
    "F0.0 S0.0 F1.0 S1.0 F2.0 S2.0 L0.0 F3.0 S3.0 L1.0 B0.0 L2.0 B1.0 L3.0 B2.0 B3.0 R.0 O";

static void open_one_rank(setting *s, made_plan *made, const int64_t *bytes)
{
    made_plan_stages(made, "simple", 1, 1, 4, true, made_chain);
    made_plan_write(made, 0, order);
    setting_open(s, made, 1, 1);
    s->cluster.host.bytes_per_s = 1e6;
    s->forward_us[0] = FORWARD_US;
    s->backward_us[0] = BACKWARD_US;
    s->input.offload_bytes = bytes;
    s->input.horizon = 1;
}

static void assert_action(const smp_simulation *got, int64_t i, double start_us, double end_us)
{
    if (fabs(got->start_us[0][i] - start_us) > 1e-9 || fabs(got->end_us[0][i] - end_us) > 1e-9)
        fail_msg("action %lld: got %g to %g, expected %g to %g", (long long)i + 1,
                 got->start_us[0][i], got->end_us[0][i], start_us, end_us);
}

static double step_us(int64_t bytes)
{
    made_plan made;
    setting s;
    open_one_rank(&s, &made, &bytes);
    smp_simulation *got = simulate(&s.input);
    const double us = got->step_us, idle_us = got->offload_us[0];
    assert_true(fabs(us - idle_us - 4 * (FORWARD_US + BACKWARD_US)) < 1e-9);
    smp_simulation_destroy(got);
    made_plan_free(&made);
    return us;
}

/* As long as a copy takes no longer than an action it costs nothing. Beyond that: stores have an
 * F each; the first load is asked for before F3, which it has, and later ones have a B each. */
static void test_simulate_offload_hides(void **state)
{
    (void)state;
    assert_true(step_us(1) == 120);
    assert_true(step_us(10) == 120);
    /* F2 waits for S0 to 22, F3 for S1 to 34, B0 for S2 to 46 (L0, which begins at 32, is there at
     * 44); S3 is there at 58 */
    assert_true(step_us(12) == 126);
    /* F2 at 35, F3 at 60, B0 at 85 (S2), B1 at 110 (S3), B2 at 130 (L2, asked for at 105), B3 at
     * 155 (L3, asked for at 130) */
    assert_true(step_us(25) == 175);
}

static void test_simulate_offload_times(void **state)
{
    (void)state;
    const int64_t bytes = 25;
    made_plan made;
    setting s;
    open_one_rank(&s, &made, &bytes);
    smp_simulation *got = simulate(&s.input);
    assert_action(got, 0, 0, 10);    /* F0 */
    assert_action(got, 1, 10, 35);   /* S0 */
    assert_action(got, 2, 10, 20);   /* F1 */
    assert_action(got, 3, 20, 60);   /* S1, once the link is free */
    assert_action(got, 4, 35, 45);   /* F2, once S0 is done */
    assert_action(got, 6, 45, 70);   /* L0 */
    assert_action(got, 10, 85, 105); /* B0, once S2 is done */
    smp_simulation_destroy(got);
    made_plan_free(&made);
}

/* Two chunks of 100 and 50 bytes, a byte an us, beside the step: F0.0 would take 10 and ends with
 * its weights, at 100, F0.1 at 150 with its own, and O takes nothing; where they are made sooner
 * nothing shows of them. Not beside the step O takes 150. */
static void test_simulate_updates_beside(void **state)
{
    (void)state;
    static const struct {
        bool beside;
        double bytes_per_s, first_us, second_us, step_us;
    } cases[] = {{true, 1e6, 100, 150, 150 + 2 * BACKWARD_US},
                 {true, 4e6, 25, 37.5, 37.5 + 2 * BACKWARD_US},
                 {true, 1e7, 10, 20, 20 + 2 * BACKWARD_US},
                 {false, 1e6, 10, 20, 20 + 2 * BACKWARD_US + 150}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        made_plan made;
        setting s;
        made_plan_stages(&made, "simple", 1, 2, 1, true, made_chain);
        made_plan_write(&made, 0, "F0.0 F0.1 B0.1 R.1 B0.0 R.0 O");
        setting_open(&s, &made, 1, 1);
        for (int stage = 0; stage < 2; stage++) {
            s.forward_us[stage] = FORWARD_US;
            s.backward_us[stage] = BACKWARD_US;
            s.weight_bytes[stage] = stage == 0 ? 100 : 50;
        }
        s.input.optimizer_bytes_per_s = cases[i].beside ? 1 : cases[i].bytes_per_s;
        smp_graph graph = *s.input.graph;
        graph.target.backend = SMP_BACKEND_CUDA;
        s.input.graph = &graph;
        s.input.sharding.offload_states = cases[i].beside;
        s.cluster.host.bytes_per_s = 2 * cases[i].bytes_per_s; /* gradients come down, too */
        smp_simulation *got = simulate(&s.input);
        assert_action(got, 0, 0, cases[i].first_us);
        assert_action(got, 1, cases[i].first_us, cases[i].second_us);
        assert_true(fabs(got->step_us - cases[i].step_us) < 1e-9);
        /* waiting is no work */
        const double late_us = cases[i].second_us - 2 * FORWARD_US;
        assert_true(fabs(got->offload_us[0] - late_us) < 1e-9 &&
                    got->late_us[0] == got->offload_us[0]);
        assert_true(fabs(got->busy_us[0] + late_us - got->step_us) < 1e-9);
        const double compute_us = cases[i].second_us + 2 * BACKWARD_US;
        assert_true(fabs(got->bubble - late_us / compute_us) < 1e-9);
        assert_true(
            fabs(got->updated_us[0] - (cases[i].beside ? 150e6 / cases[i].bytes_per_s : 0)) < 1e-9);
        smp_simulation_destroy(got);
        made_plan_free(&made);
    }
}

/* The same, at a byte an us. The 25 values of the first chunk are those of a weight that its op
 * reads in 16 bits alone, and lie with the host in such a run: they take half of the time. */
static void test_simulate_updates_of_far_weights(void **state)
{
    (void)state;
    static const smp_precision precisions[] = {SMP_PRECISION_BF16, SMP_PRECISION_FP16,
                                               SMP_PRECISION_TF32};
    for (int i = 0; i < 3; i++) {
        made_plan made;
        setting s;
        made_plan_stages(&made, "simple", 1, 2, 1, true, made_chain);
        made_plan_write(&made, 0, "F0.0 F0.1 B0.1 R.1 B0.0 R.0 O");
        setting_open(&s, &made, 1, 1);
        smp_op op[8];
        smp_param param = {.name = "w", .elements = 25, .use_end = 1};
        const smp_use use = {.param = 0, .op = 0, .slot = 0};
        smp_graph graph = *s.input.graph;
        assert_true((size_t)graph.n_op <= sizeof op / sizeof *op);
        memcpy(op, graph.op, (size_t)graph.n_op * sizeof *op);
        op[0].kind = smp_op_kind_find("linear");
        graph.op = op;
        graph.param = &param;
        graph.use = &use;
        graph.n_param = graph.n_use = 1;
        graph.target = (smp_target){SMP_BACKEND_CUDA, precisions[i], false};
        s.input.graph = &graph;
        for (int stage = 0; stage < 2; stage++) {
            s.forward_us[stage] = FORWARD_US;
            s.backward_us[stage] = BACKWARD_US;
            s.weight_bytes[stage] = stage == 0 ? 100 : 50;
        }
        s.input.sharding.offload_states = true;
        s.cluster.host.bytes_per_s = 2e6;
        smp_simulation *got = simulate(&s.input);
        const double first_us = i < 2 ? 50 : 100;
        assert_action(got, 0, 0, first_us);
        assert_action(got, 1, first_us, first_us + 50);
        assert_true(fabs(got->updated_us[0] - (first_us + 50)) < 1e-9);
        smp_simulation_destroy(got);
        made_plan_free(&made);
    }
}

static void test_simulate_offload_needs_a_link(void **state)
{
    (void)state;
    const int64_t bytes = 25;
    made_plan made;
    setting s;
    smp_simulation *got = NULL;
    open_one_rank(&s, &made, &bytes);
    s.cluster.host.bytes_per_s = 0;
    assert_int_equal(smp_simulate(&s.input, &got), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "links: host"));
    made_plan_free(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_simulate_offload_hides),
        cmocka_unit_test(test_simulate_offload_times),
        cmocka_unit_test(test_simulate_updates_beside),
        cmocka_unit_test(test_simulate_updates_of_far_weights),
        cmocka_unit_test(test_simulate_offload_needs_a_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
