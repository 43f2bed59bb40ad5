/* What a model file says of ops that are only planned: outputs one by one, shared weights, no
 * gradients, types that no kernel takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "tests/graph/model/model_text.h"

#define HEAD                                                                                       \
    "smp: 1\n"                                                                                     \
    "inputs: {ids: {dtype: int64, shape: [8]}, x: {dtype: float32, shape: [8]}}\n"                 \
    "ops:\n"
#define OP(rest) HEAD "  - {op: opaque, name: a, in: ids, " rest "}\n"

static const smp_tensor *made(const smp_graph *g, const char *op, int32_t k)
{
    return &g->tensor[g->op[smp_graph_find_op(g, op)].out + k];
}

static void test_declared_outputs(void **state)
{
    (void)state;
    smp_graph *g = read_model(
        HEAD "  - op: opaque\n"
             "    name: layers[0].a\n"
             "    in: [ids, x]\n"
             "    outputs:\n"
             "      - {name: y, shape: [4, 8], dtype: bf16}\n"
             "      - {name: 'm[0]', shape: [8, 8], dtype: bool, batched: false}\n"
             "      - {name: n, bytes: 1000, dtype: int64}\n"
             "      - {name: z, shape: []}\n"
             "    cost: {forward_us: 1}\n"
             "  - {op: opaque, name: b, in: [y, 'm[0]', n], out: b, dtype: fp16, shape: [3],\n"
             "     cost: {forward_us: 1}}\n");
    const smp_op *op = &g->op[smp_graph_find_op(g, "layers[0].a")];
    assert_int_equal(op->n_out, 4);
    assert_int_equal(made(g, "layers[0].a", 0)->dtype, SMP_BF16);
    assert_int_equal(smp_tensor_bytes(g, op->out, 5), 4 * 8 * 2 * 5);
    assert_int_equal(smp_tensor_bytes(g, op->out + 1, 5), 8 * 8);
    assert_int_equal(smp_tensor_bytes(g, op->out + 2, 5), 1000);
    assert_int_equal(smp_tensor_bytes(g, op->out + 3, 5), 4 * 5);
    assert_int_equal(smp_tensor_bytes(g, g->op[1].out, 5), 3 * 2 * 5);
    assert_int_equal(smp_tensor_bytes(g, 0, 5), 8 * 8 * 5);
    /* As the file says, whatever the target: only what kernels could compute with changes. */
    assert_int_equal(smp_graph_set_target(g, (smp_target){SMP_BACKEND_CPU, SMP_PRECISION_BF16}),
                     SMP_OK);
    assert_int_equal(g->tensor[1].dtype, SMP_BF16);
    assert_int_equal(made(g, "b", 0)->dtype, SMP_F16);
    assert_int_equal(made(g, "layers[0].a", 3)->dtype, SMP_BF16);
    smp_graph_destroy(g);
}

static void test_declared_weights_are_shared(void **state)
{
    (void)state;
    smp_graph *g = read_model(
        HEAD
        "  - {op: opaque, name: wte, in: ids, out: x, weights: [{name: table, shape: [9, 3]}]}\n"
        "  - repeat: 2\n"
        "    as: i\n"
        "    ops:\n"
        "      - {op: opaque, name: 'h{i}', in: x, out: x,\n"
        "         weights: [{name: 'w{i}', bytes: 4KiB}, {name: both, bytes: 10}]}\n"
        "  - {op: opaque, name: head, in: x, out: y, weights: [table]}\n");
    assert_int_equal(g->n_param, 4);
    assert_int_equal(g->param[smp_graph_find_param(g, "w1")].elements, 1024);
    assert_int_equal(g->param[smp_graph_find_param(g, "both")].elements, 3);
    const smp_param *table = &g->param[smp_graph_find_param(g, "table")];
    assert_int_equal(table->elements, 27);
    assert_int_equal(table->use_end - table->use_begin, 2);
    assert_int_equal(g->use[table->use_begin + 1].op, smp_graph_find_op(g, "head"));
    smp_graph_destroy(g);
}

/* a -> b -> loss, with so much said of each. */
static void expect_gradients(const char *a, const char *b, bool a_needs, bool b_needs)
{
    char text[1024];
    snprintf(text, sizeof text,
             HEAD "  - {op: opaque, name: a, in: ids, out: a%s}\n"
                  "  - {op: opaque, name: b, in: a, out: b%s}\n"
                  "  - {op: opaque, name: l, in: b, weights: [],\n"
                  "     outputs: [{name: l, shape: [], batched: false}]}\n"
                  "loss: l\n",
             a, b);
    smp_graph *g = read_model(text);
    assert_int_equal(made(g, "a", 0)->needs_grad, a_needs);
    assert_int_equal(made(g, "b", 0)->needs_grad, b_needs);
    assert_int_equal(made(g, "l", 0)->needs_grad, a_needs || b_needs);
    smp_graph_destroy(g);
}

