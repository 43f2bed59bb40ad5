/* What single operators promise beyond values and gradients: refused models, refused data, ignored
 * targets, dropout's contract, ties, costs and index ranges. */
#include "tests/graph/ops/op_harness.h"

#define INPUTS                                                                                     \
    "smp: 1\nname: t\ninputs:\n"                                                                   \
    "  x: {dtype: float32, shape: [4, 6]}\n"                                                       \
    "  y: {dtype: float32, shape: [4, 5]}\n"                                                       \
    "  v: {dtype: float32, shape: [6]}\n"                                                          \
    "  s: {dtype: float32, shape: []}\n"                                                           \
    "  ids: {dtype: int32, shape: [4]}\n"                                                          \
    "  image: {dtype: float32, shape: [3, 5, 6]}\n"                                                \
    "  two: {dtype: int32, shape: [2]}\n"                                                          \
    "ops:\n"

static void assert_refused(const char *op, const char *part)
{
    char yaml[1024];
    smp_graph *graph = NULL;
    snprintf(yaml, sizeof yaml, "%s  - {%s, name: op%s}\n", INPUTS, op,
             strstr(op, "out: ") ? "" : ", out: z");
    if (smp_graph_parse("model.yaml", yaml, strlen(yaml), &graph) == SMP_OK) {
        smp_graph_destroy(graph);
        fail_msg("accepted: %s", op);
    }
    if (!strstr(smp_last_error(), part) || !strstr(smp_last_error(), "model.yaml:12:"))
        fail_msg("%s: got \"%s\", expected \"model.yaml:12:\" and \"%s\"", op, smp_last_error(),
                 part);
}

