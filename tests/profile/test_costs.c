/* The cost table: roofline numbers worked out by hand, precedence of its sources, bytes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "profile/costs.h"
#include "profile/estimate.h"

#define CALL_US 1.0 /* of a call, on devices that are not described */

enum { BATCH = 10 };

static const char mlp[] = "smp: 1\n"
                          "name: mlp\n"
                          "inputs:\n"
                          "  x: {dtype: float32, shape: [8, 64]}\n"
                          "  y: {dtype: float32, shape: [8, 16]}\n"
                          "ops:\n"
                          "  - {op: linear, name: a, in: x, out: h, features: 32}\n"
                          "  - {op: linear, name: b, in: h, out: h, features: 16%s}\n"
                          "  - {op: mse, name: loss, in: [h, y], out: loss}\n"
                          "loss: loss\n";

static smp_graph *parse(const char *format, const char *extra)
{
    char text[4096];
    smp_graph *graph = NULL;
    snprintf(text, sizeof text, format, extra);
    if (smp_graph_parse("model.yaml", text, strlen(text), &graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    return graph;
}

/* One device whose rates make either arithmetic or traffic the limit. */
static smp_cluster make_cluster(smp_device_spec *device, double flops, double bytes_per_s)
{
    *device = (smp_device_spec){
        .name = "test", .memory_bytes = 1 << 30, .flops_fp32 = flops, .bytes_per_s = bytes_per_s};
    return (smp_cluster){.name = "test", .nodes = 1, .devices_per_node = 1, .device = device};
}

static smp_costs *build(const smp_graph *graph, const smp_profile *profile, int64_t batch)
{
    smp_device_spec device;
    const smp_cluster cluster = make_cluster(&device, 1e9, 7e9);
    smp_costs *costs = NULL;
    if (smp_costs_build(graph, &cluster, profile, batch, &costs) != SMP_OK)
        fail_msg("%s", smp_last_error());
    return costs;
}

static void assert_near(double got, double expected)
{
    if (!(fabs(got - expected) <= 1e-9 * fabs(expected)))
        fail_msg("got %.17g, expected %.17g", got, expected);
}

static void test_costs_roofline_limited_by_arithmetic(void **state)
{
    smp_graph *graph = parse(mlp, "");
    smp_device_spec device;
    const smp_cluster cluster = make_cluster(&device, 1e9, 1e18);
    smp_costs *costs;
    (void)state;
    assert_int_equal(smp_costs_build(graph, &cluster, NULL, BATCH, &costs), SMP_OK);
    /* a: 80 rows of 64 -> 32; two flops per product, one per bias element; no input gradient */
    const double product = 2.0 * 80 * 64 * 32, bias = 80 * 32;
    assert_near(costs->op[0].forward_us, (product + bias) / 1e3 + CALL_US);
    assert_near(costs->op[0].backward_weight_us, (product + bias) / 1e3 + CALL_US);
    assert_true(costs->op[0].backward_input_us == 0);
    assert_true(costs->op[0].backward_us == costs->op[0].backward_weight_us);
    /* b: 32 -> 16, with an input gradient */
    assert_near(costs->op[1].backward_input_us, 2.0 * 80 * 32 * 16 / 1e3 + CALL_US);
    assert_near(costs->op[1].backward_us,
                costs->op[1].backward_input_us + costs->op[1].backward_weight_us);
    assert_string_equal(costs->source, "estimated from the peaks of test");
    smp_costs_destroy(costs);
    smp_graph_destroy(graph);
}

static void test_costs_roofline_limited_by_traffic(void **state)
{
    smp_graph *graph = parse(mlp, "");
    smp_device_spec device;
    const smp_cluster cluster = make_cluster(&device, 1e20, 7e6);
    smp_costs *costs;
    (void)state;
    assert_int_equal(smp_costs_build(graph, &cluster, NULL, BATCH, &costs), SMP_OK);
    /* a reads x (80 x 64), the weight and the bias and writes 80 x 32 */
    const double bytes = 4.0 * (80 * 64 + 64 * 32 + 32 + 80 * 32);
    assert_near(costs->op[0].forward_us, bytes / 7 + CALL_US);
    assert_near(costs->optimizer_bytes_per_s, 1e6);
    smp_costs_destroy(costs);
    smp_graph_destroy(graph);
}

static void test_costs_bytes_follow_from_shapes(void **state)
{
    smp_graph *graph = parse(mlp, "");
    smp_costs *costs = build(graph, NULL, BATCH);
    (void)state;
    assert_int_equal(costs->op[0].weight_bytes, 4 * (64 * 32 + 32));
    assert_int_equal(costs->op[1].weight_bytes, 4 * (32 * 16 + 16));
    assert_int_equal(costs->op[0].output_bytes, 4 * 80 * 32);
    assert_int_equal(costs->op[1].output_bytes, 4 * 80 * 16);
    assert_int_equal(costs->op[2].output_bytes, 4); /* a loss is one number per micro-batch */
    /* b's weight gradient reads a's output; x is a model input; mse's backward reads b's output */
    assert_int_equal(costs->op[0].stash_bytes, 4 * 80 * 32);
    assert_int_equal(costs->op[1].stash_bytes, 4 * 80 * 16);
    smp_costs_destroy(costs);
    smp_graph_destroy(graph);
}

static void test_costs_charge_a_tensor_once_and_a_tied_weight_twice(void **state)
{
    static const char text[] =
        "smp: 1\nname: tied\n"
        "inputs:\n  x: {dtype: float32, shape: [4]}\n"
        "  y: {dtype: float32, shape: [4]}\n"
        "ops:\n"
        "  - {op: linear, name: a, in: x, out: h, features: 4, bias: false}\n"
        "  - {op: linear, name: b, in: h, out: p, features: 4, bias: false, "
        "weight: a.weight}\n"
        "  - {op: linear, name: c, in: h, out: q, features: 4, bias: false}\n"
        "  - {op: add, name: d, in: [p, q], out: r}\n"
        "  - {op: mse, name: loss, in: [r, y], out: loss}\n"
        "loss: loss\n%s";
    smp_graph *graph = parse(text, "");
    smp_costs *costs = build(graph, NULL, 1);
    (void)state;
    assert_int_equal(costs->op[0].weight_bytes, 64);
    assert_int_equal(costs->op[1].weight_bytes, 64);
    assert_int_equal(costs->op[0].stash_bytes, 16); /* h, read by the backward of b and of c */
    assert_int_equal(costs->op[1].stash_bytes + costs->op[2].stash_bytes, 0);
    smp_costs_destroy(costs);
    smp_graph_destroy(graph);
}

static void test_costs_inference_has_no_backward(void **state)
{
    static const char text[] = "smp: 1\nname: i\nmode: inference\n"
                               "inputs:\n  x: {dtype: float32, shape: [4]}\n"
                               "ops:\n  - {op: linear, name: a, in: x, out: h, features: 4}\n"
                               "  - {op: gelu, name: b, in: h, out: h, cost: {forward_us: 2, "
                               "backward_us: 5}}\n%s";
    smp_graph *graph = parse(text, "");
    smp_costs *costs = build(graph, NULL, 1);
    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_true(costs->op[i].forward_us > 0);
        assert_true(costs->op[i].backward_us == 0 && costs->op[i].backward_input_us == 0);
        assert_int_equal(costs->op[i].stash_bytes, 0);
    }
    smp_costs_destroy(costs);
    smp_graph_destroy(graph);
}

static smp_profile make_profile(const smp_graph *graph, smp_op_cost *cost)
{
    for (int32_t i = 0; i < graph->n_op; i++)
        cost[i] = (smp_op_cost){.forward_us = 10 + i,
                                .backward_us = 40,
                                .backward_input_us = 30,
                                .backward_weight_us = 10,
                                .weight_bytes = 1000 + i,
                                .stash_bytes = 2000 + i,
                                .output_bytes = 3000 + i,
                                .workspace_bytes = 4000 + i};
    return (smp_profile){.model = "mlp",
                         .fingerprint = graph->fingerprint,
                         .device = "cpu",
                         .dtype = "fp32",
                         .microbatch_size = BATCH,
                         .n_op = graph->n_op,
                         .op = cost,
                         .optimizer_bytes_per_s = 5e8};
}

/* On the CPU 20 bytes for 28, and the time of random bits; a profile with such states stays. */
static void test_costs_of_bf16_states(void **state)
{
    static const smp_target small = {SMP_BACKEND_CPU, SMP_PRECISION_FP32, true};
    smp_graph *graph = parse(mlp, "");
    smp_op_cost measured[3];
    smp_profile profile = make_profile(graph, measured);
    smp_costs *costs;
    (void)state;
    assert_int_equal(smp_graph_set_target(graph, small), SMP_OK);
    costs = build(graph, &profile, BATCH);
    assert_near(4e9 / costs->optimizer_bytes_per_s, 8 * 20.0 / 28 + 1.4);
    smp_costs_destroy(costs);
    profile.bf16_states = true;
    costs = build(graph, &profile, BATCH);
    assert_true(costs->optimizer_bytes_per_s == 5e8);
    smp_costs_destroy(costs);
    smp_graph_destroy(graph);
}

static void test_costs_given_beats_profile_beats_roofline(void **state)
{
    static const char given[] = ", cost: {forward_us: 1.5, backward_us: 8}";
    smp_graph *graph = parse(mlp, given);
    smp_op_cost measured[3];
    const smp_profile profile = make_profile(graph, measured);
    smp_costs *costs = build(graph, &profile, BATCH);
    (void)state;
    assert_true(costs->op[0].forward_us == 10 && costs->op[0].backward_us == 40);
    assert_int_equal(costs->op[0].stash_bytes, 2000);
    assert_int_equal(costs->op[0].workspace_bytes, 4000);
    assert_true(costs->op[1].forward_us == 1.5 && costs->op[1].backward_us == 8);
    assert_true(costs->op[1].backward_input_us == 6 && costs->op[1].backward_weight_us == 2);
    assert_int_equal(costs->op[1].weight_bytes, 1001); /* not given: the profile's */
    assert_true(costs->optimizer_bytes_per_s == 5e8);
    assert_string_equal(costs->source, "measured, given by the model");
    smp_costs_destroy(costs);

    costs = build(graph, NULL, BATCH);
    assert_true(costs->op[1].forward_us == 1.5 && costs->op[1].backward_us == 8);
    assert_int_equal(costs->op[1].weight_bytes, 4 * (32 * 16 + 16));
    assert_string_equal(costs->source, "estimated from the peaks of test, given by the model");
    smp_costs_destroy(costs);
    smp_graph_destroy(graph);
}

/* Given for an op of which nothing says how its backward divides: halves, or all of it the input's
 * where there is no weight. */
static void test_costs_divide_a_backward_that_is_given(void **state)
{
    static const char model[] =
        "smp: 1\nname: mlp\ninputs: {x: {dtype: float32, shape: [4]}}\nops:\n"
        "  - {op: linear, name: a, in: x, out: x, features: 4}\n"
        "  - {op: linear, name: b, in: x, out: x, features: 4%s}\n"
        "  - {op: relu, name: c, in: x, out: x%s}\n";
    static const char given[] = ", cost: {backward_us: 8}";
    char text[512];
    smp_graph *graph = NULL;
    smp_op_cost measured[3];
    (void)state;
    snprintf(text, sizeof text, model, given, given);
    assert_int_equal(smp_graph_parse("m.yaml", text, strlen(text), &graph), SMP_OK);
    const smp_profile profile = make_profile(graph, measured);
    measured[1].backward_input_us = measured[1].backward_weight_us = 0;
    measured[2].backward_input_us = measured[2].backward_weight_us = 0;
    smp_costs *costs = build(graph, &profile, BATCH);
    assert_true(costs->op[1].backward_input_us == 4 && costs->op[1].backward_weight_us == 4);
    assert_true(costs->op[2].backward_input_us == 8 && costs->op[2].backward_weight_us == 0);
    smp_costs_destroy(costs);
    smp_graph_destroy(graph);
}

static void test_costs_scale_a_profile_of_another_size(void **state)
{
    smp_graph *graph = parse(mlp, "");
    smp_op_cost measured[3];
    const smp_profile profile = make_profile(graph, measured);
    smp_costs *costs = build(graph, &profile, 2 * BATCH);
    (void)state;
    assert_true(costs->op[0].forward_us == 20 && costs->op[0].backward_us == 80);
    assert_true(costs->op[0].backward_input_us == 60 && costs->op[0].backward_weight_us == 20);
    assert_int_equal(costs->op[0].weight_bytes, 1000);
    assert_int_equal(costs->op[0].output_bytes, 2 * 4 * 80 * 32); /* exact, from the shape */
    assert_int_equal(costs->microbatch_size, 2 * BATCH);
    smp_costs_destroy(costs);
    smp_graph_destroy(graph);
}

static const char opaque[] =
    "smp: 1\nname: o\n%s"
    "ops:\n"
    "  - {op: opaque, name: n1, out: t1, cost: {forward_us: 3, backward_us: "
    "6, weight_bytes: 10, stash_bytes: 20, output_bytes: 30}}\n"
    "  - {op: opaque, name: n2, in: t1, out: t2, cost: {forward_us: 4}}\n";

static void test_costs_opaque_uses_what_is_given(void **state)
{
    smp_graph *graph = parse(opaque, "");
    smp_costs *costs = build(graph, NULL, 1);
    (void)state;
    assert_true(costs->op[0].forward_us == 3 && costs->op[0].backward_us == 6);
    assert_int_equal(costs->op[0].weight_bytes, 10);
    assert_int_equal(costs->op[0].stash_bytes, 20);
    assert_int_equal(costs->op[0].output_bytes, 30);
    assert_true(costs->op[1].backward_us == 8); /* not given: twice the forward */
    assert_int_equal(costs->op[1].stash_bytes, 0);
    smp_costs_destroy(costs);
    smp_graph_destroy(graph);

    graph = parse(opaque, "mode: inference\n");
    costs = build(graph, NULL, 1);
    assert_true(costs->op[0].backward_us == 0 && costs->op[1].backward_us == 0);
    assert_string_equal(costs->source, "given by the model");
    smp_costs_destroy(costs);
    smp_graph_destroy(graph);
}

static const char measured_opaque[] = "smp: 1\nname: m\n"
                                      "ops:\n"
                                      "  - {op: opaque, name: n1, out: t1}\n"
                                      "  - {op: opaque, name: n2, in: t1, out: t2%s}\n";

/* Where no shape says them, bytes are those of the profile in proportion, rounded up; they end at
 * what may be added. Weights are the same at any size. */
static void test_costs_scale_the_bytes_of_opaque_ops(void **state)
{
    smp_graph *graph = parse(measured_opaque, "");
    smp_op_cost measured[2];
    const smp_profile profile = make_profile(graph, measured);
    (void)state;
    measured[1].workspace_bytes = INT64_C(1) << 61;
    smp_costs *costs = build(graph, &profile, 3 * BATCH / 2);
    assert_true(costs->op[1].forward_us == 16.5);
    assert_int_equal(costs->op[1].weight_bytes, 1001);
    assert_int_equal(costs->op[1].stash_bytes, 3002);
    assert_int_equal(costs->op[1].output_bytes, 4502);
    assert_int_equal(costs->op[0].workspace_bytes, 6000);
    assert_int_equal(costs->op[1].workspace_bytes, INT64_C(3) << 60);
    smp_costs_destroy(costs);
    costs = build(graph, &profile, 4 * BATCH);
    assert_int_equal(costs->op[1].workspace_bytes, INT64_C(1) << 62);
    smp_costs_destroy(costs);
    smp_graph_destroy(graph);
}

/* Nothing is a number, too. */
static void test_costs_given_bytes_may_be_none(void **state)
{
    smp_graph *graph =
        parse(measured_opaque, ", cost: {forward_us: 0, weight_bytes: 0, stash_bytes: 0, "
                               "output_bytes: 0}");
    smp_op_cost measured[2];
    const smp_profile profile = make_profile(graph, measured);
    smp_costs *costs = build(graph, &profile, BATCH);
    (void)state;
    assert_true(costs->op[1].forward_us == 0 && costs->op[1].backward_us == 40);
    assert_int_equal(costs->op[1].weight_bytes, 0);
    assert_int_equal(costs->op[1].stash_bytes, 0);
    assert_int_equal(costs->op[1].output_bytes, 0);
    assert_int_equal(costs->op[1].workspace_bytes, 4001);
    smp_costs_destroy(costs);
    smp_graph_destroy(graph);
}

/* Each of the three sums may come to 2^62 and no further, the end of its type or not. */
static void test_costs_refuse_sums_that_overflow(void **state)
{
    static const struct {
        int64_t first, second;
        smp_status status;
    } cases[] = {{INT64_C(1) << 61, INT64_C(1) << 61, SMP_OK},
                 {INT64_C(1) << 61, (INT64_C(1) << 61) + 512, SMP_ERR_INPUT},
                 {INT64_C(1) << 62, INT64_C(1) << 62, SMP_ERR_INPUT}};
    smp_graph *graph = parse(measured_opaque, "");
    smp_op_cost measured[2];
    smp_device_spec device;
    const smp_cluster cluster = make_cluster(&device, 1e9, 1e9);
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int field = 0; field < 3; field++) {
            const smp_profile profile = make_profile(graph, measured);
            for (int op = 0; op < 2; op++) {
                smp_op_cost *cost = &measured[op];
                int64_t *const sums[] = {&cost->weight_bytes, &cost->stash_bytes,
                                         &cost->output_bytes};
                *sums[field] = op == 0 ? cases[i].first : cases[i].second;
            }
            smp_costs *costs = NULL;
            assert_int_equal(smp_costs_build(graph, &cluster, &profile, BATCH, &costs),
                             cases[i].status);
            if (cases[i].status != SMP_OK)
                assert_non_null(strstr(smp_last_error(), "exceed 4096 PiB"));
            smp_costs_destroy(costs);
        }
    smp_graph_destroy(graph);
}

