/* Costs of split graphs: what is exchanged, worked out by hand; profiles of the whole and of the
 * split graph; groups that share cores. */
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

#include "graph/model/op.h"
#include "graph/split/splitting.h"
#include "profile/costs.h"
#include "profile/estimate.h"
#include "profile/overlap_costs.h"

#define CALL_US 1.0 /* of a call, on devices that are not described */

enum { BATCH = 10, MOST_OPS = 16, DEVICES = 4 };

/* Megatron-LM's pair of products: columns, then rows, whose sum is reduced. */
static const char mlp[] = "smp: 1\n"
                          "name: mlp\n"
                          "inputs:\n"
                          "  x: {dtype: float32, shape: [8, 64]}\n"
                          "  y: {dtype: int32, shape: [8]}\n"
                          "ops:\n"
                          "  - {op: linear, name: in, in: x, out: h, features: 64}\n"
                          "  - {op: linear, name: a, in: h, out: h, features: 32}\n"
                          "  - {op: gelu, name: g, in: h, out: h}\n"
                          "  - {op: linear, name: b, in: h, out: h, features: 64}\n"
                          "  - {op: linear, name: head, in: h, out: h, features: 16, bias: false}\n"
                          "  - {op: cross_entropy, name: loss, in: [h, y], out: loss}\n"
                          "loss: loss\n";

static const smp_split_entry megatron[] = {{.op = "a", .as = "columns"},
                                           {.op = "g", .as = "elements@1"},
                                           {.op = "b", .as = "rows"},
                                           {.op = "head", .as = "columns"},
                                           {.op = "loss", .as = "classes"}};

