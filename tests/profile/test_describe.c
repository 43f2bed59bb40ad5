/* A device's description from a profile: figures that times were made with come out again; the
 * shipped operators suffice for it; what it writes is read as a device. */
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

#include "profile/describe.h"
#include "profile/device/cluster.h"

#define PEAK 2e12
#define BANDWIDTH 5e10
enum { MOST_OPS = 32, BATCH = 2 };

/* Times of every op as an efficiency has them. */
static smp_profile made_with(const smp_graph *graph, const smp_efficiency *e, smp_op_cost *cost)
{
    assert_true(graph->n_op <= MOST_OPS);
    for (int32_t i = 0; i < graph->n_op; i++) {
        smp_op_work work;
        smp_op_work_get(graph, &graph->op[i], BATCH, &work);
        cost[i] = (smp_op_cost){
            .forward_us = smp_efficiency_us(e, &work, SMP_OP_FORWARD, PEAK, BANDWIDTH),
            .backward_input_us =
                smp_efficiency_us(e, &work, SMP_OP_BACKWARD_INPUT, PEAK, BANDWIDTH),
            .backward_weight_us =
                graph->op[i].n_param > 0
                    ? smp_efficiency_us(e, &work, SMP_OP_BACKWARD_WEIGHT, PEAK, BANDWIDTH)
                    : 0};
    }
    return (smp_profile){.microbatch_size = BATCH, .n_op = graph->n_op, .op = cost};
}

static smp_graph *read_graph(void)
{
    smp_graph *graph;
    if (smp_graph_read(SMP_SOURCE_DIR "/examples/profiles/describe-device.yaml", &graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    return graph;
}

static void assert_within(double got, double expected, double share)
{
    if (!(fabs(got - expected) <= share * fabs(expected)))
        fail_msg("got %.9g, expected %.9g", got, expected);
}

static void test_figures_come_out_again(void **state)
{
    smp_efficiency e = smp_efficiency_ideal;
    smp_op_cost cost[MOST_OPS];
    smp_device_measure m;
    smp_graph *graph = read_graph();
    (void)state;
    e.lost_k = 120;
    e.call_us = 0.5;
    e.attention_forward = 0.6;
    e.attention_backward = 0.4;
    const smp_profile profile = made_with(graph, &e, cost);
    assert_int_equal(smp_device_measure_get(graph, &profile, &m), SMP_OK);
    assert_within(m.flops_per_s, PEAK, 0.02);
    assert_within(m.lost_k, 120, 0.1);
    assert_within(m.bytes_per_s, BANDWIDTH, 0.02);
    assert_within(m.call_us, 0.5, 0.1);
    assert_within(m.attention_forward, 0.6, 0.02);
    assert_within(m.attention_backward, 0.4, 0.02);
    assert_true(m.error < 0.02 && m.n_part > graph->n_op);

    smp_text yaml = {0};
    char folder[] = "describe-XXXXXX", path[64], named[64];
    smp_cluster *c;
    assert_int_equal(smp_device_describe(&m, graph, "a \"card\"", 1 << 30, &yaml), SMP_OK);
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/card.yaml", folder);
    snprintf(named, sizeof named, "%s/c.yaml", folder);
    assert_int_equal(smp_file_write(path, yaml.data, yaml.length), SMP_OK);
    smp_text_free(&yaml);
    static const char cluster[] =
        "smp: 1\nnodes: 1\ndevices_per_node: 1\ndevice: {description: card.yaml}\n";
    assert_int_equal(smp_file_write(named, cluster, sizeof cluster - 1), SMP_OK);
    if (smp_cluster_read(named, &c) != SMP_OK)
        fail_msg("%s", smp_last_error());
    assert_string_equal(c->device[0].name, "a \"card\"");
    assert_int_equal(c->device[0].memory_bytes, 1 << 30);
    assert_within(c->device[0].flops_fp32, m.flops_per_s, 0.001);
    assert_within(c->device[0].efficiency->attention_backward, m.attention_backward, 0.01);
    assert_string_equal(c->device[0].efficiency->from, "measured here");
    smp_cluster_destroy(c);
    unlink(path);
    unlink(named);
    rmdir(folder);
    smp_graph_destroy(graph);
}

static void test_describe_wants_products(void **state)
{
    static const char model[] = "smp: 1\nname: m\ninputs: {x: {dtype: fp32, shape: [600, 600]}}\n"
                                "ops:\n  - {op: relu, name: r, in: x, out: y}\nmode: inference\n";
    smp_op_cost cost[MOST_OPS];
    smp_device_measure m;
    smp_graph *graph;
    (void)state;
    if (smp_graph_parse("m.yaml", model, sizeof model - 1, &graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    const smp_profile profile = made_with(graph, &smp_efficiency_ideal, cost);
    assert_int_equal(smp_device_measure_get(graph, &profile, &m), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "no product was measured"));
    smp_graph_destroy(graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_figures_come_out_again),
        cmocka_unit_test(test_describe_wants_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