/* A model reader may refuse such a model itself; if it does not, the cost table does. */
static void test_costs_refuse_an_opaque_op_without_cost(void **state)
{
    static const char text[] = "smp: 1\nname: o\nops:\n"
                               "  - {op: opaque, name: dark, out: t1}\n";
    smp_device_spec device;
    const smp_cluster cluster = make_cluster(&device, 1e9, 1e9);
    smp_graph *graph = NULL;
    smp_costs *costs = NULL;
    (void)state;
    if (smp_graph_parse("model.yaml", text, strlen(text), &graph) == SMP_OK)
        assert_int_equal(smp_costs_build(graph, &cluster, NULL, 1, &costs), SMP_ERR_INPUT);
    assert_null(costs);
    assert_non_null(strstr(smp_last_error(), "model.yaml:4:"));
    assert_non_null(strstr(smp_last_error(), "dark"));
    smp_graph_destroy(graph);
}

static void test_costs_refuse_impossible_sizes(void **state)
{
    static const char huge[] = "smp: 1\nname: h\nmode: inference\n"
                               "inputs:\n  x: {dtype: float32, shape: [1000000, 1000000]}\n"
                               "ops:\n  - {op: relu, name: a, in: x, out: h}\n"
                               "  - {op: relu, name: b, in: h, out: h}\n%s";
    static const char total[] =
        "smp: 1\nname: t\nmode: inference\nops:\n  - repeat: 8\n    as: i\n    ops:\n"
        "      - {op: opaque, name: \"n{i}\", out: x, cost: {forward_us: 1, output_bytes: "
        "1000000000000000000}}\n%s";
    smp_device_spec device;
    const smp_cluster cluster = make_cluster(&device, 1e9, 1e9);
    smp_costs *costs = NULL;
    smp_graph *graph = parse(huge, "");
    (void)state;
    assert_int_equal(smp_costs_build(graph, &cluster, NULL, 0, &costs), SMP_ERR_INPUT);
    assert_int_equal(smp_costs_build(graph, &cluster, NULL, -1, &costs), SMP_ERR_INPUT);
    assert_int_equal(smp_costs_build(graph, &cluster, NULL, INT64_MAX, &costs), SMP_ERR_INPUT);
    assert_int_equal(smp_costs_build(graph, &cluster, NULL, 1 << 20, &costs), SMP_ERR_INPUT);
    smp_graph_destroy(graph);
    if (smp_graph_parse("model.yaml", total, strlen(total) - 2, &graph) == SMP_OK) {
        assert_int_equal(smp_costs_build(graph, &cluster, NULL, 1, &costs), SMP_ERR_INPUT);
        smp_graph_destroy(graph);
    }
    assert_null(costs);
}

