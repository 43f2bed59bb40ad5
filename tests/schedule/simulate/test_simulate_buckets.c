/* Reductions in buckets, by hand: four equal layers, each half of whose backward is estimated at
 * 1 us (the first layer has no gradient of its input), and a ring in which a byte takes 1 us. */
#include "tests/schedule/simulate/simulate_fixture.h"

#include <math.h>

static const char model[] = "smp: 1\nname: layers\ninputs:\n  x: {dtype: float32, shape: [64]}\n"
                            "  y: {dtype: float32, shape: [64]}\nops:\n"
                            "  - {op: linear, name: l0, in: x, out: h, features: 64, bias: false}\n"
                            "  - {op: linear, name: l1, in: h, out: h, features: 64, bias: false}\n"
                            "  - {op: linear, name: l2, in: h, out: h, features: 64, bias: false}\n"
                            "  - {op: linear, name: l3, in: h, out: h, features: 64, bias: false}\n"
                            "  - {op: mse, name: loss, in: [h, y], out: loss}\nloss: loss\n";

enum { WEIGHT = 64 * 64 * 4 };

static void open_layers(setting *s, made_plan *made, const char *program)
{
    const int32_t stage[5] = {0};
    made_plan_stages(made, "simple", 1, 1, 1, true, made_chain);
    made_plan_write(made, 0, program);
    smp_flow_destroy(made->flow);
    smp_graph_destroy(made->graph);
    if (smp_graph_parse("layers.yaml", model, sizeof model - 1, &made->graph) ||
        smp_flow_build(made->graph, stage, 1, 1, &made->flow))
        fail_msg("%s", smp_last_error());
    setting_open(s, made, 1, 2);
    for (int d = 0; d < MAX_DEVICES; d++)
        s->spec[d] = (smp_device_spec){.name = "device", .flops_fp32 = 1e30, .bytes_per_s = 1e30};
    s->cluster.intra_node.bytes_per_s = 1e6;
    s->input.sharding.shard = 1;
    s->backward_us[0] = 80000;
    s->weight_bytes[0] = 4 * WEIGHT;
}

static void assert_reduced(const setting *s, int64_t bucket_bytes, double starts, double ends)
{
    smp_simulation_input input = s->input;
    input.sharding.bucket_bytes = bucket_bytes;
    smp_simulation *got = simulate(&input);
    const double *start_us = got->start_us[0], *end_us = got->end_us[0];
    if (fabs(start_us[2] - starts) > 1e-6 || fabs(end_us[2] - ends) > 1e-6)
        fail_msg("buckets of %lld: got %.12g to %.12g us, expected %.12g to %.12g us",
                 (long long)bucket_bytes, start_us[2], end_us[2], starts, ends);
    assert_true(got->step_us >= got->end_us[0][2]);
    smp_simulation_destroy(got);
}

static void test_simulate_buckets_as_they_are_made(void **state)
{
    (void)state;
    setting s;
    made_plan made;
    open_layers(&s, &made, "F0.0 B0.0 R.0 O");
    assert_reduced(&s, 0, 80001, 80001 + 4 * WEIGHT);
    assert_reduced(&s, 4 * WEIGHT, 80001, 80001 + 4 * WEIGHT); /* one */
    assert_reduced(&s, WEIGHT, 30001, 70001 + 2 * WEIGHT); /* each ends before the next, but one */
    assert_reduced(&s, WEIGHT + 1, 50001, 50001 + 4 * WEIGHT); /* two of two layers */
    s.weight_bytes[0] += 1000;                                 /* what is in no bucket */
    assert_reduced(&s, WEIGHT + 1, 50001, 50001 + 4 * WEIGHT + 1000);
    s.cluster.intra_node.latency_us = 500; /* of each message, of which a bucket takes two */
    assert_reduced(&s, WEIGHT + 1, 50001, 50001 + 4 * WEIGHT + 1000 + 3 * 2 * 500);
    /* Where costs are measured nobody needs to know a device's rate in bf16. */
    assert_int_equal(SMP_OK, smp_graph_set_target(
                                 made.graph, (smp_target){SMP_BACKEND_CUDA, SMP_PRECISION_BF16}));
    s.input.precision = SMP_PRECISION_BF16;
    assert_reduced(&s, WEIGHT + 1, 50001, 50001 + 4 * WEIGHT + 1000 + 3 * 2 * 500);
    made_plan_free(&made);
}

/* Scattered in the group in half of the time; A adds up over the groups what is left of each. */
static void test_simulate_buckets_of_groups(void **state)
{
    (void)state;
    setting s;
    made_plan made;
    open_layers(&s, &made, "F0.0 B0.0 R.0 A.0 O");
    s.input.sharding.shard = 2;
    assert_reduced(&s, WEIGHT, 30001, 80001 + WEIGHT / 2);
    made_plan_free(&made);
}

/* The size that the link model picks is nowhere near as good as another one can be, by more than
 * what rounding to a power of two takes: all sizes, one stage whose weights are even. */
static void test_simulate_bucket_size(void **state)
{
    (void)state;
    setting s;
    made_plan made;
    open_layers(&s, &made, "F0.0 B0.0 R.0 O");
    s.cluster.intra_node = (smp_link_spec){.latency_us = 10, .bytes_per_s = 1e9};
    for (int64_t bytes = 1 << 16; bytes <= 1 << 30; bytes *= 4) {
        const int64_t size = smp_bucket_bytes(&s.input, 0, bytes);
        const double latency_us = 20.0, us_per_byte = 1e-3;
        double least_us = INFINITY;
        for (int64_t k = 1 << 10; k <= bytes; k *= 2)
            least_us =
                fmin(least_us, (double)k * us_per_byte + (double)bytes / (double)k * latency_us);
        const int64_t taken = size > 0 ? size : bytes;
        const double us = (double)taken * us_per_byte + (double)bytes / (double)taken * latency_us;
        assert_true(us <= 1.3 * least_us || taken == SMP_LEAST_BUCKET);
    }
    s.cluster.cores_per_node = 2; /* the cores move the data */
    assert_int_equal(0, smp_bucket_bytes(&s.input, 0, 1 << 28));
    made_plan_free(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_simulate_buckets_as_they_are_made),
        cmocka_unit_test(test_simulate_buckets_of_groups),
        cmocka_unit_test(test_simulate_bucket_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
