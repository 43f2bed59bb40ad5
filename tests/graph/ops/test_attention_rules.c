/* What attention promises beyond values and gradients: the shapes and variants that it refuses, and
 * what a query sees that has no key. */
#include "tests/graph/ops/op_harness.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_rules_refuse_causal_with_other_keys),
        cmocka_unit_test(test_attention_rules_refuse_alibi_with_other_keys),
        cmocka_unit_test(test_attention_rules_name_the_shapes),
        cmocka_unit_test(test_attention_rules_refuse_more_probabilities_than_can_be),
        cmocka_unit_test(test_attention_rules_without_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