static void test_costs_refuse_the_profile_of_another_model(void **state)
{
    smp_graph *graph = parse(mlp, "");
    smp_op_cost measured[3];
    smp_profile profile = make_profile(graph, measured);
    smp_device_spec device;
    const smp_cluster cluster = make_cluster(&device, 1e9, 1e9);
    smp_costs *costs = NULL;
    (void)state;
    profile.fingerprint ^= 1;
    assert_int_equal(smp_costs_build(graph, &cluster, &profile, BATCH, &costs), SMP_ERR_INPUT);
    assert_null(costs);
    smp_graph_destroy(graph);
}

static void test_costs_slowdown_is_relative_to_device_0(void **state)
{
    smp_device_spec device[2] = {{.flops_fp32 = 80e12}, {.flops_fp32 = 20e12}};
    const smp_cluster cluster = {.nodes = 1, .devices_per_node = 2, .device = device};
    (void)state;
    assert_true(smp_device_slowdown(&cluster, SMP_PRECISION_FP32, 0) == 1);
    assert_true(smp_device_slowdown(&cluster, SMP_PRECISION_FP32, 1) == 4);
    device[0].flops_bf16 = 300e12;
    assert_true(smp_device_slowdown(&cluster, SMP_PRECISION_BF16, 1) == 4); /* one gives none */
    device[1].flops_bf16 = 30e12;
    assert_true(smp_device_slowdown(&cluster, SMP_PRECISION_BF16, 1) == 10);
    assert_true(smp_device_slowdown(&cluster, SMP_PRECISION_TF32, 1) == 10);
    assert_true(smp_device_slowdown(&cluster, SMP_PRECISION_FP32, 1) == 4);
    device[0].speed = device[1].speed = 0.5; /* costs are those at full speed, also of device 0 */
    assert_true(smp_device_slowdown(&cluster, SMP_PRECISION_FP32, 0) == 2);
    assert_true(smp_device_slowdown(&cluster, SMP_PRECISION_FP32, 1) == 8);
}

