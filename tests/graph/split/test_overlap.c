/* What runs beside which exchange: in a GPT split as Megatron-LM does, with and without sequence
 * parallelism, and in every stage that a model may be cut into, against a plain reading of the
 * rule. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/base/random.h"
#include "graph/split/overlap.h"
#include "graph/split/splitting.h"

enum { BATCH = 2, MOST = 64 };

static const char block[] =
    "smp: 1\n"
    "name: block\n"
    "inputs:\n"
    "  x: {dtype: float32, shape: [8, 64]}\n"
    "  y: {dtype: int32, shape: [8]}\n"
    "ops:\n"
    "  - {op: linear, name: in, in: x, out: x, features: 64}\n"
    "  - {op: layernorm, name: ln_1, in: x, out: h}\n"
    "  - {op: linear, name: qkv, in: h, out: h, features: 192}\n"
    "  - {op: attention, name: attn, in: h, out: h, heads: 4, causal: true}\n"
    "  - {op: linear, name: proj, in: h, out: h, features: 64}\n"
    "  - {op: add, name: res_1, in: [x, h], out: x}\n"
    "  - {op: layernorm, name: ln_2, in: x, out: h}\n"
    "  - {op: linear, name: fc, in: h, out: h, features: 256}\n"
    "  - {op: gelu, name: gelu, in: h, out: h}\n"
    "  - {op: linear, name: down, in: h, out: h, features: 64}\n"
    "  - {op: add, name: res_2, in: [x, h], out: x}\n"
    "  - {op: linear, name: head, in: x, out: h, features: 512, bias: false}\n"
    "  - {op: cross_entropy, name: loss, in: [h, y], out: loss}\n"
    "loss: loss\n";

/* The first six are Megatron-LM's; the others add its sequence parallelism. */
static const smp_split_entry entries[] = {
    {.op = "qkv", .as = "columns/3"},    {.op = "attn", .as = "packed heads"},
    {.op = "proj", .as = "rows"},        {.op = "fc", .as = "columns"},
    {.op = "gelu", .as = "elements@1"},  {.op = "down", .as = "rows"},
    {.op = "ln_1", .as = "positions@0"}, {.op = "res_1", .as = "elements@0"},
    {.op = "ln_2", .as = "positions@0"}, {.op = "res_2", .as = "elements@0"}};

static smp_graph *open_split(int n_entry, bool overlap)
{
    const smp_splitting splitting = {
        .devices = 2, .n_entry = n_entry, .entry = entries, .overlap = overlap};
    smp_graph *graph = NULL;
    if (smp_graph_parse("block.yaml", block, strlen(block), &graph) != SMP_OK ||
        smp_splitting_apply(&splitting, 0, &graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    assert_true(graph->n_op <= MOST);
    return graph;
}

/* The exchange beside which the op's weight gradient runs if all ops are a stage; "": none. */
static const char *beside_of(const smp_graph *graph, const char *name)
{
    int32_t op[MOST], beside[MOST];
    for (int32_t i = 0; i < graph->n_op; i++)
        op[i] = i;
    smp_overlap_find(graph, op, graph->n_op, BATCH, beside);
    const int32_t o = smp_graph_find_op(graph, name);
    assert_true(o >= 0);
    return beside[o] < 0 ? "" : graph->op[beside[o]].name;
}

static void test_megatron(void **state)
{
    (void)state;
    smp_graph *graph = open_split(6, true);
    assert_string_equal(beside_of(graph, "fc"), "ln_2:shared");
    assert_string_equal(beside_of(graph, "down"), "ln_2:shared");
    assert_string_equal(beside_of(graph, "qkv"), "ln_1:shared");
    assert_string_equal(beside_of(graph, "proj"), "ln_1:shared");
    assert_string_equal(beside_of(graph, "head"), ""); /* its output is large */
    assert_string_equal(beside_of(graph, "in"), "");   /* nothing is exchanged behind it */
    assert_string_equal(beside_of(graph, "ln_2"), ""); /* no product */
    smp_graph_destroy(graph);
    graph = open_split(6, false);
    assert_string_equal(beside_of(graph, "fc"), "");
    smp_graph_destroy(graph);
}

/* The sum of fc's input gradients hides one product, the gather of proj's output gradients the
 * other. */
static void test_sequence_parallelism(void **state)
{
    (void)state;
    smp_graph *graph = open_split(10, true);
    assert_string_equal(beside_of(graph, "down"), "ln_2:shared");
    assert_string_equal(beside_of(graph, "fc"), "proj:part0");
    assert_string_equal(beside_of(graph, "proj"), "ln_1:shared");
    smp_graph_destroy(graph);
}

/* Whatever ops a stage has: only products are put off, each to an exchange further down, in their
 * order, and none past a product's exchange that could have taken it first. */
static void test_any_stage(void **state)
{
    (void)state;
    uint64_t random = 7;
    int64_t n_put_off = 0;
    for (int round = 0; round < 400; round++) {
        int32_t op[MOST], beside[MOST], n = 0, last = MOST;
        smp_graph *graph = open_split(round % 2 ? 6 : 10, true);
        for (int32_t i = 0; i < graph->n_op; i++)
            if ((random = smp_random_mix(random + 1)) % 4 > 0)
                op[n++] = i;
        smp_overlap_find(graph, op, n, BATCH, beside);
        for (int32_t i = n - 1; i >= 0; i--) {
            const smp_op *product = &graph->op[op[i]];
            smp_op_work work;
            if (beside[i] < 0)
                continue;
            assert_true(beside[i] < i && beside[i] <= last);
            last = beside[i];
            assert_string_equal(product->kind->name, "linear");
            smp_op_work_get(graph, &graph->op[op[beside[i]]], BATCH, &work);
            assert_true(work.backward_input_exchange.messages > 0);
            n_put_off++;
        }
        smp_graph_destroy(graph);
    }
    assert_true(n_put_off > 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_megatron),
        cmocka_unit_test(test_sequence_parallelism),
        cmocka_unit_test(test_any_stage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
