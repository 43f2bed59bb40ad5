/* Layouts of ops that a target runs as one kernel. */
#include "tests/schedule/fixture.h"

static void lay_out(const smp_graph *graph, const smp_flow *flow, int s, bool split,
                    const bool *mask, smp_layout **out)
{
    assert_int_equal(SMP_OK, smp_layout_build(graph, flow, s, split, mask, NULL, out));
}

static const char pair_model[] =
    "smp: 1\nname: pair\n%s"
    "inputs:\n"
    "  x: {dtype: float32, shape: [96]}\n"
    "  y: {dtype: float32, shape: [96]}\n"
    "ops:\n"
    "  - {op: relu, name: a, in: x, out: x}\n"
    "  - {op: linear, name: b, in: x, out: x, features: 96, bias: false}\n"
    "  - {op: gelu, name: c, in: x, out: x}\n"
    "  - {op: relu, name: d, in: x, out: x}\n"
    "  - {op: mse, name: loss, in: [x, y], out: loss}\nloss: loss\n";

static void open_pair(const char *mode, smp_target target, const int32_t *stage, int n_stage,
                      smp_graph **graph, smp_flow **flow)
{
    char text[1024];
    snprintf(text, sizeof text, pair_model, mode);
    assert_int_equal(SMP_OK, smp_graph_parse("m.yaml", text, strlen(text), graph));
    assert_int_equal(SMP_OK, smp_graph_set_target(*graph, target));
    assert_int_equal(SMP_OK, smp_flow_build(*graph, stage, n_stage, 16, flow));
}

/* Inference: a value may lie where one of two calls before lay, but the values of a pair are there
 * together. */
static void test_layout_pair(void **state)
{
    (void)state;
    enum { A, B, C, D };
    for (int cuda = 0; cuda < 2; cuda++) {
        const smp_target target = {cuda ? SMP_BACKEND_CUDA : SMP_BACKEND_CPU, SMP_PRECISION_FP32};
        smp_graph *graph = NULL;
        smp_flow *flow;
        smp_layout *l;
        open_pair("mode: inference\n", target, (int32_t[5]){0}, 1, &graph, &flow);
        lay_out(graph, flow, 0, false, NULL, &l);
        for (int32_t i = 0; i < l->n_call; i++)
            assert_int_equal(cuda && i == B, l->call[i].pair);
        /* on the CPU, c's output is where a's was, which b read before */
        assert_int_equal(cuda, l->call[A].out[0].offset != l->call[C].out[0].offset);
        assert_int_equal((cuda ? 3 : 2) * 6144, l->forward_work_bytes);
        smp_layout_destroy(l);
        smp_flow_destroy(flow);
        smp_graph_destroy(graph);
    }
    /* in two stages there is no pair */
    smp_graph *graph = NULL;
    smp_flow *flow;
    open_pair("", (smp_target){SMP_BACKEND_CUDA, 0}, (int32_t[]){0, 0, 1, 1, 1}, 2, &graph, &flow);
    for (int s = 0; s < 2; s++) {
        smp_layout *l;
        lay_out(graph, flow, s, false, NULL, &l);
        for (int32_t i = 0; i < l->n_call; i++)
            assert_false(l->call[i].pair);
        smp_layout_destroy(l);
    }
    smp_flow_destroy(flow);
    smp_graph_destroy(graph);
}

static const char input_pair_model[] =
    "smp: 1\nname: pair\n"
    "inputs:\n"
    "  x: {dtype: float32, shape: [96]}\n"
    "  y: {dtype: float32, shape: [96]}\n"
    "ops:\n"
    "  - {op: linear, name: a, in: x, out: x, features: 96, bias: false}\n"
    "  - {op: gelu, name: b, in: x, out: x}\n"
    "  - {op: linear, name: c, in: x, out: x, features: 96, bias: false}\n"
    "  - {op: mse, name: loss, in: [x, y], out: loss}\nloss: loss\n";