static smp_status build_on(const smp_graph *graph, const smp_device_spec *device, smp_costs **out)
{
    const smp_cluster cluster = {
        .name = "test", .nodes = 1, .devices_per_node = 1, .device = device};
    return smp_costs_build(graph, &cluster, NULL, BATCH, out);
}

/* Bytes of activations by half, products at the rate of bf16, the rest as before. */
static void test_costs_of_bf16(void **state)
{
    static const smp_target bf16 = {SMP_BACKEND_CUDA, SMP_PRECISION_BF16};
    smp_device_spec device = {.name = "card",
                              .memory_bytes = 1 << 30,
                              .flops_fp32 = 1e9,
                              .flops_bf16 = 4e9,
                              .bytes_per_s = 7e18};
    smp_graph *graph = parse(mlp, "");
    smp_costs *full, *half, *tf32, *none = NULL;
    (void)state;
    assert_int_equal(smp_weight_element_bytes(graph, 2), 16);
    assert_int_equal(build_on(graph, &device, &full), SMP_OK);
    assert_int_equal(smp_graph_set_target(graph, bf16), SMP_OK);
    assert_int_equal(smp_weight_element_bytes(graph, 2), 18);
    assert_int_equal(build_on(graph, &device, &half), SMP_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(full->op[i].output_bytes, 2 * half->op[i].output_bytes);
        assert_int_equal(full->op[i].stash_bytes, 2 * half->op[i].stash_bytes);
        assert_int_equal(full->op[i].weight_bytes, half->op[i].weight_bytes);
        assert_near(full->op[i].forward_us - CALL_US, 4 * (half->op[i].forward_us - CALL_US));
        assert_near(full->op[i].backward_weight_us - CALL_US,
                    4 * (half->op[i].backward_weight_us - CALL_US));
    }
    assert_true(full->op[2].forward_us == half->op[2].forward_us); /* mse: no products */
    assert_int_equal(half->op[2].output_bytes, 4);
    assert_near(full->optimizer_bytes_per_s * 7, half->optimizer_bytes_per_s * 7.5);

    /* tf32: half of bf16 unless it is given */
    const smp_target with_tf32 = {SMP_BACKEND_CUDA, SMP_PRECISION_TF32};
    assert_int_equal(smp_graph_set_target(graph, with_tf32), SMP_OK);
    for (int given = 0; given < 2; given++) {
        device.flops_tf32 = given ? 3e9 : 0;
        assert_int_equal(build_on(graph, &device, &tf32), SMP_OK);
        assert_near(full->op[0].forward_us - CALL_US,
                    (given ? 3 : 2) * (tf32->op[0].forward_us - CALL_US));
        assert_int_equal(tf32->op[0].output_bytes, full->op[0].output_bytes);
        smp_costs_destroy(tf32);
    }
    device.flops_tf32 = device.flops_bf16 = 0;
    assert_int_equal(build_on(graph, &device, &tf32), SMP_OK);
    assert_true(tf32->op[0].forward_us == full->op[0].forward_us);
    smp_costs_destroy(tf32);

    assert_int_equal(smp_graph_set_target(graph, bf16), SMP_OK);
    assert_int_equal(build_on(graph, &device, &none), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "'card'"));
    assert_non_null(strstr(smp_last_error(), "`compute: bf16`"));
    assert_null(none);
    smp_costs_destroy(full);
    smp_costs_destroy(half);
    smp_graph_destroy(graph);
}