static void test_declared_gradients(void **state)
{
    (void)state;
    expect_gradients("", "", true, true); /* what is not said may have weights */
    expect_gradients(", weights: []", ", weights: []", false, false);
    expect_gradients(", weights: []", ", weights: [{name: w, bytes: 4}]", false, true);
    expect_gradients(", weights: [{name: w, bytes: 4}]", ", weights: []", true, true);
    expect_gradients(", dtype: int64", ", weights: []", false, false);
    expect_gradients(", dtype: fp16", ", weights: []", true, true);
    expect_gradients("", ", weights: [], grad: false", false, false);
    expect_gradients(", grad: false", ", weights: []", false, false);
    expect_gradients(", grad: true", ", weights: []", true, true);
}

static uint64_t fingerprint(const char *rest)
{
    char text[512];
    snprintf(text, sizeof text, HEAD "  - {op: opaque, name: a, in: x, out: y, %s}\n", rest);
    smp_graph *g = read_model(text);
    uint64_t value = g->fingerprint;
    smp_graph_destroy(g);
    return value;
}

static void test_declared_fingerprint(void **state)
{
    (void)state;
    static const char *const different[] = {"shape: [4]",
                                            "shape: [4], dtype: int64",
                                            "shape: [4], dtype: bool",
                                            "shape: [4], grad: false",
                                            "shape: [4], weights: [{name: w, bytes: 4}]",
                                            "shape: [4], weights: [{name: w, bytes: 8}]"};
    enum { N = sizeof different / sizeof different[0] };
    for (int i = 0; i < N; i++)
        for (int k = 0; k < i; k++)
            assert_true(fingerprint(different[i]) != fingerprint(different[k]));
    assert_true(fingerprint("shape: [4], grad: true") == fingerprint("shape: [4]"));
}

static void test_declared_errors(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
    } cases[] = {
        {OP("outputs: y"), "outputs: got 'y', expected a list"},
        {OP("outputs: []"), "outputs: got 0, expected 1 to 32"},
        {OP("outputs: [y]"), "outputs: got 'y', expected a map"},
        {OP("outputs: [{shape: [3]}]"), "outputs: no 'name'"},
        {OP("outputs: [{name: y, type: bool}]"), "unknown key 'type'"},
        {OP("outputs: [{name: y, dtype: half}]"), "got 'half', expected one of float32, int32"},
        {OP("outputs: [{name: y, shape: [3], bytes: 3}]"), "got both shape and bytes"},
        {OP("outputs: [{name: y, bytes: 3, batched: true}]"), "give a shape"},
        {OP("outputs: [{name: y}, {name: y}]"), "got 'y' twice"},
        {OP("outputs: [{name: y, shape: [0]}]"), "got 0"},
        {OP("outputs: [{name: y}], out: y"), "'outputs' says that already"},
        {OP("outputs: [{name: y}], dtype: bool"), "'outputs' says that already"},
        {OP("outputs: [{name: y}], cost: {output_bytes: 4}"), "'outputs' says that already"},
        {OP("out: y, weights: [], cost: {weight_bytes: 4}"), "'weights' says that already"},
        {OP("out: y, weights: w"), "weights: got 'w', expected a list"},
        {OP("out: y, weights: [w]"), "weights: 'w' has no size"},
        {OP("out: y, weights: [{bytes: 4}]"), "weights: no 'name'"},
        {OP("out: y, weights: [{name: w, shape: [2], bytes: 8}]"), "got both"},
        {OP("out: y, weights: [{name: w, bytes: 4}, w]"), "got 'w' twice"},
        {OP("out: y, weights: [{name: w, shape: [1048576, 1048577]}]"), "at most 2^40"},
        {OP("out: y, weights: [{name: w, bytes: 8}]}\n"
            "  - {op: opaque, name: b, in: y, out: y, weights: [{name: w, bytes: 12}]"),
         "'w' has 3 values of 4 bytes, an op before it says 2"},
        {OP("out: y, grad: no way"), "grad: got 'no way'"},
        {HEAD "  - {op: relu, name: r, in: x, out: y, grad: false}\n", "unknown key 'grad'"},
        {HEAD "  - {op: relu, name: r, in: ids, out: y}\n", "'ids' is int64, which is planned"},
        {OP("out: y, shape: [4], dtype: bf16}\n  - {op: relu, name: r, in: y, out: z"),
         "'y' is bf16, which is planned"},
        {OP("outputs: [{name: y, shape: [4], batched: false}]}\n  - {op: relu, name: r, in: y, "
            "out: z"),
         "one value per micro-batch"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_error(cases[i].text, strlen(cases[i].text), "m.yaml:", cases[i].part);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_declared_outputs),
        cmocka_unit_test(test_declared_weights_are_shared),
        cmocka_unit_test(test_declared_gradients),
        cmocka_unit_test(test_declared_fingerprint),
        cmocka_unit_test(test_declared_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
