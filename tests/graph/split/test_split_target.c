/* Split before or behind the choice of a target, it is the same graph; and its products are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "graph/math/gemm_algorithms.h"
#include "graph/split/splitting.h"

static smp_graph *read_example(void)
{
    char path[4096];
    smp_graph *graph = NULL;
    snprintf(path, sizeof path, "%s/examples/gpt-tiny.yaml", SMP_SOURCE_DIR);
    if (smp_graph_read(path, &graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    return graph;
}

static void test_targets(void **state)
{
    (void)state;
    static const smp_target bf16 = {SMP_BACKEND_CPU, SMP_PRECISION_BF16};
    static const smp_split_entry entries[] = {{.op = "h0.mlp.fc", .as = "columns"},
                                              {.op = "h0.mlp.gelu", .as = "elements@1"},
                                              {.op = "h0.mlp.proj", .as = "rows"}};
    const smp_splitting splitting = {.devices = 2, .n_entry = 3, .entry = entries};
    smp_graph *before = read_example(), *behind = read_example();
    assert_int_equal(smp_splitting_apply(&splitting, 0, &before), SMP_OK);
    assert_int_equal(smp_graph_set_target(before, bf16), SMP_OK);
    assert_int_equal(smp_graph_set_target(behind, bf16), SMP_OK);
    assert_int_equal(smp_splitting_apply(&splitting, 0, &behind), SMP_OK);
    assert_true(before->fingerprint == behind->fingerprint);
    assert_true(before->fingerprint != smp_graph_whole(before)->fingerprint);
    assert_true(smp_target_equal(before->target, behind->target));
    assert_true(smp_target_equal(smp_graph_whole(before)->target, bf16));
    assert_int_equal(before->n_tensor, behind->n_tensor);
    for (int32_t t = 0; t < before->n_tensor; t++)
        assert_int_equal(before->tensor[t].dtype, behind->tensor[t].dtype);
    smp_graph_destroy(before);
    smp_graph_destroy(behind);
}

/* What is said of the whole's products holds for its parts. */
static void test_products(void **state)
{
    (void)state;
    static const smp_gemm_choice choice = {"attention backward, ...", "cuDNN 9.19.0", 0};
    static const smp_gemm_choices choices = {"a GPU", "a library", 1, &choice};
    static const smp_split_entry entry = {.op = "h0.mlp.gelu", .as = "elements@1"};
    const smp_splitting splitting = {.devices = 2, .n_entry = 1, .entry = &entry};
    smp_graph *graph = read_example();
    assert_int_equal(smp_gemm_choices_give(&choices, graph), SMP_OK);
    assert_int_equal(smp_splitting_apply(&splitting, 1, &graph), SMP_OK);
    assert_string_equal(smp_gemm_choices_find(graph->products, choice.product)->algorithm,
                        choice.algorithm);
    assert_null(smp_gemm_choices_find(graph->products, "another"));
    smp_graph_destroy(graph);
}

/* Ops stay in their groups. */
static void test_groups(void **state)
{
    (void)state;
    static const char text[] =
        "smp: 1\nname: groups\nmode: inference\ninputs:\n  x: {dtype: float32, shape: [4]}\nops:\n"
        "  - {op: linear, name: a, in: x, out: h, features: 8, group: first}\n"
        "  - {op: relu, name: b, in: h, out: h, group: first}\n"
        "  - {op: linear, name: c, in: h, out: y, features: 2, group: last}\n";
    static const smp_split_entry entries[] = {
        {.op = "a", .as = "columns"}, {.op = "b", .as = "elements@0"}, {.op = "c", .as = "rows"}};
    const smp_splitting splitting = {.devices = 2, .n_entry = 3, .entry = entries};
    smp_graph *graph = NULL;
    assert_int_equal(smp_graph_parse("groups.yaml", text, sizeof text - 1, &graph), SMP_OK);
    if (smp_splitting_apply(&splitting, 1, &graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    assert_int_equal(graph->n_group, 2);
    assert_string_equal(graph->group[0], "first");
    assert_string_equal(graph->group[1], "last");
    for (int32_t i = 0; i < graph->n_op; i++)
        if (strlen(graph->op[i].name) == 1) /* those that the model has */
            assert_int_equal(graph->op[i].group, graph->op[i].name[0] == 'c');
    smp_graph_destroy(graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_targets),
                                       cmocka_unit_test(test_products),
                                       cmocka_unit_test(test_groups)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