/* Where the rule has fp8, products at its rate and the bytes of rounding both factors, which
 * nothing hides; a head is as in bf16, and on a CPU products have its rate. */
static void test_costs_of_fp8(void **state)
{
    static const char two[] = "smp: 1\nname: two\ninputs:\n"
                              "  x: {dtype: float32, shape: [32]}\n"
                              "  y: {dtype: float32, shape: [48]}\nops:\n"
                              "  - {op: linear, name: a, in: x, out: h, features: 16}\n"
                              "  - {op: linear, name: head, in: h, out: z, features: 48}\n"
                              "  - {op: mse, name: loss, in: [z, y], out: loss}\nloss: loss\n%s";
    static const smp_precision precisions[] = {SMP_PRECISION_BF16, SMP_PRECISION_FP8};
    smp_device_spec device = {.name = "card",
                              .memory_bytes = 1 << 30,
                              .flops_fp32 = 1e9,
                              .flops_bf16 = 4e9,
                              .flops_fp8 = 8e9,
                              .bytes_per_s = 1e10};
    const double x = BATCH * 32, y = BATCH * 16, w = 16 * 32, flops = 2 * x * 16, us = 1e6;
    (void)state;
    for (int cpu = 0; cpu < 2; cpu++) {
        smp_costs *costs[2], *none = NULL;
        smp_graph *graph = parse(two, "");
        for (int i = 0; i < 2; i++) {
            const smp_target target = {cpu ? SMP_BACKEND_CPU : SMP_BACKEND_CUDA, precisions[i]};
            assert_int_equal(smp_graph_set_target(graph, target), SMP_OK);
            assert_int_equal(build_on(graph, &device, &costs[i]), SMP_OK);
        }
        const smp_op_cost *half = costs[0]->op, *fp8 = costs[1]->op;
        const double bias = y, each = cpu ? 6 : 5, rate = cpu ? 4e9 : 8e9;
        assert_near(half[0].forward_us - CALL_US, (flops + bias) / 4e9 * us);
        assert_near(fp8[0].forward_us - 2 * CALL_US,
                    (flops + bias) / rate * us + each * (x + w) / 1e10 * us);
        assert_near(fp8[0].backward_weight_us - 2 * CALL_US,
                    (flops + bias) / rate * us + each * (x + y) / 1e10 * us);
        assert_true(fp8[1].forward_us == half[1].forward_us);
        assert_true(fp8[1].workspace_bytes == half[1].workspace_bytes);
        assert_true(fp8[0].workspace_bytes >= (int64_t)((x + w) * (cpu ? 2 : 1)));
        device.flops_fp8 = 0;
        assert_int_equal(build_on(graph, &device, &none), cpu ? SMP_OK : SMP_ERR_INPUT);
        if (!cpu)
            assert_non_null(strstr(smp_last_error(), "`compute: fp8`"));
        device.flops_fp8 = 8e9;
        smp_costs_destroy(none);
        smp_costs_destroy(costs[0]);
        smp_costs_destroy(costs[1]);
        smp_graph_destroy(graph);
    }
}

