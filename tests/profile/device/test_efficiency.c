/* What operators reach of a device: products against a count of tiles by hand and by a naive
 * reference over random shapes, attention, hosts; descriptions good and broken, and the shipped
 * ones. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "graph/base/random.h"
#include "profile/costs.h"
#include "profile/device/cluster.h"

#define PEAK 1e12
#define BANDWIDTH 1e15 /* no traffic counts */

static char folder[64];

static void write_file(const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static smp_status read_cluster(const char *device, smp_cluster **out)
{
    char text[1024], path[128];
    snprintf(text, sizeof text, "smp: 1\nnodes: 1\ndevices_per_node: 1\ndevice: %s\n", device);
    write_file("c.yaml", text);
    snprintf(path, sizeof path, "%s/c.yaml", folder);
    return smp_cluster_read(path, out);
}

static smp_op_work product(int64_t count, int64_t m, int64_t n, int64_t k)
{
    const double flops = 2.0 * (double)count * (double)m * (double)n * (double)k;
    return (smp_op_work){.forward_flops = flops,
                         .backward_input_flops = flops,
                         .backward_weight_flops = flops,
                         .kind = SMP_OP_PRODUCT,
                         .product = {count, m, n, k}};
}

static double share(const smp_efficiency *e, smp_op_work work, smp_op_part part)
{
    const double us = smp_efficiency_us(e, &work, part, PEAK, BANDWIDTH) - e->call_us;
    return work.forward_flops / PEAK * 1e6 / us;
}

static void assert_near(double got, double expected)
{
    if (!(fabs(got - expected) <= 1e-9 * fabs(expected)))
        fail_msg("got %.17g, expected %.17g", got, expected);
}

static smp_efficiency of_tiles(void)
{
    smp_efficiency e = smp_efficiency_ideal;
    e.products = 0.8;
    e.processors = 10;
    e.n_tile = 1;
    e.tile[0] = (smp_tile){100, 50, 1};
    return e;
}

static void test_tiles_are_dealt_out_in_waves(void **state)
{
    smp_efficiency e = of_tiles();
    (void)state;
    /* 10 tiles: one full wave; 11 take two */
    assert_near(share(&e, product(1, 500, 100, 400), SMP_OP_FORWARD), 0.8);
    assert_near(share(&e, product(1, 1100, 50, 400), SMP_OP_FORWARD), 0.8 * 11 / 20);
    assert_near(share(&e, product(11, 100, 50, 400), SMP_OP_FORWARD), 0.8 * 11 / 20);
    /* a tile that sticks out is computed whole */
    assert_near(share(&e, product(1, 401, 100, 400), SMP_OP_FORWARD), 0.8 * 401 / 500);
    e.lost_k = 100;
    assert_near(share(&e, product(1, 500, 100, 400), SMP_OP_FORWARD), 0.8 * 0.8);
    /* one tile with a long sum is cut along it: in eight parts of 1000 */
    assert_near(share(&e, product(1, 100, 50, 8000), SMP_OP_FORWARD), 0.8 * 8 / 10 * 1000 / 1100);
    /* the faster tile counts */
    e.lost_k = 0;
    e.tile[e.n_tile++] = (smp_tile){10, 50, 0.7};
    assert_near(share(&e, product(1, 100, 50, 100), SMP_OP_FORWARD), 0.8 * 0.7);
}

/* Every way to compute it, one after the other. */
static double naive_us(const smp_efficiency *e, int64_t count, int64_t m, int64_t n, int64_t k)
{
    double best = INFINITY;
    for (int t = 0; t < e->n_tile; t++)
        for (int64_t parts = 1; parts <= 8; parts *= 2) {
            if (parts > 1 && k < 512 * parts)
                continue;
            int64_t tiles = 0, waves = 0;
            for (int64_t c = 0; c < count * parts; c++)
                for (int64_t i = 0; i < m; i += e->tile[t].rows)
                    for (int64_t j = 0; j < n; j += e->tile[t].columns)
                        tiles++;
            for (int64_t left = tiles; left > 0; left -= (int64_t)e->processors)
                waves++;
            const double tile_us = 2.0 * e->tile[t].rows * e->tile[t].columns *
                                   ((double)k / (double)parts + e->lost_k) /
                                   (PEAK / e->processors * e->products * e->tile[t].share) * 1e6;
            best = fmin(best, (double)waves * tile_us);
        }
    return best + e->call_us;
}

static double uniform(uint64_t *random)
{
    *random = smp_random_mix(*random + 1);
    return (double)(*random >> 11) / (double)(1ULL << 53);
}

static int64_t below(uint64_t *random, int n)
{
    return (int64_t)(uniform(random) * n);
}

static void test_random_products(void **state)
{
    uint64_t random = 7;
    (void)state;
    for (int i = 0; i < 300; i++) {
        smp_efficiency e = smp_efficiency_ideal;
        e.products = 0.1 + 0.9 * uniform(&random);
        e.lost_k = 300 * uniform(&random);
        e.processors = 1 + (double)below(&random, 150);
        e.n_tile = 1 + (int)below(&random, SMP_MAX_TILES);
        for (int t = 0; t < e.n_tile; t++)
            e.tile[t] = (smp_tile){16 + (int)below(&random, 256), 16 + (int)below(&random, 256),
                                   0.3 + 0.7 * uniform(&random)};
        const int64_t count = 1 + below(&random, 4);
        const int64_t m = 1 + below(&random, 3000);
        const int64_t n = 1 + below(&random, 3000);
        const int64_t k = 1 + below(&random, 9000);
        const smp_op_work work = product(count, m, n, k);
        assert_near(smp_efficiency_us(&e, &work, SMP_OP_FORWARD, PEAK, BANDWIDTH),
                    naive_us(&e, count, m, n, k));
        /* dX (m, k) = dY W over n, dW (n, k) = dY^T X over m */
        assert_near(smp_efficiency_us(&e, &work, SMP_OP_BACKWARD_INPUT, PEAK, BANDWIDTH),
                    naive_us(&e, count, m, k, n));
        assert_near(smp_efficiency_us(&e, &work, SMP_OP_BACKWARD_WEIGHT, PEAK, BANDWIDTH),
                    naive_us(&e, count, n, k, m));
    }
}

static void test_attention(void **state)
{
    smp_efficiency e = smp_efficiency_ideal;
    const smp_op_work work = {.forward_flops = 4e9,
                              .backward_input_flops = 8e9,
                              .kind = SMP_OP_ATTENTION,
                              .product = {2, 1000, 1000, 100}};
    (void)state;
    smp_op_work blocks = work; /* on cores: a microsecond each forward, 2.5 backward */
    blocks.blocks = 100;
    assert_near(smp_efficiency_us(&e, &blocks, SMP_OP_FORWARD, PEAK, BANDWIDTH), 4e3 + 1 + 100);
    assert_near(smp_efficiency_us(&e, &blocks, SMP_OP_BACKWARD_INPUT, PEAK, BANDWIDTH),
                8e3 + 1 + 250);
    e.attention_forward = 0.5;
    e.attention_backward = 0.4;
    e.attention_keys = 250;
    assert_near(smp_efficiency_us(&e, &work, SMP_OP_FORWARD, PEAK, BANDWIDTH), 4e3 / 0.4 + 1);
    assert_near(smp_efficiency_us(&e, &work, SMP_OP_BACKWARD_INPUT, PEAK, BANDWIDTH),
                8e3 / (0.4 * 0.8) + 1);
    /* written: both products, masked scores too, and their bytes at the bandwidth */
    e.score_bytes_forward = 10;
    e.score_bytes_backward = 20;
    e.memory = 0.5;
    const double scores = 2e6, products = 2 * 2 * scores * 100 / PEAK * 1e6;
    assert_near(smp_efficiency_us(&e, &work, SMP_OP_FORWARD, PEAK, 1e12),
                products + scores * 10 / 0.5e12 * 1e6 + 1);
    assert_near(smp_efficiency_us(&e, &work, SMP_OP_BACKWARD_INPUT, PEAK, 1e12),
                2 * products + scores * 20 / 0.5e12 * 1e6 + 1);
}

static void test_description(void **state)
{
    smp_cluster *c;
    (void)state;
    write_file(
        "card.yaml",
        "smp: 1\nname: card\nmemory: 8GB\ncompute: {fp32: 1TFLOP/s, bf16: 4TFLOP/s}\n"
        "bandwidth: 1GB/s\nefficiency: {products: 0.75, lost_k: 10, processors: 3, error: 0.2,\n"
        "  tiles: [{rows: 64, columns: 32, share: 0.5}], from: hand}\n");
    assert_int_equal(read_cluster("{description: card.yaml}", &c), SMP_OK);
    const smp_efficiency *e = c->device[0].efficiency;
    assert_non_null(e);
    assert_string_equal(c->device[0].name, "card");
    assert_true(c->device[0].flops_bf16 == 4e12 && e->products == 0.75 && e->lost_k == 10);
    assert_true(e->processors == 3 && e->n_tile == 1 && e->tile[0].rows == 64);
    assert_true(e->memory == 1 && e->call_us == 1 && e->error == 0.2);
    assert_string_equal(e->from, "hand");
    smp_cluster_destroy(c);
    assert_int_equal(read_cluster("{description: card.yaml, efficiency: {lost_k: 20}}", &c),
                     SMP_OK);
    e = c->device[0].efficiency;
    assert_true(e->products == 0.75 && e->lost_k == 20 && e->n_tile == 1 && e->error == 0.2);
    smp_cluster_destroy(c);
    assert_int_equal(read_cluster("{description: card.yaml, memory: 2GB, name: other}", &c),
                     SMP_OK);
    assert_string_equal(c->device[0].name, "other");
    assert_int_equal(c->device[0].memory_bytes, 2000000000);
    assert_true(c->device[0].flops_bf16 == 4e12 && c->device[0].efficiency->products == 0.75);
    smp_cluster_destroy(c);
}

/* Names without a folder or an ending are those of examples/devices/, from wherever. */
static void test_descriptions_name_descriptions(void **state)
{
    smp_cluster *c;
    (void)state;
    write_file("card.yaml",
               "smp: 1\nname: card\nmemory: 8GB\ncompute: {fp32: 1TFLOP/s}\nbandwidth: 1GB/s\n"
               "efficiency: {products: 0.75, lost_k: 10}\n");
    write_file("half.yaml",
               "smp: 1\ndescription: card.yaml\nmemory: 9GB\nefficiency: {lost_k: 20}\n");
    assert_int_equal(read_cluster("{description: half.yaml, bandwidth: 2GB/s}", &c), SMP_OK);
    assert_string_equal(c->device[0].name, "card");
    assert_true(c->device[0].memory_bytes == 9000000000 && c->device[0].flops_fp32 == 1e12);
    assert_true(c->device[0].bytes_per_s == 2e9);
    assert_true(c->device[0].efficiency->products == 0.75);
    assert_true(c->device[0].efficiency->lost_k == 20);
    smp_cluster_destroy(c);
    assert_int_equal(read_cluster("{description: a100-40gb-sxm}", &c), SMP_OK);
    assert_string_equal(c->device[0].name, "a100-40gb-sxm");
    assert_true(c->device[0].memory_bytes == 40000000000 && c->device[0].flops_bf16 == 312e12);
    assert_int_equal(c->device[0].efficiency->processors, 108);
    smp_cluster_destroy(c);
}

static void expect_error(const char *device, const char *message)
{
    smp_cluster *c;
    if (read_cluster(device, &c) != SMP_ERR_INPUT || !strstr(smp_last_error(), message))
        fail_msg("%s: '%s' in '%s'", device, message, smp_last_error());
}

static void test_broken_descriptions(void **state)
{
    (void)state;
#define FIGURES "memory: 8GB, compute: {fp32: 1TFLOP/s}, bandwidth: 1GB/s"
    expect_error("{description: nowhere.yaml}", "nowhere.yaml");
    expect_error("{" FIGURES ", efficiency: {product: 0.5}}", "products");
    expect_error("{" FIGURES ", efficiency: {products: 1.5}}", "products");
    expect_error("{" FIGURES ", efficiency: {products: 0}}", "products");
    expect_error("{" FIGURES ", efficiency: {tiles: [{rows: 0, columns: 1, share: 1}]}}", "rows");
    expect_error(
        "{" FIGURES
        ", efficiency: {tiles: [{rows: 1, columns: 1, share: 1}, {rows: 1, columns: 1, share: 1}, "
        "{rows: 1, columns: 1, share: 1}, {rows: 1, columns: 1, share: 1}, {rows: 1, columns: 1, "
        "share: 1}, "
        "{rows: 1, columns: 1, share: 1}, {rows: 1, columns: 1, share: 1}, {rows: 1, columns: 1, "
        "share: 1}, "
        "{rows: 1, columns: 1, share: 1}]}}",
        "at most 8");
    write_file("half.yaml", "smp: 1\nmemory: 8GB\ncompute: {fp32: 1TFLOP/s}\n");
    expect_error("{description: half.yaml}", "bandwidth");
    write_file("half.yaml", "smp: 1\ndescription: half.yaml\n");
    expect_error("{description: half.yaml}", "half.yaml:2:14: device: description: more than 4");
    expect_error("{description: h100-80gb-sxn}", "did you mean 'h100-80gb-sxm'?");
    expect_error("{description: card}", "unknown device 'card', expected one of a100-40gb-sxm, ");
}

/* The host launches a call in 100 us, and the device needs far less: a pass of three calls. */
static void test_host_counts_for_a_whole_pass(void **state)
{
    static const char model[] = "smp: 1\nname: m\ninputs: {x: {dtype: fp32, shape: [8]}, y: "
                                "{dtype: fp32, shape: [8]}}\nops:\n"
                                "  - {op: linear, name: a, in: x, out: h, features: 8}\n"
                                "  - {op: relu, name: r, in: h, out: h}\n"
                                "  - {op: mse, name: loss, in: [h, y], out: loss}\nloss: loss\n";
    smp_efficiency e = smp_efficiency_ideal;
    smp_device_spec device = {.name = "d",
                              .memory_bytes = 1 << 30,
                              .flops_fp32 = PEAK,
                              .bytes_per_s = 1e12,
                              .efficiency = &e};
    const smp_cluster cluster = {.name = "c", .nodes = 1, .devices_per_node = 1, .device = &device};
    smp_graph *graph;
    smp_costs *costs;
    (void)state;
    if (smp_graph_parse("m.yaml", model, sizeof model - 1, &graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    e.host_us = 100;
    e.error = 0.25;
    e.from = "hand";
    assert_int_equal(smp_costs_build(graph, &cluster, NULL, 1, &costs), SMP_OK);
    double forward = 0, backward = 0;
    for (int i = 0; i < 3; i++) {
        forward += costs->op[i].forward_us;
        backward += costs->op[i].backward_us;
        assert_near(costs->op[i].backward_us,
                    costs->op[i].backward_input_us + costs->op[i].backward_weight_us);
    }
    assert_near(forward, 300);
    assert_near(backward, 300); /* of a its weights alone */
    assert_string_equal(costs->source, "estimated from d (hand)");
    assert_true(costs->error == 0.25);
    smp_costs_destroy(costs);
    e.host_us = 0.001;
    assert_int_equal(smp_costs_build(graph, &cluster, NULL, 1, &costs), SMP_OK);
    assert_true(costs->op[1].forward_us < 2);
    smp_costs_destroy(costs);
    smp_graph_destroy(graph);
}

/* A pass of a model with something random in its middle: so long, and twice that of backward. */
static void passes_us(const smp_efficiency *e, smp_launch_costs launch, double *forward,
                      double *backward)
{
    static const char model[] = "smp: 1\nname: m\ninputs: {x: {dtype: fp32, shape: [8]}, y: "
                                "{dtype: fp32, shape: [8]}}\nops:\n"
                                "  - {op: linear, name: a, in: x, out: h, features: 8}\n"
                                "  - {op: relu, name: r, in: h, out: h}\n"
                                "  - {op: dropout, name: d, in: h, out: h, p: 0.5}\n"
                                "  - {op: linear, name: b, in: h, out: h, features: 8}\n"
                                "  - {op: mse, name: loss, in: [h, y], out: loss}\nloss: loss\n";
    const smp_device_spec device = {.name = "d",
                                    .memory_bytes = 1 << 30,
                                    .flops_fp32 = PEAK,
                                    .bytes_per_s = 1e12,
                                    .efficiency = e};
    const smp_cluster cluster = {
        .name = "c", .nodes = 1, .devices_per_node = 1, .device = &device, .launch = launch};
    smp_graph *graph;
    smp_costs *costs;
    assert_int_equal(smp_graph_parse("m.yaml", model, sizeof model - 1, &graph), SMP_OK);
    assert_int_equal(
        smp_graph_set_target(graph, (smp_target){SMP_BACKEND_CUDA, SMP_PRECISION_FP32}), SMP_OK);
    assert_int_equal(smp_costs_build(graph, &cluster, NULL, 1, &costs), SMP_OK);
    *forward = *backward = 0;
    for (int i = 0; i < graph->n_op; i++) {
        *forward += costs->op[i].forward_us;
        *backward += costs->op[i].backward_us;
    }
    smp_costs_destroy(costs);
    smp_graph_destroy(graph);
}

/* Where a job would capture its launches the host takes a graph's launch for each stretch: two, on
 * either side of what is random, whose calls are launched one by one. */
static void test_host_launches_graphs(void **state)
{
    smp_efficiency e = smp_efficiency_ideal;
    double forward, backward, device_us[2];
    (void)state;
    passes_us(&e, (smp_launch_costs){0}, &device_us[0], &device_us[1]);
    assert_true(device_us[0] < 10 && device_us[1] < 15);
    e.host_us = 100;
    passes_us(&e, (smp_launch_costs){0}, &forward, &backward); /* assumed: 3 us each */
    assert_near(forward, 100 + 2 * 3);
    assert_near(backward, 100 + 2 * 3);
    passes_us(&e, (smp_launch_costs){20, 15, 0.5}, &forward, &backward);
    assert_near(forward, 100 + 2 * 15 + 4 * 0.5);
    assert_near(backward, 100 + 2 * 15 + 5 * 0.5); /* b's two halves, a's weights alone */
    passes_us(&e, (smp_launch_costs){20, 50, 0.5}, &forward, &backward); /* graphs cost more */
    assert_near(forward, 5 * 100);
    assert_near(backward, 6 * 100);
    passes_us(&e, (smp_launch_costs){0.1, 0.1, 0}, &forward, &backward); /* not for the launches */
    assert_near(forward, 5 * 100);
    e.host_us = 0.001;
    passes_us(&e, (smp_launch_costs){0}, &forward, &backward);
    assert_true(forward == device_us[0] && backward == device_us[1]);
}

/* The rule that estimates and the executor share. */
static void test_graphs_pay(void **state)
{
    static const smp_launch_costs measured = {2, 6, 0.25};
    (void)state;
    assert_true(smp_graphs_pay(NULL, 2, 10, 60) && !smp_graphs_pay(NULL, 2, 10, 61)); /* 3 us */
    assert_true(smp_graphs_pay(&(smp_launch_costs){0}, 2, 10, 60));
    assert_false(smp_graphs_pay(NULL, 2, 10, 0));  /* no times are known */
    assert_false(smp_graphs_pay(NULL, 10, 10, 1)); /* a graph for each is no gain */
    assert_true(smp_graphs_pay(&measured, 2, 10, 40) && !smp_graphs_pay(&measured, 2, 10, 41));
    assert_false(smp_graphs_pay(&measured, 3, 10, 40)); /* 18 + 2.5 us for 20 */
    assert_near(smp_graphs_us(&measured, 3, 10), 20.5);
    assert_near(smp_graphs_us(NULL, 3, 10), 9);
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "efficiency-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    static const char *const names[] = {"c.yaml", "card.yaml", "half.yaml"};
    char path[128];
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiles_are_dealt_out_in_waves),
        cmocka_unit_test(test_random_products),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_description),
        cmocka_unit_test(test_descriptions_name_descriptions),
        cmocka_unit_test(test_broken_descriptions),
        cmocka_unit_test(test_host_counts_for_a_whole_pass),
        cmocka_unit_test(test_host_launches_graphs),
        cmocka_unit_test(test_graphs_pay),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
