/* What attention promises beyond values and gradients: the shapes and variants that it refuses, and
 * what a query sees that has no key; the workspace of what backward is by. */
#include "tests/graph/ops/op_harness.h"

#include "graph/math/attention.h"
#include "graph/math/gemm_algorithms.h"

#define INPUTS                                                                                     \
    "smp: 1\nname: t\ninputs:\n"                                                                   \
    "  x: {dtype: float32, shape: [4, 6]}\n"                                                       \
    "  ids: {dtype: int32, shape: [4]}\n"                                                          \
    "ops:\n"

static void test_attention_rules_refuse_causal_with_other_keys(void **state)
{
    const char *yaml = "smp: 1\nname: t\ninputs:\n  q: {dtype: float32, shape: [4, 6]}\n"
                       "  k: {dtype: float32, shape: [5, 6]}\nops:\n"
                       "  - {op: attention, name: op, in: [q, k, k], out: z, heads: 2, "
                       "causal: true}\n";
    smp_graph *graph = NULL;
    (void)state;
    assert_int_equal(smp_graph_parse("m.yaml", yaml, strlen(yaml), &graph), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "4 queries and 5 keys"));
}

static void test_attention_rules_refuse_alibi_with_other_keys(void **state)
{
    const char *yaml = "smp: 1\nname: t\ninputs:\n  q: {dtype: float32, shape: [4, 6]}\n"
                       "  k: {dtype: float32, shape: [5, 6]}\nops:\n"
                       "  - {op: attention, name: op, in: [q, k, k], out: z, heads: 2, "
                       "alibi: true}\n";
    smp_graph *graph = NULL;
    (void)state;
    assert_int_equal(smp_graph_parse("m.yaml", yaml, strlen(yaml), &graph), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "alibi with 4 queries and 5 keys"));
}

static void test_attention_rules_name_the_shapes(void **state)
{
    const char *yaml = "smp: 1\nname: t\ninputs:\n  q: {dtype: float32, shape: [4, 6]}\n"
                       "  k: {dtype: float32, shape: [5, 6]}\n"
                       "  v: {dtype: float32, shape: [7, 6]}\nops:\n"
                       "  - {op: attention, name: op, in: [q, k, v], out: z, heads: 2}\n";
    smp_graph *graph = NULL;
    (void)state;
    assert_int_equal(smp_graph_parse("m.yaml", yaml, strlen(yaml), &graph), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "q [4, 6], k [5, 6], v [7, 6]: expected [Tq, d]"));
}

static void test_attention_rules_refuse_more_probabilities_than_can_be(void **state)
{
    const char *yaml = "smp: 1\nname: t\ninputs:\n"
                       "  x: {dtype: float32, shape: [2000000000, 12]}\nops:\n"
                       "  - {op: attention, name: op, in: x, out: z, heads: 4}\n";
    smp_graph *graph = NULL;
    (void)state;
    assert_int_equal(smp_graph_parse("m.yaml", yaml, strlen(yaml), &graph), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "4 heads of 2000000000 x 2000000000 probabilities"));
}

/* Outputs and gradients of who sees no key are 0, whatever the hidden keys hold; the other sample
 * does not notice. With causal the first query of that one sees no key either. */
static void test_attention_rules_without_keys(void **state)
{
    (void)state;
    for (int causal = 0; causal < 2; causal++) {
        char yaml[1024];
        op_run run;
        snprintf(yaml, sizeof yaml,
                 "%s  - {op: attention, name: op, in: [x, ids], out: z, heads: 1, causal: %s}\n",
                 INPUTS, causal ? "true" : "false");
        op_run_open(&run, yaml, "op", 2, 0);
        for (int i = 0; i < 48; i++)
            ((float *)run.in[0].data)[i] = (float)(i % 24 < 6 ? 1e30 : i % 5 + 1);
        for (int i = 0; i < 16; i++)
            ((float *)run.dout.data)[i] = 1;
        memcpy(run.in[1].data, (int32_t[]){0, 0, 0, 0, 0, 1, 1, 0}, 8 * sizeof(int32_t));
        assert_int_equal(op_run_forward(&run), SMP_OK);
        op_run_backward_input(&run, 1);
        const float *out = run.out.data, *din = run.din[0].data;
        for (int i = 0; i < 8; i++) /* (4, 2) of the first sample */
            assert_true(out[i] == 0 && (out[8 + i] != 0) == (i / 2 > 0 || !causal));
        for (int i = 0; i < 24; i++) { /* (4, 6): queries, keys and values of 2 */
            bool hidden = i / 6 == 0 || i / 6 == 3;
            assert_true(din[i] == 0);
            if (i % 6 >= 4) /* values */
                assert_true((din[24 + i] == 0) == hidden);
            else
                assert_true(isfinite(din[24 + i]));
        }
        op_run_close(&run);
    }
}