/* Backward, both of a pair write the same array, which does not lie where the first reads. */
static void test_layout_input_pair(void **state)
{
    (void)state;
    enum { A, B, C };
    for (int cuda = 0; cuda < 2; cuda++) {
        const smp_target target = {cuda ? SMP_BACKEND_CUDA : SMP_BACKEND_CPU, SMP_PRECISION_FP32};
        smp_graph *graph = NULL;
        smp_flow *flow;
        smp_layout *l;
        assert_int_equal(
            SMP_OK, smp_graph_parse("m.yaml", input_pair_model, strlen(input_pair_model), &graph));
        assert_int_equal(SMP_OK, smp_graph_set_target(graph, target));
        assert_int_equal(SMP_OK, smp_flow_build(graph, (int32_t[4]){0}, 1, 16, &flow));
        lay_out(graph, flow, 0, false, NULL, &l);
        for (int32_t i = 0; i < l->n_call; i++)
            assert_int_equal(cuda && i == C, l->call[i].input_pair);
        assert_int_equal(SMP_SPACE_WORK, l->call[C].dout[0].space);
        assert_int_equal(SMP_SPACE_WORK, l->call[B].din[0].space);
        assert_int_equal(SMP_SPACE_WORK, l->call[C].din[0].space);
        assert_true(l->call[C].dout[0].offset != l->call[C].din[0].offset);
        assert_int_equal(cuda, l->call[C].din[0].offset == l->call[B].din[0].offset);
        assert_int_equal(2 * 6144, l->backward_work_bytes);
        smp_layout_destroy(l);
        smp_flow_destroy(flow);
        smp_graph_destroy(graph);
    }
}

static const char alike_model[] =
    "smp: 1\nname: pair\n"
    "inputs:\n"
    "  x: {dtype: float32, shape: [96]}\n"
    "  y: {dtype: float32, shape: [96]}\n"
    "ops:\n"
    "  - {op: linear, name: gate, in: x, out: g, features: 96, bias: false}\n"
    "  - {op: linear, name: up, in: x, out: u, features: 96, bias: false}\n"
    "  - {op: silu, name: silu, in: g, out: s}\n"
    "  - {op: mul, name: mul, in: [s, u], out: m}\n"
    "  - {op: add, name: add, in: [x, m], out: r}\n"
    "  - {op: layernorm, name: norm, in: r, out: n}\n"
    "  - {op: linear, name: down, in: n, out: n, features: 96, bias: false}\n"
    "  - {op: mse, name: loss, in: [n, y], out: loss}\nloss: loss\n";

static int repeated(const smp_layout *l)
{
    int n = 0;
    for (int32_t i = 0; i < l->n_instr; i++)
        n += l->instr[i].kind == SMP_INSTR_RECOMPUTE;
    return n;
}

/* Pairs with the bits of two: what their backward makes again nobody keeps, unless a stage ends
 * between them; one is repeated alone, or both as one. */
static void test_layout_alike_pairs(void **state)
{
    (void)state;
    enum { SILU = 2, MUL, ADD, NORM, BYTES = 6144 };
    static const int32_t whole[8] = {0}, parted[8] = {0, 0, 0, 1, 1, 1, 1, 1};
    static const int32_t sum_parted[8] = {0, 0, 0, 0, 0, 1, 1, 1};
    int64_t kept[2];
    for (int cuda = 0; cuda < 2; cuda++) {
        const smp_target target = {cuda ? SMP_BACKEND_CUDA : SMP_BACKEND_CPU, SMP_PRECISION_FP32};
        smp_graph *graph = NULL;
        smp_flow *flow;
        smp_layout *l;
        bool mask[8] = {[NORM] = true};
        assert_int_equal(SMP_OK,
                         smp_graph_parse("m.yaml", alike_model, strlen(alike_model), &graph));
        assert_int_equal(SMP_OK, smp_graph_set_target(graph, target));
        assert_int_equal(SMP_OK, smp_flow_build(graph, whole, 1, 16, &flow));
        lay_out(graph, flow, 0, false, NULL, &l);
        for (int32_t i = 0; i < l->n_call; i++) {
            assert_int_equal(cuda && (i == SILU || i == ADD), l->call[i].pair);
            assert_int_equal(cuda && i == MUL, l->call[i].input_pair);
        }
        assert_int_equal(cuda, l->call[MUL].backward_in[0].space == SMP_SPACE_NONE);
        assert_int_equal(SMP_SPACE_STASH, l->call[MUL].backward_in[1].space);
        assert_int_equal(cuda, l->call[MUL].din[0].offset == l->call[SILU].din[0].offset);
        kept[cuda] = l->block_bytes[SMP_BLOCK_INPUT];
        smp_layout_destroy(l);

        lay_out(graph, flow, 0, false, mask, &l);
        assert_int_equal(1, repeated(l));
        assert_false(l->redo[NORM].pair);
        smp_layout_destroy(l);
        mask[ADD] = true;
        lay_out(graph, flow, 0, false, mask, &l);
        assert_int_equal(2, repeated(l));
        assert_int_equal(cuda, l->redo[ADD].pair);
        smp_layout_destroy(l);
        smp_flow_destroy(flow);

        assert_int_equal(SMP_OK, smp_flow_build(graph, parted, 2, 16, &flow));
        lay_out(graph, flow, 1, false, NULL, &l);
        assert_false(l->call[0].input_pair);
        assert_int_equal(SMP_SPACE_BORDER, l->call[0].backward_in[0].space);
        smp_layout_destroy(l);
        smp_flow_destroy(flow);
        assert_int_equal(SMP_OK, smp_flow_build(graph, sum_parted, 2, 16, &flow));
        lay_out(graph, flow, 0, false, NULL, &l);
        assert_false(l->call[ADD].pair);
        smp_layout_destroy(l);
        smp_flow_destroy(flow);
        smp_graph_destroy(graph);
    }
    assert_int_equal(BYTES, kept[0] - kept[1]);
}