static void test_op_rules_refuse_bad_models(void **state)
{
    static const char *const cases[][2] = {
        {"op: embedding, in: x, rows: 3, features: 2", "int32"},
        {"op: embedding, in: ids, rows: 0, features: 2", "rows"},
        {"op: embedding, in: ids, rows: 3, features: 2, padding_idx: 3",
         "padding_idx: got 3, expected a row from 0 to 2"},
        {"op: position_embedding, in: v", "dimension"},
        {"op: position_embedding, in: ids", "dimension"},
        {"op: linear, in: ids, features: 3", "float"},
        {"op: linear, in: s, features: 3", "dimension"},
        {"op: linear, in: x", "features"},
        {"op: conv2d, in: x, channels: 2, kernel: 1", "dimension"},
        {"op: layernorm, in: s", "dimension"},
        {"op: batchnorm, in: s", "dimension"},
        {"op: batchnorm, in: ids", "float"},
        {"op: batchnorm, in: x, momentum: 1.5", "momentum"},
        {"op: rmsnorm, in: s", "dimension"},
        {"op: rope, in: v, heads: 1", "dimension"},
        {"op: rope, in: x, heads: 4", "heads: 4 of 6 features"},
        {"op: rope, in: x, heads: 2", "even number"},
        {"op: rope, in: x, heads: 3, rotated: 4", "rotated: 4"},
        {"op: rope, in: x, heads: 3, factor: 2", "factor: 2, but no scaling"},
        {"op: rope, in: x, heads: 3, scaling: longrope, factor: 2", "longrope"},
        {"op: rope, in: x, heads: 3, scaling: yarn, factor: 2",
         "yarn: expected original_positions"},
        {"op: rope, in: x, heads: 3, scaling: llama3, original_positions: 9, high_freq_factor: 1",
         "more than low_freq_factor"},
        {"op: rope, in: x, heads: 3, scaling: yarn, original_positions: 9, beta_slow: 32",
         "beta_fast: 32"},
        {"op: groupnorm, in: s, groups: 1", "dimension"},
        {"op: groupnorm, in: x, groups: 3", "does not divide the 4 channels"},
        {"op: groupnorm, in: x", "groups"},
        {"op: gelu, in: x, approximate: sigmoid", "approximate"},
        {"op: gelu, in: ids", "float"},
        {"op: relu, in: ids", "float"},
        {"op: silu, in: ids", "float"},
        {"op: sigmoid, in: ids", "float"},
        {"op: tanh, in: ids", "float"},
        {"op: softmax, in: s", "dimension"},
        {"op: attention, in: y, heads: 1", "multiple of 3"},
        {"op: attention, in: x, heads: 3", "does not divide"},
        {"op: attention, in: [x, x], heads: 1", "expected 1 (q, k, v packed) or 3"},
        {"op: attention, in: [x, x, y], heads: 1", "[Tk, d]"},
        {"op: attention, in: [x, x, x, x], heads: 1", "expected 1 (q, k, v packed) or 3"},
        {"op: attention, in: [x, ids, x, ids], heads: 1", "float"},
        {"op: attention, in: x, heads: 1, window: 2", "expected causal: true"},
        {"op: attention, in: x, heads: 1, causal: true, window: 0", "window"},
        {"op: attention, in: x, heads: 2, buckets: 3", "at least 4 without causal"},
        {"op: attention, in: x, heads: 2, buckets: 32, max_distance: 8", "more than the 8"},
        {"op: attention, in: x, heads: 2, buckets: 32, alibi: true", "expected one of them"},
        {"op: attention, in: x, heads: 2, weight: a.b", "expected buckets"},
        {"op: attention, in: x, heads: 2, softcap: 5, alibi: true", "neither alibi nor buckets"},
        {"op: rope, in: x, heads: 1, scaling: longrope, factors: [1, 2]", "each of 3 pairs"},
        {"op: rope, in: x, heads: 1, factors: [1, 2, 3]", "longrope alone"},
        {"op: ring_attention, in: x, heads: 2, softcap: 5", "capped scores are attention's"},
        {"op: attention, in: [x, two], heads: 1", "mask 'two' [2], expected [4]"},
        {"op: attention, in: v, heads: 1", "dimension"},
        {"op: attention, in: [x, x, x], heads: 3, kv_heads: 2", "does not divide the 3 heads"},
        {"op: attention, in: [x, x, x], heads: 3, kv_heads: 1", "being 2 for 1 heads"},
        {"op: attention, in: [x, x, x], heads: 3, kv_heads: 0", "kv_heads"},
        {"op: attention, in: x, heads: 2, kv_heads: 1", "expected q, k and v apart"},
        {"op: add, in: [x, y]", "[4, 6]"},
        {"op: add, in: [x, ids]", "float"},
        {"op: sub, in: [x, v]", "[4, 6]"},
        {"op: mul, in: [ids, x]", "float"},
        {"op: scale, in: x", "factor"},
        {"op: scale, in: x, factor: 1e39", "factor"},
        {"op: scale, in: ids, factor: 2", "float"},
        {"op: dropout, in: x, p: 1", "p <"},
        {"op: dropout, in: x", "p"},
        {"op: reshape, in: x, shape: [5, -1]", "24 elements"},
        {"op: reshape, in: x, shape: [-1, -1]", "-1 once"},
        {"op: reshape, in: x, shape: [0, 24]", "1 or more"},
        {"op: reshape, in: x, shape: [1, 1, 1, 1, 1, 1, 24]", "at most 6"},
        {"op: concat, in: [x, y], axis: 0", "but for dimension 0"},
        {"op: concat, in: [x, x], axis: 2", "axis"},
        {"op: concat, in: [x, v]", "but for dimension"},
        {"op: concat, in: [ids, v], axis: 0", "types"},
        {"op: split, in: s, out: [z, w]", "dimension"},
        {"op: split, in: x, out: [z, w], axis: 2", "axis"},
        {"op: split, in: y, out: [z, w]", "2 outputs do not divide dimension 1, which has 5"},
        {"op: split, in: x, out: [z, w], sizes: [2, 2, 2]", "sizes: got 3, expected 2"},
        {"op: split, in: x, out: [z, w], sizes: [2, 3]", "got 5 in all, expected 6"},
        {"op: split, in: x, out: [z, w], sizes: [0, 6]", "at least 1"},
        {"op: slice, in: x, axis: 2", "axis: got 2"},
        {"op: slice, in: x, begin: 3, end: 3", "begin 3 and end 3 of dimension 1"},
        {"op: slice, in: x, axis: 0, end: 5", "has 4 elements"},
        {"op: slice, in: x, begin: -7", "one element or more"},
        {"op: slice, in: x, begin: 6", "one element or more"},
        {"op: slice, in: x, end: -6", "one element or more"},
        {"op: slice, in: s", "dimension"},
        {"op: transpose, in: x, axes: [0, 0]", "each of the 2 dimensions of 'x' once"},
        {"op: transpose, in: x, axes: [0]", "each of the 2"},
        {"op: transpose, in: x, axes: [0, 2]", "each of the 2"},
        {"op: transpose, in: x, axes: [1, 0, 1]", "each of the 2"},
        {"op: transpose, in: x, axes: [0, -1]", "axes"},
        {"op: sum, in: x, axis: -3", "axis: got -3"},
        {"op: mean, in: s", "dimension"},
        {"op: mean, in: ids", "float"},
        {"op: upsample, in: x, factor: 2", "dimension"},
        {"op: global_avg_pool, in: x", "dimension"},
        {"op: max_pool, in: x, kernel: 2", "dimension"},
        {"op: avg_pool, in: x, kernel: 2", "dimension"},
        {"op: patchify, in: x, patch: 4", "does not divide"},
        {"op: patchify, in: v, patch: 2", "dimension"},
        {"op: mean_pool, in: v", "dimension"},
        {"op: cross_entropy, in: [x, x]", "int32"},
        {"op: cross_entropy, in: [v, ids]", "expected []"},
        {"op: cross_entropy, in: [ids, ids]", "float"},
        {"op: cross_entropy, in: [x, ids], label_smoothing: 1.5", "label_smoothing"},
        {"op: mse, in: [x, y]", "same shape"},
        {"op: bce_with_logits, in: [x, y]", "same shape"},
        {"op: bce_with_logits, in: [v, ids]", "float"},
        {"op: opaque, in: x, shape: [1, 1, 1, 1, 1, 1, 1]", "at most 6"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_refused(cases[i][0], cases[i][1]);
}

static void test_op_rules_refuse_bad_convolutions(void **state)
{
    static const char *const cases[][2] = {
        {"kernel: 3", "no 'channels'"},
        {"channels: 2", "no 'kernel'"},
        {"channels: 2, kernel: []", "kernel: got 0 numbers, expected one or [height, width]"},
        {"channels: 2, kernel: [3, 3, 3]", "kernel: got 3 numbers"},
        {"channels: 2, kernel: 3, stride: [1, 1, 1]", "stride: got 3 numbers"},
        {"channels: 2, kernel: {h: 3}", "kernel: got a map, expected a list"},
        {"channels: 2, kernel: 0", "kernel: got 0, expected at least 1"},
        {"channels: 2, kernel: [3, 0]", "kernel: got 0, expected at least 1"},
        {"channels: 2, kernel: three", "unknown name 'three'"},
        {"channels: 2, kernel: 3, padding: -1", "padding: got -1"},
        {"channels: 2, kernel: 3, groups: 2", "groups: 2 does not divide the 3 channels of input"},
        {"channels: 2, kernel: 3, groups: 3", "groups: 3 does not divide the 2 channels of output"},
        {"channels: 2, kernel: [6, 3]", "height 5, 5 with padding, less than the 6"},
        {"channels: 2, kernel: 3, dilation: [1, 4], padding: 1", "width 6, 8 with padding, less"},
        {"channels: 2, kernel: 3, padding: 2000000000", "are too many"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char yaml[512];
        smp_graph *graph = NULL;
        snprintf(yaml, sizeof yaml,
                 "smp: 1\nname: t\ninputs:\n  a: {dtype: float32, shape: [3, 5, 6]}\nops:\n"
                 "  - {op: conv2d, name: op, in: a, out: y, %s}\n",
                 cases[i][0]);
        assert_int_equal(smp_graph_parse("m.yaml", yaml, strlen(yaml), &graph), SMP_ERR_INPUT);
        if (!strstr(smp_last_error(), cases[i][1]) || !strstr(smp_last_error(), "m.yaml:6:"))
            fail_msg("%s: got \"%s\", expected \"%s\"", cases[i][0], smp_last_error(), cases[i][1]);
    }
}

static void assert_index_refused(const char *op, int slot, int32_t good, int32_t bad)
{
    char yaml[1024], number[16];
    op_run run;
    snprintf(yaml, sizeof yaml, "%s  - {%s, name: op, out: z}\n", INPUTS, op);
    op_run_open(&run, yaml, "op", 2, 0);
    for (int i = 0; i < run.op->n_in; i++)
        memset(run.in[i].data, 0, run.in[i].bytes);
    for (int i = 0; i < run.op->n_param; i++)
        memset(run.param[i].data, 0, run.param[i].bytes);
    int32_t *ids = run.in[slot].data;
    ids[6] = good;
    assert_int_equal(op_run_forward(&run), SMP_OK);
    ids[6] = bad;
    assert_int_equal(op_run_forward(&run), SMP_ERR_INPUT);
    snprintf(number, sizeof number, "%d", (int)bad);
    assert_non_null(strstr(smp_last_error(), number));
    assert_non_null(strstr(smp_last_error(), "'op'"));
    assert_non_null(strstr(smp_last_error(), "position 6"));
    int64_t min = 0, max = 0;
    assert_true(run.op->kind->index_range(run.graph, run.op, slot, &min, &max));
    assert_true(good >= min && good <= max && (bad < min || bad > max));
    op_run_close(&run);
}

static void test_op_rules_refuse_indices_out_of_range(void **state)
{
    (void)state;
    assert_index_refused("op: embedding, in: ids, rows: 7, features: 3", 0, 6, 7);
    assert_index_refused("op: embedding, in: ids, rows: 7, features: 3", 0, 0, -1);
    assert_index_refused("op: cross_entropy, in: [x, ids]", 1, 5, 6);
    assert_index_refused("op: cross_entropy, in: [x, ids]", 1, -1, -2);
    assert_index_refused("op: cross_entropy, in: [x, ids]", 1, 0, INT32_MIN);
    assert_index_refused("op: attention, in: [x, ids], heads: 2", 1, 1, 2);
    assert_index_refused("op: attention, in: [x, ids], heads: 2", 1, 0, -1);
}

static void test_op_rules_cross_entropy_ignores(void **state)
{
    const char *yaml = INPUTS "  - {op: cross_entropy, name: op, in: [x, ids], out: z}\n";
    op_run run;
    (void)state;
    op_run_open(&run, yaml, "op", 2, 0);
    for (size_t i = 0; i < run.in[0].bytes / 4; i++)
        ((float *)run.in[0].data)[i] = (float)i * 1e30f;
    for (int i = 0; i < 8; i++)
        ((int32_t *)run.in[1].data)[i] = -1;
    *(float *)run.dout.data = 1;
    assert_int_equal(op_run_forward(&run), SMP_OK);
    assert_true(*(float *)run.out.data == 0);
    op_run_backward_input(&run, 1);
    for (size_t i = 0; i < run.din[0].bytes / 4; i++)
        assert_true(((float *)run.din[0].data)[i] == 0);

    /* One target of eight counts: the mean is over that one. */
    ((int32_t *)run.in[1].data)[5] = 2;
    memset(run.in[0].data, 0, run.in[0].bytes);
    assert_int_equal(op_run_forward(&run), SMP_OK);
    assert_true(fabsf(*(float *)run.out.data - logf(6)) < 1e-6f);
    op_run_backward_input(&run, 1);
    for (int i = 0; i < 48; i++) {
        float want = i / 6 != 5 ? 0 : i % 6 == 2 ? -5.0f / 6 : 1.0f / 6;
        assert_true(fabsf(((float *)run.din[0].data)[i] - want) < 1e-6f);
    }
    op_run_close(&run);
}

/* A number that is not one must reach the loss, where it is noticed. */
static void test_op_rules_nan_is_passed_on(void **state)
{
    static const char *const ops[] = {
        "op: linear, in: x, features: 3",
        "op: conv2d, in: image, channels: 3, kernel: 2",
        "op: layernorm, in: x",
        "op: batchnorm, in: x",
        "op: rmsnorm, in: x",
        "op: groupnorm, in: x, groups: 2",
        "op: rope, in: x, heads: 1",
        "op: gelu, in: x",
        "op: gelu, in: x, approximate: erf",
        "op: relu, in: x",
        "op: silu, in: x",
        "op: sigmoid, in: x",
        "op: tanh, in: x",
        "op: softmax, in: x",
        "op: attention, in: x, heads: 2",
        "op: mean_pool, in: x",
        "op: sum, in: x",
        "op: mean, in: x, axis: 0",
        "op: cross_entropy, in: [x, ids]",
        "op: mse, in: [x, x]",
        "op: bce_with_logits, in: [x, x]",
    };
    (void)state;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        char yaml[1024];
        op_run run;
        snprintf(yaml, sizeof yaml, "%s  - {%s, name: op, out: z}\n", INPUTS, ops[i]);
        op_run_open(&run, yaml, "op", 1, 0);
        for (int p = 0; p < run.op->n_param; p++)
            for (size_t e = 0; e < run.param[p].bytes / 4; e++)
                ((float *)run.param[p].data)[e] = 1;
        for (int s = 0; s < run.op->n_in; s++)
            memset(run.in[s].data, 0, run.in[s].bytes);
        ((float *)run.in[0].data)[1] = NAN;
        assert_int_equal(op_run_forward(&run), SMP_OK);
        int found = 0;
        for (size_t e = 0; e < run.out.bytes / 4; e++)
            found += isnan(((float *)run.out.data)[e]) != 0;
        if (found == 0)
            fail_msg("%s swallows NaN", ops[i]);
        op_run_close(&run);
    }
}

static const char *const DROPOUT = "smp: 1\nname: t\ninputs:\n"
                                   "  x: {dtype: float32, shape: [100, 101]}\nops:\n"
                                   "  - {op: dropout, name: op, in: x, out: y, p: 0.3}\n"
                                   "  - {op: dropout, name: op2, in: y, out: y, p: 0.3}\n";

/* Kept elements of x = 1 in a run; checks their value and that backward uses the same mask. */
static int64_t dropout_mask(op_run *run, const char *op, uint64_t seed, int64_t step,
                            int64_t microbatch)
{
    int64_t kept = 0;
    op_run_open(run, DROPOUT, op, 2, 0);
    run->step.seed = seed;
    run->step.turn = smp_op_turn(step, microbatch);
    float *out = run->out.data, *din = run->din[0].data;
    int64_t n = (int64_t)run->out.bytes / 4;
    for (int64_t i = 0; i < n; i++)
        ((float *)run->in[0].data)[i] = ((float *)run->dout.data)[i] = 1;
    assert_int_equal(op_run_forward(run), SMP_OK);
    op_run_backward_input(run, 1);
    for (int64_t i = 0; i < n; i++) {
        assert_true(out[i] == 0 || fabsf(out[i] - 1 / 0.7f) < 1e-6f);
        kept += out[i] != 0;
    }
    assert_memory_equal(out, din, run->out.bytes);
    return kept;
}

/* How many elements two masks agree on, as a share. Independent masks: 0.7^2 + 0.3^2 = 0.58. */
static double dropout_agreement(const char *op, uint64_t seed, int64_t step, int64_t microbatch)
{
    op_run a, b;
    int64_t n = 0, same = 0;
    dropout_mask(&a, "op", 1, 1, 0);
    dropout_mask(&b, op, seed, step, microbatch);
    for (size_t i = 0; i < a.out.bytes / 4; i++, n++)
        same += (((float *)a.out.data)[i] != 0) == (((float *)b.out.data)[i] != 0);
    op_run_close(&a);
    op_run_close(&b);
    return (double)same / (double)n;
}

static void test_op_rules_dropout_mask(void **state)
{
    op_run run;
    (void)state;
    double rate = (double)dropout_mask(&run, "op", 1, 1, 0) / (2 * 100 * 101);
    op_run_close(&run);
    assert_true(fabs(rate - 0.7) < 0.02);          /* 6 standard deviations */
    assert_true(smp_op_turn(3, 5) == 0x300000005); /* or resumed jobs draw anew */
    assert_true(dropout_agreement("op", 1, 1, 0) == 1);
    assert_true(fabs(dropout_agreement("op", 2, 1, 0) - 0.58) < 0.03);
    assert_true(fabs(dropout_agreement("op", 1, 2, 0) - 0.58) < 0.03);
    assert_true(fabs(dropout_agreement("op", 1, 1, 1) - 0.58) < 0.03);
    assert_true(fabs(dropout_agreement("op2", 1, 1, 0) - 0.58) < 0.03);
}

static void test_op_rules_dropout_evaluation_is_identity(void **state)
{
    op_run run;
    (void)state;
    op_run_open(&run, DROPOUT, "op", 2, 0);
    run.step.training = false;
    for (size_t i = 0; i < run.in[0].bytes / 4; i++)
        ((float *)run.in[0].data)[i] = (float)i;
    assert_int_equal(op_run_forward(&run), SMP_OK);
    assert_same_bits(&run.out, &run.in[0]);
    op_run_close(&run);
}

static void test_op_rules_linear_declares_weights(void **state)
{
    const char *yaml = INPUTS "  - {op: embedding, name: wte, in: ids, out: e, rows: 9, "
                              "features: 6}\n"
                              "  - {op: linear, name: tied, in: e, out: l, features: 9, "
                              "bias: false, weight: wte.weight}\n"
                              "  - {op: linear, name: op, in: l, out: z, features: 3}\n"
                              "  - {op: linear, name: op2, in: z, out: z, features: 2, "
                              "init_std: 0.5}\n";
    op_run run;
    smp_op_work work;
    (void)state;
    op_run_open(&run, yaml, "op", 2, 0);
    const smp_graph *graph = run.graph;
    const smp_op *tied = &graph->op[smp_graph_find_op(graph, "tied")];
    assert_int_equal(tied->param[0], graph->op[smp_graph_find_op(graph, "wte")].param[0]);
    assert_int_equal(tied->n_param, 1);
    const smp_param *weight = &graph->param[run.op->param[0]];
    const smp_param *bias = &graph->param[run.op->param[1]];
    assert_string_equal(weight->name, "op.weight");
    assert_string_equal(bias->name, "op.bias");
    assert_int_equal(weight->init, SMP_INIT_UNIFORM);
    assert_true(fabsf(weight->init_scale - 1.0f / 3) < 1e-6f);
    assert_int_equal(bias->init, SMP_INIT_ZERO);
    weight = &graph->param[graph->op[smp_graph_find_op(graph, "op2")].param[0]];
    assert_int_equal(weight->init, SMP_INIT_NORMAL);
    assert_true(weight->init_scale == 0.5f);
    smp_op_work_get(graph, run.op, 2, &work);
    assert_true(work.forward_flops == 2.0 * 8 * 9 * 3 + 8 * 3);
    assert_true(work.backward_input_flops == 2.0 * 8 * 9 * 3);
    assert_true(work.forward_bytes == 4.0 * (8 * 9 + 8 * 3 + 9 * 3 + 3));
    assert_true(work.backward_input_bytes == 4.0 * (8 * 9 + 8 * 3 + 9 * 3 + 3));
    op_run_close(&run);
}

/* The statistics come last and are not trained; nothing decays. */
static void test_op_rules_batchnorm_declares_weights(void **state)
{
    static const char *const names[] = {"op.weight", "op.bias", "op.running_mean",
                                        "op.running_var"};
    op_run run;
    (void)state;
    op_run_open(&run, INPUTS "  - {op: batchnorm, name: op, in: x, out: z}\n", "op", 2, 0);
    assert_int_equal(run.op->n_param, 4);
    for (int i = 0; i < 4; i++) {
        const smp_param *param = &run.graph->param[run.op->param[i]];
        assert_string_equal(param->name, names[i]);
        assert_int_equal(param->elements, 4);
        assert_int_equal(param->init, i % 3 == 0 ? SMP_INIT_ONE : SMP_INIT_ZERO);
        assert_true(param->running == (i >= 2) && !param->decay);
    }
    op_run_close(&run);
}

/* One value of a channel: its output is the bias, nothing passes back, and the variance that comes
 * into the running one is 0. */
static void test_op_rules_batchnorm_of_one_value(void **state)
{
    op_run run;
    (void)state;
    op_run_open(&run, INPUTS "  - {op: batchnorm, name: op, in: v, out: z}\n", "op", 1, 0);
    for (int i = 0; i < 6; i++) {
        ((float *)run.in[0].data)[i] = (float)i;
        ((float *)run.dout.data)[i] = 1;
        for (int p = 0; p < 4; p++) {
            ((float *)run.param[p].data)[i] = 2;
            ((float *)run.dparam[p].data)[i] = 0;
        }
    }
    assert_int_equal(op_run_forward(&run), SMP_OK);
    op_run_backward_input(&run, 1);
    op_run_backward_weight(&run);
    for (int i = 0; i < 6; i++) {
        const float change[] = {0, 1, 0.1f * ((float)i - 2), 0.1f * (0 - 2)};
        assert_true(((float *)run.out.data)[i] == 2);
        assert_true(((float *)run.din[0].data)[i] == 0);
        for (int p = 0; p < 4; p++)
            assert_true(fabsf(((float *)run.dparam[p].data)[i] - change[p]) < 1e-6f);
    }
    op_run_close(&run);
}

static void test_op_rules_opaque_is_planned_only(void **state)
{
    const char *yaml = INPUTS "  - {op: opaque, name: a, in: [x, ids], out: u}\n"
                              "  - {op: opaque, name: b, in: u, out: z, shape: [2, 3], "
                              "dtype: int32}\n";
    smp_graph *graph = NULL;
    (void)state;
    if (smp_graph_parse("m.yaml", yaml, strlen(yaml), &graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    const smp_op *a = &graph->op[0], *b = &graph->op[1];
    assert_false(graph->tensor[a->out].known);
    assert_true(graph->tensor[b->out].known);
    assert_int_equal(graph->tensor[b->out].dtype, SMP_I32);
    assert_int_equal(graph->tensor[b->out].elements, 6);
    assert_null(a->kind->cpu.forward);
    smp_graph_destroy(graph);
}

/* Integers can be reshaped and joined, too: the copy kernels move any 4-byte values. */
static void test_op_rules_copies_integers(void **state)
{
    static const char *const ops[] = {"op: flatten, in: ids",
                                      "op: reshape, in: ids, shape: [2, 2]",
                                      "op: concat, in: [ids, ids]",
                                      "op: split, in: ids, out: [z, w]",
                                      "op: transpose, in: ids, axes: [0]",
                                      "op: slice, in: ids"};
    (void)state;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        char yaml[1024];
        op_run run;
        snprintf(yaml, sizeof yaml, "%s  - {%s, name: op%s}\n", INPUTS, ops[i],
                 strstr(ops[i], "out: ") ? "" : ", out: z");
        op_run_open(&run, yaml, "op", 1, 0);
        for (int s = 0; s < run.op->n_in; s++)
            memcpy(run.in[s].data, (int32_t[]){1, -2, INT32_MIN, 3}, 4 * sizeof(int32_t));
        assert_int_equal(run.graph->tensor[run.op->out].dtype, SMP_I32);
        assert_int_equal(op_run_forward(&run), SMP_OK);
        for (size_t e = 0; e < run.out.bytes; e += run.in[0].bytes)
            assert_memory_equal((char *)run.out.data + e, run.in[0].data, run.in[0].bytes);
        op_run_backward_input(&run, 3);
        op_run_close(&run);
    }
}

#define IMAGE "smp: 1\nname: t\ninputs:\n  x: {dtype: float32, shape: [1, 2, 3]}\nops:\n"

static void test_op_rules_refuse_bad_windows(void **state)
{
    static const char *const kinds[] = {"max_pool", "avg_pool"};
    static const char *const cases[][2] = {
        {"kernel: 2, padding: 2", "padding: got 2, expected at most half the kernel of 2"},
        {"kernel: 3", "kernel: 3 does not fit dimension 1: 2 elements, padded by 0"},
        {"kernel: 256", "kernel"},
        {"stride: 1", "kernel"},
        {"kernel: 2, stride: -1", "stride"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            char yaml[1024];
            smp_graph *graph = NULL;
            snprintf(yaml, sizeof yaml, "%s  - {op: %s, name: op, in: x, out: z, %s}\n", IMAGE,
                     kinds[k], cases[i][0]);
            assert_int_equal(smp_graph_parse("m.yaml", yaml, strlen(yaml), &graph), SMP_ERR_INPUT);
            if (!strstr(smp_last_error(), cases[i][1]))
                fail_msg("got \"%s\", expected \"%s\"", smp_last_error(), cases[i][1]);
        }
}

/* n windows of [[a, b, c], [d, e, f]]: what comes out, and who gets the gradients 1, 10, ... */
static void check_max_pool(const char *windows, int n, const float in[6], const float *out,
                           const float din[6])
{
    char yaml[1024];
    op_run run;
    snprintf(yaml, sizeof yaml, IMAGE "  - {op: max_pool, name: op, in: x, out: z, %s}\n", windows);
    op_run_open(&run, yaml, "op", 1, 0);
    memcpy(run.in[0].data, in, 6 * sizeof *in);
    memcpy(run.dout.data, (float[]){1, 10, 100, 1000}, (size_t)n * sizeof *in);
    assert_int_equal(run.out.bytes, (size_t)n * sizeof *out);
    assert_int_equal(op_run_forward(&run), SMP_OK);
    op_run_backward_input(&run, 1);
    for (int i = 0; i < n; i++) {
        const float got = ((float *)run.out.data)[i];
        assert_true(isnan(out[i]) ? isnan(got) : got == out[i]);
    }
    assert_memory_equal(run.din[0].data, din, 6 * sizeof *din);
    op_run_close(&run);
}

static void test_op_rules_max_pool_chooses(void **state)
{
    const char *two = "kernel: 2, stride: 1", *four = "kernel: 2, padding: 1";
    const float none = -INFINITY;
    (void)state;
    check_max_pool(two, 2, (float[]){3, 3, 3, 3, 3, 3}, (float[]){3, 3},
                   (float[]){1, 10, 0, 0, 0, 0});
    check_max_pool(two, 2, (float[]){1, 2, 1, 1, 1, 2}, (float[]){2, 2},
                   (float[]){0, 11, 0, 0, 0, 0});
    check_max_pool(two, 2, (float[]){none, none, 1, none, none, 1}, (float[]){none, 1},
                   (float[]){1, 0, 10, 0, 0, 0});
    check_max_pool(two, 2, (float[]){1, 2, 3, NAN, 2, 4}, (float[]){NAN, 4},
                   (float[]){0, 0, 0, 1, 0, 10});
    check_max_pool(four, 4, (float[]){none, none, none, none, none, none},
                   (float[]){none, none, none, none}, (float[]){1, 10, 0, 100, 1000, 0});
    check_max_pool(four, 4, (float[]){-4, -3, -2, -1, -3, -3}, (float[]){-4, -2, -1, -3},
                   (float[]){1, 0, 10, 100, 1000, 0});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_op_rules_refuse_bad_models),
        cmocka_unit_test(test_op_rules_refuse_bad_convolutions),
        cmocka_unit_test(test_op_rules_refuse_indices_out_of_range),
        cmocka_unit_test(test_op_rules_cross_entropy_ignores),
        cmocka_unit_test(test_op_rules_nan_is_passed_on),
        cmocka_unit_test(test_op_rules_dropout_mask),
        cmocka_unit_test(test_op_rules_dropout_evaluation_is_identity),
        cmocka_unit_test(test_op_rules_linear_declares_weights),
        cmocka_unit_test(test_op_rules_batchnorm_declares_weights),
        cmocka_unit_test(test_op_rules_batchnorm_of_one_value),
        cmocka_unit_test(test_op_rules_opaque_is_planned_only),
        cmocka_unit_test(test_op_rules_copies_integers),
        cmocka_unit_test(test_op_rules_refuse_bad_windows),
        cmocka_unit_test(test_op_rules_max_pool_chooses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