/* What backward is by, in a plan or a profile, decides the workspace: of the attention that it
 * names, in the samples and heads of a device that it names. */
static void test_attention_rules_workspace_as_chosen(void **state)
{
    static const char yaml[] =
        "smp: 1\nname: t\ninputs:\n  x: {dtype: float32, shape: [300, 128]}\n"
        "  o: {dtype: float32, shape: [300, 128]}\nops:\n"
        "  - {op: linear, name: q, in: x, out: q, features: 128}\n"
        "  - {op: linear, name: k, in: x, out: k, features: 128}\n"
        "  - {op: linear, name: v, in: x, out: v, features: 128}\n"
        "  - {op: attention, name: op, in: [q, k, v], out: z, heads: 2, causal: true}\n"
        "  - {op: mse, name: loss, in: [z, o], out: loss}\nloss: loss\n";
    static const char name[] = "attention backward, bf16, 2 x 2/2 heads of 64, 300 causal 300, "
                               "steps 128 128 128, 0.125";
    static const struct {
        const char *product, *algorithm;
        smp_precision precision;
        int64_t batch;
        bool asked;
        char frozen; /* the op whose weights are; 0: none */
    } cases[] = {
        {name, "cuDNN 9.19.0", SMP_PRECISION_BF16, 2, true},
        {name, SMP__ATTENTION_TILED, SMP_PRECISION_BF16, 2, false},
        {name, "cuDNN 9.19.0", SMP_PRECISION_BF16, 1, false},
        {name, "cuDNN 9.19.0", SMP_PRECISION_FP16, 2, false},
        {name, "cuDNN 9.19.0", SMP_PRECISION_FP32, 2, false},
        {"attention, bf16", "cuDNN 9.19.0", SMP_PRECISION_BF16, 2, false},
        {name, "cuDNN 9.19.0", SMP_PRECISION_BF16, 2, false, 'k'}, /* cuDNN makes all three */
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const smp_gemm_choice choice = {cases[i].product, cases[i].algorithm, 0};
        const smp_gemm_choices choices = {"g", "l", 1, &choice};
        smp_graph *graph;
        smp_op_needs before, after;
        assert_int_equal(smp_graph_parse("m.yaml", yaml, strlen(yaml), &graph), SMP_OK);
        assert_int_equal(
            smp_graph_set_target(graph, (smp_target){SMP_BACKEND_CUDA, cases[i].precision, false}),
            SMP_OK);
        bool frozen[6] = {false}, any = cases[i].precision != SMP_PRECISION_FP32;
        for (int k = 0; k < graph->n_param; k++) {
            frozen[k] = graph->param[k].name[0] == cases[i].frozen;
            any &= !frozen[k];
        }
        assert_int_equal(graph->n_param, 6);
        if (cases[i].frozen)
            assert_int_equal(smp_graph_freeze(graph, frozen), SMP_OK);
        smp_op_needs_get(graph, &graph->op[3], cases[i].batch, &before);
        assert_int_equal(smp_gemm_choices_give(&choices, graph), SMP_OK);
        smp_op_needs_get(graph, &graph->op[3], cases[i].batch, &after);
        assert_int_equal(after.workspace_bytes,
                         cases[i].asked ? before.measured_workspace_bytes : before.workspace_bytes);
        if (any) /* 384 x 384 of two heads in 16 bits */
            assert_true(before.measured_workspace_bytes >= cases[i].batch * 2 * 384 * 384 * 2);
        assert_int_equal(before.measured_workspace_bytes > 0, any);
        smp_graph_destroy(graph);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_rules_refuse_causal_with_other_keys),
        cmocka_unit_test(test_attention_rules_refuse_alibi_with_other_keys),
        cmocka_unit_test(test_attention_rules_name_the_shapes),
        cmocka_unit_test(test_attention_rules_refuse_more_probabilities_than_can_be),
        cmocka_unit_test(test_attention_rules_without_keys),
        cmocka_unit_test(test_attention_rules_workspace_as_chosen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
