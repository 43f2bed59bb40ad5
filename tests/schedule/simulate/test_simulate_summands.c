/* Gradients of which every device of a group has a summand: O begins with their sums. */
#include "tests/schedule/simulate/simulate_fixture.h"

#include <math.h>

#include "graph/split/splitting.h"

/* a and b have one weight; by positions, every device has a summand of each gradient. */
static const char layers[] =
    "smp: 1\nname: made\n"
    "inputs: {x: {dtype: float32, shape: [4, 8]}, y: {dtype: float32, shape: [4, 8]}}\n"
    "ops:\n"
    "  - {op: linear, name: a, in: x, out: h, features: 8, bias: false}\n"
    "  - {op: linear, name: b, in: h, out: h, features: 8, bias: false, weight: a.weight}\n"
    "  - {op: linear, name: c, in: h, out: h, features: 8}\n"
    "  - {op: mse, name: loss, in: [h, y], out: loss}\n"
    "loss: loss\n";

/* Of n floats over two devices: two messages of half of it, over a link of 3 us and a byte a us. */
static double sum_us(int n)
{
    return 2 * (3 + 4.0 * n / 2);
}

/* What O takes on each of two ranks; `second`: the first op of the second stage. */
static void simulate_split(const char *second, bool split, double slowdown, double optimizer_us[2])
{
    static const smp_split_entry entries[] = {{.op = "a", .as = "positions@0"},
                                              {.op = "b", .as = "positions@0"},
                                              {.op = "c", .as = "positions@0"}};
    const smp_splitting splitting = {.devices = 2, .n_entry = 3, .entry = entries};
    made_plan made;
    setting s;
    made_plan_stages(&made, "simple", 2, 1, 3, true, made_chain);
    smp_graph_destroy(made.graph);
    smp_flow_destroy(made.flow);
    assert_int_equal(smp_graph_parse("model.yaml", layers, strlen(layers), &made.graph), SMP_OK);
    if (split && smp_splitting_apply(&splitting, 0, &made.graph))
        fail_msg("%s", smp_last_error());
    const int32_t border = smp_graph_find_op(made.graph, second);
    int32_t stage_of_op[16];
    for (int32_t o = 0; o < made.graph->n_op; o++)
        stage_of_op[o] = o >= border;
    assert_int_equal(smp_flow_build(made.graph, stage_of_op, 2, 1, &made.flow), SMP_OK);
    made_plan_lower(&made);
    setting_open(&s, &made, 1, 1);
    s.cluster.group = 2;
    s.cluster.group_slowdown = slowdown;
    s.cluster.intra_node = (smp_link_spec){.latency_us = 3, .bytes_per_s = 1e6};
    s.input.optimizer_bytes_per_s = 1e6;
    s.weight_bytes[0] = 10;
    s.weight_bytes[1] = 20;
    smp_simulation *got = simulate(&s.input);
    for (int rank = 0; rank < 2; rank++) {
        const int64_t last = made.program[rank].n - 1;
        assert_int_equal(made.program[rank].action[last].kind, SMP_ACTION_OPTIMIZE);
        optimizer_us[rank] = got->end_us[rank][last] - got->start_us[rank][last];
    }
    assert_true(got->step_us >= optimizer_us[0] && got->step_us >= optimizer_us[1]);
    smp_simulation_destroy(got);
    made_plan_free(&made);
}

static void assert_us(double got, double expected)
{
    if (fabs(got - expected) > 1e-6)
        fail_msg("got %.9g us, expected %.9g us", got, expected);
}

static void test_summands_are_added_before_the_update(void **state)
{
    double us[2];
    (void)state;
    simulate_split("c", false, 1, us);
    assert_us(us[0], 10);
    assert_us(us[1], 20);
    simulate_split("c", true, 1, us);
    assert_us(us[0], 2 * sum_us(64) + 10); /* a's and b's */
    assert_us(us[1], sum_us(64) + sum_us(8) + 20);
    simulate_split("b", true, 1, us);
    assert_us(us[0], 2 * sum_us(64) + 10);
    assert_us(us[1], 3 * sum_us(64) + sum_us(8) + 20); /* it has what a adds, too */
}

/* Both take turns on one core, which goes to the other twice in a sum. */
static void test_summands_wait_for_shared_cores(void **state)
{
    const double switch_us = 2 * SMP_DEFAULT_CORE_SWITCH_US;
    double us[2];
    (void)state;
    simulate_split("c", true, 2, us);
    assert_us(us[0], 2 * 2 * (sum_us(64) + switch_us) + 10);
    assert_us(us[1], 2 * (sum_us(64) + sum_us(8) + 2 * switch_us) + 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_summands_are_added_before_the_update),
        cmocka_unit_test(test_summands_wait_for_shared_cores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