static const char absorbing_model[] =
    "smp: 1\nname: pair\n"
    "inputs:\n"
    "  x: {dtype: float32, shape: [96]}\n"
    "  y: {dtype: float32, shape: [96]}\n"
    "ops:\n"
    "  - {op: linear, name: a, in: x, out: x, features: 96, bias: false}\n"
    "  - {op: batchnorm, name: norm, in: x, out: b}\n"
    "  - {op: relu, name: relu, in: b, out: c}\n"
    "  - {op: scale, name: scale, in: c, out: d, factor: 2}\n"
    "  - {op: mse, name: loss, in: [d, y], out: loss}\nloss: loss\n";

/* A relu whose backward the batchnorm before it does: there is no call of it, what comes to it goes
 * on, also where a stage ends before it, and nobody keeps what it made. */
static void test_layout_absorbed(void **state)
{
    (void)state;
    enum { NORM = 1, RELU, BYTES = 6144 };
    static const int32_t whole[5] = {0}, parted[5] = {0, 0, 1, 1, 1};
    int64_t kept[2][2];
    for (int k = 0; k < 4; k++) {
        const int cuda = k / 2, split = k % 2;
        const smp_target target = {cuda ? SMP_BACKEND_CUDA : SMP_BACKEND_CPU, SMP_PRECISION_FP32};
        smp_graph *graph = NULL;
        smp_flow *flow;
        smp_layout *l;
        int calls = 0;
        assert_int_equal(
            SMP_OK, smp_graph_parse("m.yaml", absorbing_model, strlen(absorbing_model), &graph));
        assert_int_equal(SMP_OK, smp_graph_set_target(graph, target));
        assert_int_equal(SMP_OK, smp_flow_build(graph, whole, 1, 16, &flow));
        lay_out(graph, flow, 0, split, NULL, &l);
        for (int32_t i = 0; i < l->n_instr; i++)
            calls += l->instr[i].call == RELU;
        assert_int_equal(calls, !cuda);
        const smp_ref own = l->call[NORM].dout[0], its = l->call[RELU].dout[0];
        assert_int_equal(cuda, own.space == its.space && own.index == its.index &&
                                   own.offset == its.offset);
        kept[split][cuda] = 0;
        for (int b = 0; b < SMP_N_BLOCK; b++)
            kept[split][cuda] += l->block_bytes[b];
        smp_layout_destroy(l);
        smp_flow_destroy(flow);
        assert_int_equal(SMP_OK, smp_flow_build(graph, parted, 2, 16, &flow));
        lay_out(graph, flow, 1, split, NULL, &l);
        assert_int_equal(RELU, l->call[0].op);
        for (int32_t i = calls = 0; i < l->n_instr; i++)
            calls += l->instr[i].call == 0;
        assert_int_equal(calls, !cuda);
        smp_layout_destroy(l);
        smp_flow_destroy(flow);
        smp_graph_destroy(graph);
    }
    for (int split = 0; split < 2; split++)
        assert_int_equal(kept[split][1], kept[split][0] - BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout_pair),
        cmocka_unit_test(test_layout_input_pair),
        cmocka_unit_test(test_layout_alike_pairs),
        cmocka_unit_test(test_layout_absorbed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