static void test_costs_refuse_a_profile_of_another_target(void **state)
{
    static const struct {
        const char *device, *dtype;
        smp_target target;
        bool good;
    } cases[] = {
        {"cpu", "fp32", {SMP_BACKEND_CPU, SMP_PRECISION_FP32}, true},
        {"H200", "bf16", {SMP_BACKEND_CUDA, SMP_PRECISION_BF16}, true},
        {"H200", "tf32", {SMP_BACKEND_CUDA, SMP_PRECISION_TF32}, true},
        {"H200", "fp8", {SMP_BACKEND_CUDA, SMP_PRECISION_FP8}, true},
        {"H200", "bf16", {SMP_BACKEND_CUDA, SMP_PRECISION_FP8}, false},
        {"H200", "fp32", {SMP_BACKEND_CUDA, SMP_PRECISION_BF16}, false},
        {"H200", "fp32", {SMP_BACKEND_CPU, SMP_PRECISION_FP32}, false},
        {"cpu", "fp32", {SMP_BACKEND_CUDA, SMP_PRECISION_FP32}, false},
    };
    smp_graph *graph = parse(mlp, "");
    smp_op_cost measured[3];
    smp_profile profile = make_profile(graph, measured);
    smp_device_spec device;
    const smp_cluster cluster = make_cluster(&device, 1e9, 1e9); /* no bf16: none is needed */
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        smp_costs *costs = NULL;
        profile.device = cases[i].device;
        profile.dtype = cases[i].dtype;
        assert_int_equal(smp_graph_set_target(graph, cases[i].target), SMP_OK);
        assert_int_equal(smp_costs_build(graph, &cluster, &profile, BATCH, &costs),
                         cases[i].good ? SMP_OK : SMP_ERR_INPUT);
        if (!cases[i].good)
            assert_non_null(strstr(smp_last_error(), "measured on '"));
        smp_costs_destroy(costs);
    }
    smp_graph_destroy(graph);
}

