/* Prices against the costs of the graphs that choices make: networks split at random, every move,
 * with and without a profile. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/base/random.h"
#include "graph/model/op.h"
#include "graph/split/splitting.h"
#include "profile/split_prices.h"

enum { BATCH = 3, MICROBATCHES = 5, MOST_DEVICES = 4 };

static smp_graph *read_example(const char *name)
{
    char path[4096];
    smp_graph *graph = NULL;
    snprintf(path, sizeof path, "%s/examples/%s.yaml", SMP_SOURCE_DIR, name);
    if (smp_graph_read(path, &graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    return graph;
}

static smp_cluster *make_groups(int devices, int cores, smp_cluster **from)
{
    smp_cluster *groups = NULL;
    assert_int_equal(smp_cluster_local(2 * devices, from), SMP_OK);
    (*from)->cores_per_node = cores;
    assert_int_equal(smp_cluster_group(*from, devices, &groups), SMP_OK);
    return groups;
}

static uint64_t next(uint64_t *random)
{
    return *random = smp_random_mix(*random + 1);
}

/* Any that go together: those of weights with several uses and of sums are left whole. */
static smp_split_choice *choose(const smp_graph *graph, int devices, uint64_t *random)
{
    smp_split_choice *choice = calloc((size_t)graph->n_op, sizeof *choice);
    smp_split_choice all[SMP_SPLIT_CHOICES];
    assert_non_null(choice);
    for (int32_t o = 0; o < graph->n_op; o++) {
        const smp_op *op = &graph->op[o];
        const int n = smp_split_choices(graph, o, devices, all);
        choice[o] = all[next(random) % (uint64_t)n];
        bool suits = next(random) % 4 > 0;
        for (int32_t i = 0; i < op->n_in; i++)
            suits &= smp_split_in(graph, o, choice[o], i).way != SMP_PARTS;
        for (int32_t p = 0; p < op->n_param; p++) {
            const smp_param *param = &graph->param[op->param[p]];
            suits &= param->use_end - param->use_begin == 1 ||
                     smp_split_param(graph, o, choice[o], p, NULL).way != SMP_SPLIT;
        }
        if (!suits)
            choice[o] = all[0];
    }
    return choice;
}

/* Every op takes its own time, in proportion to nothing. */
static smp_profile make_profile(const smp_graph *graph, smp_op_cost *cost, const char **name)
{
    for (int32_t i = 0; i < graph->n_op; i++) {
        cost[i] = (smp_op_cost){.forward_us = 20 + i,
                                .backward_input_us = 30 + 2 * i,
                                .backward_weight_us = graph->op[i].n_param > 0 ? 7 + i : 0};
        cost[i].backward_us = cost[i].backward_input_us + cost[i].backward_weight_us;
        name[i] = graph->op[i].name;
    }
    return (smp_profile){.model = graph->name,
                         .fingerprint = graph->fingerprint,
                         .device = "cpu",
                         .dtype = "fp32",
                         .microbatch_size = 2,
                         .reduce_bytes_per_s = 3e9,
                         .n_op = graph->n_op,
                         .name = name,
                         .op = cost};
}

/* What smp_split_choose finds that the choice costs. */
static double price(const smp_graph *graph, int devices, const smp_split_prices *prices,
                    const smp_split_choice *choice)
{
    const size_t n = (size_t)graph->n_op;
    smp_split_choice *copy = calloc(n, sizeof *copy);
    bool *fixed = calloc(n, sizeof *fixed), exact;
    double us = 0;
    assert_true(copy && fixed);
    memcpy(copy, choice, n * sizeof *copy);
    memset(fixed, true, n * sizeof *fixed);
    if (smp_split_choose(graph, devices, smp_split_prices_costs(prices), fixed, copy, &us, &exact))
        fail_msg("%s", smp_last_error());
    free(copy);
    free(fixed);
    return us;
}

/* How many uses the weight has in the model. */
static double uses_of(const smp_graph *split, const smp_graph *whole, int32_t param)
{
    const smp_param *p = &whole->param[split->param[param].number];
    return p->use_end - p->use_begin;
}

