/* What keeping states in memory costs, by hand: parts, whose core a thread takes, what is waited
 * for, and what a host needs. */
#include "tests/schedule/fixture.h"

#include "schedule/memory/kept_states.h"

static const char model[] =
    "smp: 1\nname: kept\n"
    "inputs: {x: {dtype: float32, shape: [64]}, y: {dtype: float32, shape: [64]}}\n"
    "ops:\n"
    "  - {op: linear, name: a, in: x, out: h, features: 192, bias: false}\n"
    "  - {op: linear, name: b, in: h, out: h, features: 64, bias: false}\n"
    "  - {op: mse, name: loss, in: [h, y], out: loss}\nloss: loss\n";
enum { ELEMENTS = 2 * 64 * 192, STATE = 12 * ELEMENTS };

static smp_graph *graph;

/* Two ranks with a quarter and three quarters of the weights, two replicas. */
static smp_kept_states cost(smp_cluster cluster, smp_target target, int tensor, int64_t every)
{
    const smp_plan_stage stage[] = {{.rank = 0, .weight_bytes = ELEMENTS},
                                    {.rank = 1, .weight_bytes = 3 * ELEMENTS}};
    const int64_t peak[] = {1000, 3000};
    const smp_plan plan = {.devices = 4,
                           .pipeline = 2,
                           .ddp = 2,
                           .chunks = 1,
                           .splitting = {.devices = tensor},
                           .target = target,
                           .training = true,
                           .n_stage = 2,
                           .stage = stage,
                           .predicted = {.step_us = 1000.0, .peak_bytes = peak},
                           .cluster = &cluster,
                           .optimizer_bytes_per_s = 1e6 * ELEMENTS};
    smp_kept_states kept;
    assert_int_equal(smp_kept_states_get(&plan, graph, every, &kept), SMP_OK);
    return kept;
}

static void test_kept_on_busy_cores(void **state)
{
    const smp_target cpu = {SMP_BACKEND_CPU, SMP_PRECISION_FP32};
    const smp_cluster own = {.nodes = 1, .devices_per_node = 4, .host_memory_bytes = 5000000};
    smp_cluster shared = own, roomy = own;
    const double core = SMP_CORE_BYTES_PER_S;
    (void)state;
    smp_kept_states k = cost(own, cpu, 1, 1);
    assert_int_equal(k.state_bytes, STATE);
    assert_int_equal(k.kept_bytes, 3 * STATE);
    assert_int_equal(k.part_bytes, STATE * 3 / 8);
    assert_int_equal(k.host_bytes, 3 * STATE + 4 * 3000);
    assert_int_equal(k.host_limit, 5000000);
    assert_float_equal(k.step_us, 4e6 * STATE * 3 / 8 / core, 1e-6);
    assert_float_equal(cost(own, cpu, 1, 10).step_us, k.step_us / 10, 1e-6);
    shared.cores_per_node = 2; /* which write all four parts in turn */
    assert_float_equal(cost(shared, cpu, 1, 1).step_us, 4e6 * STATE / core / 2, 1e-6);
    shared.cores_per_node = 4;
    assert_float_equal(cost(shared, cpu, 1, 1).step_us, k.step_us, 1e-6);
    shared.keep_bytes_per_s = 1e9; /* measured */
    assert_float_equal(cost(shared, cpu, 1, 1).step_us, 1e6 * STATE * 3 / 8 / 1e9, 1e-6);
    roomy.cores_per_node = 5; /* forwards and backwards hide it */
    assert_float_equal(cost(roomy, cpu, 1, 1).step_us, 0.0, 1e-9);
}

/* A copy comes first, and what goes on beside the step is hidden. */
static void test_kept_that_is_copied(void **state)
{
    const smp_target cpu = {SMP_BACKEND_CPU, SMP_PRECISION_FP32};
    const smp_target gpu = {SMP_BACKEND_CUDA, SMP_PRECISION_BF16};
    smp_cluster cluster = {.nodes = 2, .devices_per_node = 2, .host = {.bytes_per_s = 1e9}};
    (void)state;
    assert_true(cost(cluster, gpu, 1, 1).several_nodes);
    cluster.devices_per_node = 4;
    const smp_kept_states k = cost(cluster, gpu, 1, 1);
    assert_float_equal(k.copy_us, 1e6 * STATE * 3 / 8 / 1e9, 1e-6);
    assert_float_equal(k.step_us, k.copy_us, 1e-6);
    assert_int_equal(k.host_bytes, 3 * STATE); /* what a GPU has lies on it */
    cluster.nodes = 1;
    cluster.devices_per_node = 8;
    const smp_kept_states group = cost(cluster, cpu, 2, 1);
    assert_int_equal(group.part_bytes, STATE * 3 / 16);
    assert_true(group.copy_us > 0.0 && group.step_us > group.write_us);
}

static void test_kept_of_nothing(void **state)
{
    const smp_plan plan = {.pipeline = 1};
    smp_kept_states kept;
    (void)state;
    assert_int_equal(smp_kept_states_get(&plan, graph, 1, &kept), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "cluster:"));
}

static int read_model(void **state)
{
    (void)state;
    return smp_graph_parse("m.yaml", model, strlen(model), &graph) != SMP_OK;
}

static int close_model(void **state)
{
    (void)state;
    smp_graph_destroy(graph);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept_on_busy_cores),
        cmocka_unit_test(test_kept_that_is_copied),
        cmocka_unit_test(test_kept_of_nothing),
    };
    return cmocka_run_group_tests(tests, read_model, close_model);
}