static const char mlp_gelu[] = "smp: 1\nname: g\ninputs: {x: {dtype: float32, shape: [8, 64]}}\n"
                               "ops:\n"
                               "  - {op: linear, name: a, in: x, out: h, features: 32}\n"
                               "  - {op: gelu, name: b, in: h, out: h%s}\n";

/* A gelu that the product before it applies costs forward what it writes. */
static void test_costs_of_a_pair(void **state)
{
    static const smp_target cuda = {SMP_BACKEND_CUDA, SMP_PRECISION_FP32};
    (void)state;
    for (int pair = 0; pair < 2; pair++) {
        smp_graph *graph = parse(mlp_gelu, pair ? "" : ", approximate: erf");
        assert_int_equal(smp_graph_set_target(graph, cuda), SMP_OK);
        smp_costs *costs = build(graph, NULL, BATCH);
        const double written_us = 4.0 * BATCH * 8 * 32 / 7e9 * 1e6;
        assert_int_equal(pair, fabs(costs->op[1].forward_us - written_us) < 1e-9);
        assert_true(pair || costs->op[1].forward_us > 2 * written_us);
        smp_costs_destroy(costs);
        smp_graph_destroy(graph);
    }
}

/* An attention whose backward was measured by a library runs by ours where the products of the
 * graph do not name it, and takes what ours was measured to take. */