/* The same of a split graph, by its cost table. elements: of weights on a device. */
static double total(const smp_graph *split, const smp_graph *whole, const smp_cluster *groups,
                    const smp_costs *costs, double *elements)
{
    double us = 0;
    *elements = 0;
    for (int32_t o = 0; o < split->n_op; o++) {
        const smp_op *op = &split->op[o];
        us += costs->op[o].forward_us + costs->op[o].backward_us;
        for (int32_t p = 0; p < op->n_param; p++) {
            const double uses = uses_of(split, whole, op->param[p]);
            const double own = (double)split->param[op->param[p]].elements / uses;
            *elements += own;
            if (split->training)
                us += 4e6 * own / costs->optimizer_bytes_per_s / MICROBATCHES;
            if (op->summands >> p & 1 && split->training)
                us += smp_costs_summands_us(split, groups, split->param[op->param[p]].elements) /
                      MICROBATCHES;
        }
    }
    return us;
}

static void assert_near(double got, double wanted, const char *what)
{
    if (!(fabs(got - wanted) <= 1e-9 * fabs(wanted)))
        fail_msg("%s: got %.12g, expected %.12g", what, got, wanted);
}

static int n_split, n_new; /* of all networks */

static void compare(const char *name, int devices, bool profiled, smp_target target,
                    uint64_t *random)
{
    smp_graph *graph = read_example(name), *split;
    const size_t n = (size_t)graph->n_op;
    smp_cluster *from, *groups = make_groups(devices, devices == 4 ? 2 : 16, &from);
    smp_op_cost *measured = calloc(n, sizeof *measured);
    const char **names = calloc(n, sizeof *names);
    smp_arena *arena = smp_arena_create();
    assert_true(measured && names && arena);
    smp_profile profile = make_profile(graph, measured, names);
    profile.dtype = smp_precision_name(target.precision);
    smp_split_prices *prices;
    smp_splitting splitting;
    smp_costs *costs;
    double elements;
    assert_int_equal(smp_graph_set_target(graph, target), SMP_OK);
    if (smp_split_prices_make(graph, groups, profiled ? &profile : NULL, BATCH, MICROBATCHES,
                              &prices))
        fail_msg("%s", smp_last_error());
    smp_split_choice *choice = choose(graph, devices, random);
    if (smp_splitting_make(graph, devices, choice, arena, &splitting) ||
        smp_splitting_split(&splitting, 0, graph, &split) ||
        smp_costs_build(split, groups, profiled ? &profile : NULL, BATCH, &costs))
        fail_msg("%s: %s", name, smp_last_error());
    assert_int_equal(split->devices, devices);
    const double us = total(split, graph, groups, costs, &elements);
    assert_near(price(graph, devices, prices, choice), us, name);
    smp_split_prices_weigh(prices, 0.25, 0);
    const double bytes = (double)smp_weight_element_bytes(split, smp_planned_states(true));
    assert_near(price(graph, devices, prices, choice), us + 0.25 * bytes * elements, name);
    n_split += splitting.n_entry;
    n_new += split->n_op - graph->n_op;
    smp_costs_destroy(costs);
    smp_split_prices_destroy(prices);
    smp_graph_destroy(split);
    smp_graph_destroy(graph);
    smp_cluster_destroy(groups);
    smp_cluster_destroy(from);
    smp_arena_destroy(arena);
    free(choice);
    free(measured);
    free(names);
}

static void test_prices_are_what_the_graph_costs(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt-tiny", "llama-tiny", "t5-small", "resnet-small",
                                        "moe-tiny"};
    static const smp_target fp32 = {SMP_BACKEND_CPU, SMP_PRECISION_FP32};
    static const smp_target bf16 = {SMP_BACKEND_CPU, SMP_PRECISION_BF16};
    uint64_t random = 7;
    for (int i = 0; i < 60; i++)
        compare(names[i % 5], i / 5 % 2 ? 4 : 2, i / 10 % 2, i % 4 == 3 ? bf16 : fp32, &random);
    assert_true(n_split > 500 && n_new > 500);
}