static smp_graph *open_split(int n_entry)
{
    const smp_splitting splitting = {.devices = DEVICES, .n_entry = n_entry, .entry = megatron};
    smp_graph *graph = NULL;
    if (smp_graph_parse("model.yaml", mlp, strlen(mlp), &graph) != SMP_OK ||
        smp_splitting_apply(&splitting, 0, &graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    return graph;
}

/* A message of b bytes takes 5 + b / 1000 us. */
typedef struct machine {
    smp_device_spec device;
    smp_cluster cluster;
} machine;

static void machine_open(machine *m, double flops, double bytes_per_s, double slowdown)
{
    m->device = (smp_device_spec){
        .name = "test", .memory_bytes = 1 << 30, .flops_fp32 = flops, .bytes_per_s = bytes_per_s};
    m->cluster = (smp_cluster){.name = "test",
                               .nodes = 1,
                               .devices_per_node = 1,
                               .device = &m->device,
                               .intra_node = {.latency_us = 5, .bytes_per_s = 1e9},
                               .group = DEVICES,
                               .group_slowdown = slowdown};
}

static double message_us(double bytes)
{
    return 5 + bytes / 1000;
}

static smp_costs *build(const smp_graph *graph, const machine *m, const smp_profile *profile)
{
    smp_costs *costs = NULL;
    if (smp_costs_build(graph, &m->cluster, profile, BATCH, &costs) != SMP_OK)
        fail_msg("%s", smp_last_error());
    return costs;
}

static const smp_op_cost *cost_of(const smp_graph *graph, const smp_costs *costs, const char *name)
{
    const int32_t o = smp_graph_find_op(graph, name);
    if (o < 0)
        fail_msg("there is no op '%s'", name);
    return &costs->op[o];
}

static void assert_near(double got, double expected)
{
    if (!(fabs(got - expected) <= 1e-9 * fabs(expected)))
        fail_msg("got %.17g, expected %.17g", got, expected);
}

/* Traffic and arithmetic are free: calls of 1 us, and what is exchanged. */
static void test_exchanges_take_what_the_link_does(void **state)
{
    smp_graph *graph = open_split(5);
    machine m;
    (void)state;
    machine_open(&m, 1e30, 1e30, 1);
    smp_costs *costs = build(graph, &m, NULL);
    const double sum_us = 2 * (DEVICES - 1) * message_us(4.0 * BATCH * 8 * 64 / DEVICES);
    /* the gradient of what a reads is summed, the value of what b makes */
    assert_near(cost_of(graph, costs, "in:shared")->forward_us, 1);
    assert_near(cost_of(graph, costs, "in:shared")->backward_us, 1 + sum_us);
    assert_near(cost_of(graph, costs, "in:shared")->backward_input_us, 1 + sum_us);
    assert_near(cost_of(graph, costs, "in:shared")->backward_exchange_us, sum_us);
    assert_true(cost_of(graph, costs, "in:shared")->forward_exchange_us == 0);
    assert_near(cost_of(graph, costs, "b:whole")->forward_us, 1 + sum_us);
    assert_near(cost_of(graph, costs, "b:whole")->forward_exchange_us, sum_us);
    assert_true(cost_of(graph, costs, "a")->forward_exchange_us == 0);
    assert_near(cost_of(graph, costs, "b:whole")->backward_us, 1);
    assert_near(cost_of(graph, costs, "b:bias")->forward_us, 1);
    /* of each row a maximum, a sum, the target's logit and a sum for smoothing */
    assert_near(cost_of(graph, costs, "loss")->forward_us,
                1 + (DEVICES - 1) * message_us(16.0 * BATCH * 8));
    assert_near(cost_of(graph, costs, "loss")->backward_us, 1);
    assert_near(cost_of(graph, costs, "g")->forward_us, 1);
    assert_string_equal(costs->source, "estimated from the peaks of test");
    smp_costs_destroy(costs);
    smp_graph_destroy(graph);
}

static void test_parts_of_products_take_a_share(void **state)
{
    smp_graph *graph = open_split(5);
    machine m;
    (void)state;
    machine_open(&m, 1e9, 1e30, 1);
    smp_costs *costs = build(graph, &m, NULL);
    const double product = 2.0 * BATCH * 8 * 64 * 32 / DEVICES, bias = BATCH * 8.0 * 32 / DEVICES;
    assert_near(cost_of(graph, costs, "a")->forward_us, 1 + (product + bias) / 1e3);
    assert_near(cost_of(graph, costs, "a")->backward_input_us, 1 + product / 1e3);
    assert_near(cost_of(graph, costs, "b")->forward_us, 1 + product / 1e3); /* its bias is apart */
    assert_int_equal(cost_of(graph, costs, "a")->weight_bytes, 4 * (64 * 32 + 32) / DEVICES);
    assert_int_equal(cost_of(graph, costs, "b")->weight_bytes, 4 * 64 * 32 / DEVICES);
    assert_int_equal(cost_of(graph, costs, "b:bias")->weight_bytes, 4 * 64);
    smp_costs_destroy(costs);
    smp_graph_destroy(graph);
}

/* Op i of the graph takes 100 + i forward, 30 + i and 60 + i backward. */
static smp_profile make_profile(const smp_graph *graph, smp_op_cost *cost, const char **name)
{
    for (int32_t i = 0; i < graph->n_op; i++) {
        const bool weights = graph->op[i].n_param > 0;
        cost[i] = (smp_op_cost){.forward_us = 100 + i,
                                .backward_input_us = 30 + i,
                                .backward_weight_us = weights ? 60 + i : 0};
        cost[i].backward_us = cost[i].backward_input_us + cost[i].backward_weight_us;
        name[i] = graph->op[i].name;
    }
    return (smp_profile){.model = graph->name,
                         .fingerprint = graph->fingerprint,
                         .device = "cpu",
                         .dtype = "fp32",
                         .microbatch_size = BATCH,
                         .n_op = graph->n_op,
                         .name = name,
                         .op = cost};
}

/* The same arithmetic on a device of which nothing but the profile is known to be right. */
static void test_a_profile_of_the_whole_is_shared_out(void **state)
{
    smp_graph *graph = open_split(3);
    smp_op_cost measured[MOST_OPS];
    const char *name[MOST_OPS];
    machine m;
    (void)state;
    machine_open(&m, 1e9, 1e30, 1);
    const smp_profile profile = make_profile(graph->whole, measured, name);
    smp_costs *costs = build(graph, &m, &profile);
    const double rows = BATCH * 8, product = 2 * rows * 64 * 32 / 1e3, bias = rows * 32 / 1e3;
    const double sum_us = 2 * (DEVICES - 1) * message_us(4 * rows * 64 / DEVICES);
    const smp_op_cost *a = cost_of(graph, costs, "a"), *b = cost_of(graph, costs, "b");
    assert_near(a->forward_us, 101 * (1 + (product + bias) / DEVICES) / (1 + product + bias));
    assert_near(a->backward_input_us, 31 * (1 + product / DEVICES) / (1 + product));
    assert_near(a->backward_weight_us,
                61 * (1 + (product + bias) / DEVICES) / (1 + product + bias));
    assert_near(a->backward_us, a->backward_input_us + a->backward_weight_us);
    assert_near(b->forward_us, 103 * (1 + product / DEVICES) / (1 + product + 2 * bias));
    assert_int_equal(a->weight_bytes, 4 * (64 * 32 + 32) / DEVICES);
    /* what is whole takes what was measured, what is new an estimate */
    assert_near(cost_of(graph, costs, "in")->forward_us, 100);
    assert_near(cost_of(graph, costs, "in")->backward_us, 30 + 60);
    assert_near(cost_of(graph, costs, "loss")->forward_us, 105);
    assert_near(cost_of(graph, costs, "in:shared")->backward_us, 1 + sum_us);
    assert_near(cost_of(graph, costs, "b:bias")->forward_us, 1 + rows * 64 / 1e3);
    assert_string_equal(costs->source, "measured, estimated from the peaks of test");
    smp_costs_destroy(costs);
    /* nothing is split: nothing is estimated */
    smp_graph_destroy(graph);
    graph = open_split(0);
    const smp_profile again = make_profile(graph->whole, measured, name);
    costs = build(graph, &m, &again);
    for (int32_t i = 0; i < graph->n_op; i++) {
        assert_near(costs->op[i].forward_us, measured[i].forward_us);
        assert_near(costs->op[i].backward_us, measured[i].backward_us);
    }
    assert_string_equal(costs->source, "measured");
    smp_costs_destroy(costs);
    smp_graph_destroy(graph);
}

/* What is added takes traffic, at the rate at which the profile's gradients are added up: two are
 * read and one is written. */
static void test_a_profile_tells_the_rate_of_traffic(void **state)
{
    smp_graph *graph = open_split(5);
    smp_op_cost measured[MOST_OPS];
    const char *name[MOST_OPS];
    machine m;
    (void)state;
    machine_open(&m, 1e30, 1e6, 1);
    m.cluster.intra_node = (smp_link_spec){.bytes_per_s = 1e30};
    smp_profile profile = make_profile(graph->whole, measured, name);
    profile.reduce_bytes_per_s = 5e8;
    smp_costs *costs = build(graph, &m, &profile);
    /* copied; then laid out to be sent, added up, a share of it written, put together */
    assert_near(cost_of(graph, costs, "b:whole")->forward_us,
                1 + (2 + 2 + 1 + 1.0 / DEVICES + 2) * 4 * BATCH * 8 * 64 / 1.5e3);
    smp_costs_destroy(costs);
    smp_graph_destroy(graph);
}

static char path[64];

static smp_profile *write_and_read(const smp_profile *profile, const smp_graph *graph)
{
    smp_profile *read = NULL;
    assert_int_equal(smp_profile_write(profile, path), SMP_OK);
    return smp_profile_read(path, graph, &read) == SMP_OK ? read : NULL;
}

/* That of the whole, that of the split graph, which counts as it is, and no other. */
static void test_profiles_are_read_for_a_split_graph(void **state)
{
    smp_graph *graph = open_split(5), *other = open_split(3);
    smp_op_cost measured[MOST_OPS];
    const char *name[MOST_OPS];
    machine m;
    (void)state;
    machine_open(&m, 1e9, 1e9, 3); /* times of its own have the waits in them */
    smp_profile own = make_profile(graph, measured, name);
    smp_profile *read = write_and_read(&own, graph);
    assert_non_null(read);
    smp_costs *costs = build(graph, &m, read);
    for (int32_t i = 0; i < graph->n_op; i++) {
        assert_true(costs->op[i].forward_us == measured[i].forward_us);
        assert_true(costs->op[i].backward_us == measured[i].backward_us);
    }
    assert_string_equal(costs->source, "measured");
    smp_costs_destroy(costs);
    costs = NULL;
    assert_int_equal(smp_costs_build(other, &m.cluster, read, BATCH, &costs), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "split otherwise"));
    assert_null(costs);
    assert_null(write_and_read(&own, other));
    assert_null(write_and_read(&own, graph->whole));
    assert_non_null(strstr(smp_last_error(), "another model"));
    smp_profile_destroy(read);

    const smp_profile whole = make_profile(graph->whole, measured, name);
    read = write_and_read(&whole, graph);
    assert_non_null(read);
    assert_int_equal(read->n_op, graph->whole->n_op);
    assert_string_equal(read->name[1], "a");
    costs = build(graph, &m, read);
    assert_string_equal(costs->source, "measured, estimated from the peaks of test");
    smp_costs_destroy(costs);
    smp_profile_destroy(read);
    smp_graph_destroy(graph);
    smp_graph_destroy(other);
}

/* Who writes profiles by another tool knows the model, not how it is split. */
static void test_a_profile_without_fingerprint_is_of_the_whole(void **state)
{
    smp_graph *graph = open_split(5);
    smp_profile *read = NULL;
    FILE *file = fopen(path, "w");
    (void)state;
    assert_non_null(file);
    fprintf(file, "smp: 1\nmodel: {name: m}\ndevice: cpu\ndtype: fp32\nmicrobatch_size: 1\nops:\n");
    for (int32_t i = 0; i < graph->whole->n_op; i++)
        fprintf(file, "- {name: %s, forward_us: %d, backward_us: 2}\n", graph->whole->op[i].name,
                i + 1);
    assert_int_equal(fclose(file), 0);
    if (smp_profile_read(path, graph, &read) != SMP_OK)
        fail_msg("%s", smp_last_error());
    assert_true(read->fingerprint == graph->whole->fingerprint);
    assert_true(read->op[3].forward_us == 4);
    smp_profile_destroy(read);
    smp_graph_destroy(graph);
}

/* Everything takes longer, measured on one device or estimated; and who waits for others in an
 * exchange gets its core from them, twice in a sum. */
static void test_groups_take_turns_on_few_cores(void **state)
{
    smp_graph *graph = open_split(5);
    smp_op_cost measured[MOST_OPS];
    const char *name[MOST_OPS];
    machine alone, crowded;
    (void)state;
    machine_open(&alone, 1e9, 7e9, 1);
    machine_open(&crowded, 1e9, 7e9, 3);
    smp_profile profile = make_profile(graph->whole, measured, name);
    profile.optimizer_bytes_per_s = 6e9;
    alone.cluster.core_switch_us = crowded.cluster.core_switch_us = 50;
    int n_switched = 0;
    for (int k = 0; k < 2; k++) {
        smp_costs *one = build(graph, &alone, k ? &profile : NULL);
        smp_costs *three = build(graph, &crowded, k ? &profile : NULL);
        for (int32_t i = 0; i < graph->n_op; i++) {
            smp_op_work work;
            smp_op_work_get(graph, &graph->op[i], BATCH, &work);
            const double forth = 50.0 * (double)(work.forward_exchange.messages / (DEVICES - 1));
            const double back =
                50.0 * (double)(work.backward_input_exchange.messages / (DEVICES - 1));
            n_switched += forth + back > 0;
            assert_near(three->op[i].forward_us, 3 * (one->op[i].forward_us + forth));
            assert_near(three->op[i].backward_us, 3 * (one->op[i].backward_us + back));
            assert_near(three->op[i].backward_input_us, 3 * (one->op[i].backward_input_us + back));
            assert_near(three->op[i].backward_weight_us, 3 * one->op[i].backward_weight_us);
        }
        assert_near(one->optimizer_bytes_per_s, k ? 6e9 : 1e9);
        assert_near(three->optimizer_bytes_per_s, k ? 2e9 : 1e9 / 3);
        assert_near(smp_costs_summands_us(graph, &crowded.cluster, 1000),
                    3 * (smp_costs_summands_us(graph, &alone.cluster, 1000) + 2 * 50));
        smp_costs_destroy(one);
        smp_costs_destroy(three);
    }
    assert_int_equal(n_switched, 2 * 4); /* before a, behind b, before head, in the loss */
    smp_graph_destroy(graph);
}

/* Of the sum of gradients only what a's and b's weight gradients do not hide; a stage that lacks
 * one of the two, or whose backward is split, takes the rest beside the costs of its ops. */
static void test_what_weight_gradients_hide(void **state)
{
    machine m;
    (void)state;
    for (int slow = 0; slow < 2; slow++) {
        smp_graph *graph = open_split(5);
        double exposed_us[4];
        machine_open(&m, slow ? 1e7 : 1e30, 1e30, 1);
        smp_costs *plain = build(graph, &m, NULL);
        graph->overlap = true;
        smp_costs *none = build(graph, &m, NULL); /* exchanges do not run beside compute */
        m.cluster.overlap = true;
        smp_costs *costs = build(graph, &m, NULL);
        m.cluster.cores_per_node = DEVICES;
        smp_costs *cores = build(graph, &m, NULL); /* cores move the data */
        const int32_t sum = smp_graph_find_op(graph, "in:shared");
        const int32_t a = smp_graph_find_op(graph, "a"), b = smp_graph_find_op(graph, "b");
        const int32_t head = smp_graph_find_op(graph, "head");
        const int32_t before_head = graph->tensor[graph->op[head].in[0]].producer;
        const double sum_us = 2 * (DEVICES - 1) * message_us(4.0 * BATCH * 8 * 64 / DEVICES);
        const double a_us = costs->op[a].backward_weight_us, b_us = costs->op[b].backward_weight_us;
        const double hidden_us = fmin(sum_us, a_us + b_us);
        assert_true(slow ? a_us > sum_us : a_us + b_us < sum_us);
        assert_null(none->hidden_us);
        assert_null(cores->hidden_us);
        for (int32_t i = 0; i < graph->n_op; i++) {
            const double head_us = fmin(sum_us, costs->op[head].backward_weight_us);
            const double off_us = i == sum ? hidden_us : i == before_head ? head_us : 0;
            assert_near(none->op[i].backward_us, plain->op[i].backward_us);
            assert_near(cores->op[i].backward_us, plain->op[i].backward_us);
            assert_near(costs->op[i].backward_us + off_us, plain->op[i].backward_us);
            assert_near(costs->op[i].backward_input_us + off_us, plain->op[i].backward_input_us);
            assert_near(costs->op[i].forward_us, plain->op[i].forward_us);
            assert_near(costs->hidden_us[i] + 1, off_us + 1);
        }
        const struct {
            int32_t op[3];
            int n;
            bool split;
            double us;
        } stages[4] = {{{sum, a, b}, 3, false, 0},
                       {{sum, a, b}, 3, true, hidden_us},
                       {{sum, a}, 2, false, hidden_us - fmin(sum_us, a_us)},
                       {{a, b}, 2, false, 0}};
        for (int k = 0; k < 4; k++) {
            assert_int_equal(smp_costs_exposed_us(costs, graph, stages[k].op, stages[k].n,
                                                  stages[k].split, &exposed_us[k]),
                             SMP_OK);
            assert_near(exposed_us[k] + 1, stages[k].us + 1);
        }
        smp_costs_destroy(cores);
        smp_costs_destroy(costs);
        smp_costs_destroy(none);
        smp_costs_destroy(plain);
        smp_graph_destroy(graph);
    }
}

/* Half the bytes in both rooflines; floats between the devices as before. */
static void test_the_whole_has_the_target_of_its_part(void **state)
{
    static const smp_target bf16 = {SMP_BACKEND_CPU, SMP_PRECISION_BF16};
    smp_graph *graph = open_split(5);
    smp_op_cost measured[MOST_OPS];
    const char *name[MOST_OPS];
    machine m;
    (void)state;
    machine_open(&m, 1e30, 1e9, 1);
    smp_profile profile = make_profile(graph->whole, measured, name);
    profile.dtype = "bf16";
    assert_int_equal(smp_graph_set_target(graph, bf16), SMP_OK);
    smp_costs *costs = build(graph, &m, &profile);
    const double part_us = 1 + 2 * 2.0 * BATCH * 8 * 8 / 1e3,
                 us = 1 + 2 * 2.0 * BATCH * 8 * 32 / 1e3;
    assert_near(cost_of(graph, costs, "g")->forward_us, 102 * part_us / us);
    assert_near(cost_of(graph, costs, "b:whole")->forward_us,
                1 + (2 * 2.0 + (5 + 1.0 / DEVICES) * 4) * BATCH * 8 * 64 / 1e3 +
                    2 * (DEVICES - 1) * message_us(4.0 * BATCH * 8 * 64 / DEVICES));
    smp_costs_destroy(costs);
    smp_graph_destroy(graph);
}

/* What the product before it did along with its own kernel has none in the profile; apart from it,
 * it has one. */
static void test_pairs_that_are_split_apart(void **state)
{
    static const smp_split_entry entries[] = {{.op = "a", .as = "columns"},
                                              {.op = "g", .as = "elements@0"}};
    const smp_splitting splitting = {.devices = DEVICES, .n_entry = 2, .entry = entries};
    smp_graph *graph = NULL;
    smp_op_cost measured[MOST_OPS];
    const char *name[MOST_OPS];
    machine m;
    (void)state;
    machine_open(&m, 1e30, 1e9, 1);
    assert_int_equal(smp_graph_parse("model.yaml", mlp, strlen(mlp), &graph), SMP_OK);
    assert_int_equal(smp_graph_set_target(graph, (smp_target){SMP_BACKEND_CUDA, 0}), SMP_OK);
    assert_true(smp_op_fused(graph, 1));
    if (smp_splitting_apply(&splitting, 0, &graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    smp_profile profile = make_profile(graph->whole, measured, name);
    profile.device = "card";
    measured[2].forward_us = 0;
    smp_costs *costs = build(graph, &m, &profile);
    assert_near(cost_of(graph, costs, "g")->forward_us,
                1 + 2 * 4.0 * BATCH * 8 * 32 / DEVICES / 1e3);
    smp_costs_destroy(costs);
    smp_graph_destroy(graph);
}

/* An op in whose calls 3 messages of so many bytes each travel beside 4 pieces, and more of them
 * alone going backward. */
typedef struct ring_case {
    const char *text, *as, *kind;
    double forward_bytes, backward_bytes;
    int alone;
} ring_case;

/* On slow, middling and fast cores: what is longer decides, message or piece. */
static void check_ring(const ring_case *c)
{
    static const double rate[] = {1e30, 5e9, 1e6};
    const smp_split_entry entries[] = {{.op = "op", .as = c->as}};
    const smp_splitting splitting = {.devices = DEVICES, .n_entry = 1, .entry = entries};
    const double forward_us = message_us(c->forward_bytes);
    const double backward_us = message_us(c->backward_bytes);
    const double calls = 3 * CALL_US; /* of pieces */
    bool hidden[3];
    for (int k = 0; k < 3; k++) {
        smp_graph *graph = NULL;
        smp_op_cost alone = {0};
        machine m;
        machine_open(&m, rate[k], 1e30, 1);
        if (smp_graph_parse("model.yaml", c->text, strlen(c->text), &graph) != SMP_OK ||
            smp_splitting_apply(&splitting, 0, &graph) != SMP_OK)
            fail_msg("%s", smp_last_error());
        const smp_op *ring = &graph->op[smp_graph_find_op(graph, "op")];
        assert_string_equal(ring->kind->name, c->kind);
        assert_int_equal(smp__estimate_times(graph, ring, BATCH, &m.device, &alone), SMP_OK);
        const double forth = alone.forward_us, back = alone.backward_input_us;
        for (int beside = 0; beside < 2; beside++) {
            m.cluster.overlap = beside > 0;
            smp_costs *costs = build(graph, &m, NULL);
            const smp_op_cost *cost = cost_of(graph, costs, "op");
            assert_near(cost->forward_us,
                        calls + (beside ? 3 * fmax(forth / 4, forward_us) + forth / 4
                                        : forth + 3 * forward_us));
            assert_near(
                cost->backward_input_us,
                calls + c->alone * backward_us +
                    (beside ? 3 * fmax(back / 4, backward_us) + back / 4 : back + 3 * backward_us));
            assert_near(cost->backward_us, cost->backward_input_us + alone.backward_weight_us);
            smp_costs_destroy(costs);
        }
        hidden[k] = forth / 4 > forward_us;
        smp_graph_destroy(graph);
    }
    assert_true(!hidden[0] && hidden[2]);
}

/* Three rounds of four compute while keys and values of another device come; the four messages of
 * their gradients run alone, as everything does where exchanges do not run beside compute. */
static void test_a_ring_computes_while_keys_travel(void **state)
{
    static const ring_case c = {
        "smp: 1\nname: m\ninputs: {x: {dtype: float32, shape: [64, 24]}, "
        "target: {dtype: float32, shape: [64, 80]}}\nops:\n"
        "  - {op: linear, name: pre, in: x, out: h, features: 240}\n"
        "  - {op: attention, name: op, in: h, out: y, heads: 2, causal: true}\n"
        "  - {op: mse, name: loss, in: [y, target], out: loss}\nloss: loss\n",
        "packed ring",
        "ring_attention",
        4.0 * BATCH * 64 / DEVICES * 2 * 80,
        4.0 * BATCH * 64 / DEVICES * 2 * 80,
        4};
    (void)state;
    check_ring(&c);
}

/* Of x a device's rows go around, and the sums of their gradients; or those of y. */
static void test_products_compute_while_rows_travel(void **state)
{
    static const char text[] =
        "smp: 1\nname: m\ninputs: {x: {dtype: float32, shape: [64, 24]}, "
        "target: {dtype: float32, shape: [64, 48]}}\nops:\n"
        "  - {op: linear, name: pre, in: x, out: h, features: 24}\n"
        "  - {op: linear, name: op, in: h, out: y, features: 48}\n"
        "  - {op: mse, name: loss, in: [y, target], out: loss}\nloss: loss\n";
    const double rows = 4.0 * BATCH * 64 / DEVICES;
    const ring_case cases[] = {
        {text, "ring columns", "ring_linear", rows * 24, rows * 24, 0},
        {text, "zigzag ring columns", "ring_linear", rows * 24, rows * 24, 0},
        {text, "ring rows", "ring_linear", rows * 48, rows * 48, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_ring(&cases[i]);
}

static void test_what_no_link_carries_is_refused(void **state)
{
    smp_graph *graph = open_split(5);
    smp_costs *costs = NULL;
    machine m;
    (void)state;
    machine_open(&m, 1e9, 1e9, 1);
    m.cluster.intra_node = (smp_link_spec){0};
    assert_int_equal(smp_costs_build(graph, &m.cluster, NULL, BATCH, &costs), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "not finite"));
    assert_null(costs);
    smp_graph_destroy(graph);
}

static int make_path(void **state)
{
    (void)state;
    const char *base = getenv("TMPDIR");
    snprintf(path, sizeof path, "%.40s/smp-XXXXXX", base ? base : P_tmpdir);
    const int file = mkstemp(path);
    return file < 0 ? -1 : close(file);
}

static int remove_path(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exchanges_take_what_the_link_does),
        cmocka_unit_test(test_parts_of_products_take_a_share),
        cmocka_unit_test(test_a_profile_of_the_whole_is_shared_out),
        cmocka_unit_test(test_a_profile_tells_the_rate_of_traffic),
        cmocka_unit_test(test_profiles_are_read_for_a_split_graph),
        cmocka_unit_test(test_a_profile_without_fingerprint_is_of_the_whole),
        cmocka_unit_test(test_what_weight_gradients_hide),
        cmocka_unit_test(test_groups_take_turns_on_few_cores),
        cmocka_unit_test(test_the_whole_has_the_target_of_its_part),
        cmocka_unit_test(test_pairs_that_are_split_apart),
        cmocka_unit_test(test_a_ring_computes_while_keys_travel),
        cmocka_unit_test(test_products_compute_while_rows_travel),
        cmocka_unit_test(test_what_no_link_carries_is_refused),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