static void test_costs_of_the_algorithm_that_runs(void **state)
{
    static const char model[] =
        "smp: 1\nname: m\ninputs: {x: {dtype: float32, shape: [16, 192]}, "
        "y: {dtype: float32, shape: [16, 64]}}\nops:\n"
        "  - {op: linear, name: l, in: x, out: h, features: 192}\n"
        "  - {op: attention, name: a, in: h, out: h, heads: 1, causal: true}\n"
        "  - {op: mse, name: loss, in: [h, y], out: loss}\nloss: loss\n";
    static const char name[] = "attention backward, bf16, 2 x 1/1 heads of 64, 16 causal 16, "
                               "steps 192 192 192, 0.125";
    const smp_gemm_choice by_library = {name, "cuDNN 9.19.0", 40, 90};
    const smp_gemm_choice by_ours = {name, "tiled", 0, 0};
    const smp_gemm_choice unknown = {name, "cuDNN 9.19.0", 40, 0}; /* of an older profile */
    const struct {
        const smp_gemm_choice *measured, *runs;
        int64_t batch;
        double backward_us;
    } cases[] = {
        {&by_library, &by_library, 2, 100}, {&by_library, &by_ours, 2, 150},
        {&by_library, &by_library, 1, 75},  {&by_library, &by_library, 4, 300},
        {&by_library, NULL, 2, 150},        {&by_ours, &by_ours, 2, 100},
        {&unknown, &by_ours, 2, 100},
    };
    const char *const names[] = {"l", "a", "loss"};
    const smp_op_cost cost[3] = {{.forward_us = 1, .backward_us = 2, .backward_weight_us = 2},
                                 {.forward_us = 9, .backward_us = 100, .backward_input_us = 100},
                                 {.forward_us = 1, .backward_us = 1, .backward_input_us = 1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        smp_graph *graph = parse("%s", model);
        assert_int_equal(
            smp_graph_set_target(graph, (smp_target){SMP_BACKEND_CUDA, SMP_PRECISION_BF16}),
            SMP_OK);
        const smp_gemm_choices runs = {"g", "l", 1, cases[i].runs};
        const smp_profile profile = {.fingerprint = graph->fingerprint,
                                     .device = "g",
                                     .dtype = "bf16",
                                     .microbatch_size = 2,
                                     .n_op = 3,
                                     .name = names,
                                     .op = cost,
                                     .products = {"g", "l", 1, cases[i].measured}};
        if (cases[i].runs)
            assert_int_equal(smp_gemm_choices_give(&runs, graph), SMP_OK);
        smp_costs *costs = build(graph, &profile, cases[i].batch);
        assert_near(costs->op[1].backward_us, cases[i].backward_us);
        assert_near(costs->op[1].backward_input_us, cases[i].backward_us);
        assert_near(costs->op[1].forward_us, 4.5 * (double)cases[i].batch);
        smp_costs_destroy(costs);
        smp_graph_destroy(graph);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_costs_roofline_limited_by_arithmetic),
        cmocka_unit_test(test_costs_roofline_limited_by_traffic),
        cmocka_unit_test(test_costs_bytes_follow_from_shapes),
        cmocka_unit_test(test_costs_charge_a_tensor_once_and_a_tied_weight_twice),
        cmocka_unit_test(test_costs_inference_has_no_backward),
        cmocka_unit_test(test_costs_of_bf16_states),
        cmocka_unit_test(test_costs_given_beats_profile_beats_roofline),
        cmocka_unit_test(test_costs_divide_a_backward_that_is_given),
        cmocka_unit_test(test_costs_scale_a_profile_of_another_size),
        cmocka_unit_test(test_costs_opaque_uses_what_is_given),
        cmocka_unit_test(test_costs_scale_the_bytes_of_opaque_ops),
        cmocka_unit_test(test_costs_given_bytes_may_be_none),
        cmocka_unit_test(test_costs_refuse_sums_that_overflow),
        cmocka_unit_test(test_costs_refuse_an_opaque_op_without_cost),
        cmocka_unit_test(test_costs_refuse_impossible_sizes),
        cmocka_unit_test(test_costs_refuse_the_profile_of_another_model),
        cmocka_unit_test(test_costs_slowdown_is_relative_to_device_0),
        cmocka_unit_test(test_costs_of_bf16),
        cmocka_unit_test(test_costs_of_fp8),
        cmocka_unit_test(test_costs_refuse_a_profile_of_another_target),
        cmocka_unit_test(test_costs_of_a_pair),
        cmocka_unit_test(test_costs_of_the_algorithm_that_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