/* Of graphs that are whole the stash is exact: what is read in backward, once. */
static void test_memory_of_a_whole_graph(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt-tiny", "llama-tiny", "t5-small", "resnet-small",
                                        "moe-tiny"};
    for (int i = 0; i < 5; i++) {
        smp_graph *graph = read_example(names[i]);
        smp_cluster *from, *groups = make_groups(2, 16, &from);
        smp_split_choice *choice = calloc((size_t)graph->n_op, sizeof *choice);
        smp_split_prices *prices;
        smp_costs *costs;
        double bytes = 0;
        assert_non_null(choice);
        for (int32_t o = 0; o < graph->n_op; o++)
            choice[o] = (smp_split_choice){-1, 0, 1};
        assert_int_equal(smp_split_prices_make(graph, groups, NULL, BATCH, MICROBATCHES, &prices),
                         SMP_OK);
        assert_int_equal(smp_costs_build(graph, groups, NULL, BATCH, &costs), SMP_OK);
        for (int32_t o = 0; o < graph->n_op; o++)
            bytes += (double)costs->op[o].stash_bytes;
        const double us = price(graph, 2, prices, choice);
        smp_split_prices_weigh(prices, 0, 1);
        assert_near(price(graph, 2, prices, choice), us + bytes, names[i]);
        smp_costs_destroy(costs);
        smp_split_prices_destroy(prices);
        smp_cluster_destroy(groups);
        smp_cluster_destroy(from);
        smp_graph_destroy(graph);
        free(choice);
    }
}

/* Weights that do not fit are split, whatever that takes. */
static void test_dear_memory_splits_weights(void **state)
{
    (void)state;
    smp_graph *graph = read_example("gpt-tiny");
    smp_cluster *from, *groups = make_groups(2, 16, &from);
    smp_split_choice *choice = calloc((size_t)graph->n_op, sizeof *choice);
    smp_split_prices *prices;
    double us;
    bool exact;
    assert_int_equal(smp_split_prices_make(graph, groups, NULL, BATCH, MICROBATCHES, &prices),
                     SMP_OK);
    smp_split_prices_weigh(prices, 1, 0);
    assert_int_equal(
        smp_split_choose(graph, 2, smp_split_prices_costs(prices), NULL, choice, &us, &exact),
        SMP_OK);
    for (int32_t o = 0; o < graph->n_op; o++)
        for (int32_t p = 0; p < graph->op[o].n_param; p++)
            if (graph->param[graph->op[o].param[p]].shape.n_dim > 1 &&
                strcmp(graph->op[o].name, "wpe"))
                assert_int_equal(smp_split_param(graph, o, choice[o], p, NULL).way, SMP_SPLIT);
    smp_split_prices_destroy(prices);
    smp_cluster_destroy(groups);
    smp_cluster_destroy(from);
    smp_graph_destroy(graph);
    free(choice);
}

static smp_graph *read_longer(const char *name, const char *from, const char *to)
{
    char path[4096], text[8192], longer[8192];
    smp_graph *graph;
    snprintf(path, sizeof path, "%s/examples/%s.yaml", SMP_SOURCE_DIR, name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    const char *at = strstr(text, from);
    assert_non_null(at);
    snprintf(longer, sizeof longer, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    if (smp_graph_parse(name, longer, strlen(longer), &graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    return graph;
}

/* Of a mixture whose samples are long all positions stand in a zigzag from the first layer to the
 * last, keys and values travel around a ring, and tokens to their experts and back. */
static void test_long_samples(void **state)
{
    (void)state;
    static const char *const wanted[][2] = {
        {"norm_1", "positions"}, {"q", "positions"},      {"q_rope", "zigzag"},
        {"k_rope", "zigzag"},    {"attn", "zigzag ring"}, {"o", "positions"},
        {"res_1", "elements"},   {"norm_2", "positions"}, {"router", "positions"},
        {"balance", "zigzag"},   {"dispatch", "zigzag"},  {"gate", "experts"},
        {"up", "experts"},       {"down", "experts"},     {"combine", "zigzag"}};
    smp_graph *graph = read_longer("moe-tiny", "T: 64", "T: 4096");
    smp_cluster *from, *groups = make_groups(4, 16, &from);
    smp_split_choice *choice = calloc((size_t)graph->n_op, sizeof *choice);
    smp_split_prices *prices;
    double us;
    bool exact;
    assert_int_equal(smp_split_prices_make(graph, groups, NULL, BATCH, MICROBATCHES, &prices),
                     SMP_OK);
    assert_int_equal(
        smp_split_choose(graph, 4, smp_split_prices_costs(prices), NULL, choice, &us, &exact),
        SMP_OK);
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "h1.%s", wanted[i][0]);
        const int32_t o = smp_graph_find_op(graph, name);
        assert_true(o >= 0 && choice[o].rule >= 0);
        assert_string_equal(graph->op[o].kind->split[choice[o].rule].name, wanted[i][1]);
    }
    smp_split_prices_destroy(prices);
    smp_cluster_destroy(groups);
    smp_cluster_destroy(from);
    smp_graph_destroy(graph);
    free(choice);
}

/* Where no gradient flows, none is exchanged; nobody makes parts of what is whole. */
static void test_moves(void **state)
{
    (void)state;
    static const char text[] =
        "smp: 1\ninputs: {x: {dtype: float32, shape: [4, 8]}, y: {dtype: float32, shape: [4, 8]}}\n"
        "ops:\n"
        "  - {op: gelu, name: g, in: x, out: h}\n"
        "  - {op: linear, name: a, in: h, out: z, features: 8}\n"
        "  - {op: linear, name: b, in: z, out: z, features: 8, bias: false}\n"
        "  - {op: mse, name: loss, in: [z, y], out: loss}\n"
        "loss: loss\n";
    static const smp_spread whole = {SMP_WHOLE, 0, 1}, parts = {SMP_PARTS, 0, 1},
                            rows = {SMP_SPLIT, 0, 1}, shared = {SMP_SHARED, 0, 1};
    smp_graph *graph = NULL;
    smp_cluster *from, *groups = make_groups(2, 16, &from);
    smp_split_prices *prices;
    assert_int_equal(smp_graph_parse("model.yaml", text, strlen(text), &graph), SMP_OK);
    groups->intra_node = (smp_link_spec){.latency_us = 100, .bytes_per_s = 1e6};
    assert_int_equal(smp_split_prices_make(graph, groups, NULL, BATCH, MICROBATCHES, &prices),
                     SMP_OK);
    const smp_split_costs *costs = smp_split_prices_costs(prices);
    const int32_t h = graph->op[0].out, biased = graph->op[1].out, z = graph->op[2].out;
    const double half_us = 100 + 4.0 * BATCH * 4 * 8 / 2; /* a message of half of it */
    const double copies_us = 0.5; /* what traffic adds to the microsecond of a call, at most */
    const struct {
        int32_t tensor;
        smp_spread from, to;
        int messages, calls;
    } cases[] = {{h, whole, rows, 0, 1},   {h, rows, whole, 1, 1}, {h, whole, shared, 0, 1},
                 {h, parts, whole, 2, 1},  {z, whole, rows, 1, 2}, {z, rows, whole, 1, 2},
                 {z, whole, shared, 2, 2}, {z, rows, shared, 2, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const double us =
            costs->move_us(costs->context, cases[i].tensor, cases[i].from, cases[i].to);
        const double least = cases[i].messages * half_us + cases[i].calls;
        if (us < least || us > least + cases[i].calls * copies_us)
            fail_msg("move %d: %g us, expected %g", (int)i, us, least);
    }
    /* what lacks a bias gets it with the sum: two ops' calls more */
    const double us = costs->move_us(costs->context, biased, parts, whole);
    assert_true(us >= 2 * half_us + 2 + 2 && us <= 2 * half_us + 2 + 2 + 4 * copies_us);
    assert_true(costs->move_us(costs->context, h, whole, parts) == INFINITY);
    smp_split_prices_destroy(prices);
    smp_cluster_destroy(groups);
    smp_cluster_destroy(from);
    smp_graph_destroy(graph);
}

/* A product and a gelu that are one kernel on a GPU are one in their parts too. */
static void test_pairs_stay_pairs(void **state)
{
    (void)state;
    static const smp_split_entry entries[] = {{.op = "a", .as = "columns"},
                                              {.op = "g", .as = "elements@1"}};
    static const char text[] = "smp: 1\ninputs: {x: {dtype: float32, shape: [4, 8]}}\n"
                               "ops:\n"
                               "  - {op: linear, name: a, in: x, out: h, features: 64}\n"
                               "  - {op: gelu, name: g, in: h, out: h}\n"
                               "  - {op: mean_pool, name: m, in: h, out: h}\n";
    const smp_splitting splitting = {.devices = 2, .n_entry = 2, .entry = entries};
    for (int profiled = 0; profiled < 2; profiled++) {
        smp_graph *graph = NULL, *split;
        smp_cluster *from, *groups = make_groups(2, 16, &from);
        smp_split_prices *prices;
        smp_costs *costs;
        smp_op_cost measured[3];
        const char *names[3];
        double elements;
        assert_int_equal(smp_graph_parse("model.yaml", text, strlen(text), &graph), SMP_OK);
        assert_int_equal(smp_graph_set_target(graph, (smp_target){SMP_BACKEND_CUDA, 0}), SMP_OK);
        assert_true(smp_op_fused(graph, 0));
        smp_profile profile = make_profile(graph, measured, names);
        measured[1].forward_us = 0;
        profile.device = "card";
        if (smp_splitting_split(&splitting, 0, graph, &split) ||
            smp_costs_build(split, groups, profiled ? &profile : NULL, BATCH, &costs) ||
            smp_split_prices_make(graph, groups, profiled ? &profile : NULL, BATCH, MICROBATCHES,
                                  &prices))
            fail_msg("%s", smp_last_error());
        const smp_split_choice choice[] = {{0, 0, 1}, {0, 1, 1}, {-1, 0, 1}};
        assert_near(price(graph, 2, prices, choice), total(split, graph, groups, costs, &elements),
                    "a pair");
        smp_costs_destroy(costs);
        smp_split_prices_destroy(prices);
        smp_graph_destroy(split);
        smp_graph_destroy(graph);
        smp_cluster_destroy(groups);
        smp_cluster_destroy(from);
    }
}

static void test_refused(void **state)
{
    (void)state;
    smp_graph *graph = read_example("gpt-tiny");
    const size_t n = (size_t)graph->n_op;
    smp_cluster *from, *groups = make_groups(2, 16, &from);
    smp_op_cost *measured = calloc(n, sizeof *measured);
    const char **names = calloc(n, sizeof *names);
    smp_profile profile = make_profile(graph, measured, names);
    smp_split_prices *prices = NULL;
    profile.fingerprint++;
    assert_int_equal(smp_split_prices_make(graph, groups, &profile, BATCH, MICROBATCHES, &prices),
                     SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "another model"));
    assert_int_equal(smp_split_prices_make(graph, groups, NULL, 0, MICROBATCHES, &prices),
                     SMP_ERR_INPUT);
    assert_null(prices);
    smp_cluster_destroy(groups);
    smp_cluster_destroy(from);
    smp_graph_destroy(graph);
    free(measured);
    free(names);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prices_are_what_the_graph_costs),
        cmocka_unit_test(test_memory_of_a_whole_graph),
        cmocka_unit_test(test_dear_memory_splits_weights),
        cmocka_unit_test(test_long_samples),
        cmocka_unit_test(test_moves),
        cmocka_unit_test(test_pairs_stay_pairs),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
