/* The model format: repeats, names with expressions, pins, groups, costs, attributes, limits. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "graph/base/text.h"
#include "tests/graph/model/model_text.h"

static const smp_op *op_named(const smp_graph *g, const char *name)
{
    int32_t i = smp_graph_find_op(g, name);
    if (i < 0)
        fail_msg("no op '%s'", name);
    return &g->op[i];
}

static void test_model_nested_repeats(void **state)
{
    (void)state;
    smp_graph *g = read_model("smp: 1\n"
                              "let: {n: 3}\n"
                              "inputs: {x0: {dtype: float32, shape: [4]}}\n"
                              "ops:\n"
                              "  - repeat: n\n"
                              "    as: i\n"
                              "    ops:\n"
                              "      - repeat: i + 1\n"
                              "        as: j\n"
                              "        ops:\n"
                              "          - {op: relu, name: 'b{i}.{j}', in: x0, out: x0}\n"
                              "      - {op: linear, name: 'l{n - i}', in: 'x{i * 0}',\n"
                              "         out: 'y{i+1}', features: 2 * i + 1}\n"
                              "  - {repeat: 0, ops: [{op: relu, name: never, in: q, out: q}]}\n"
                              "  - {repeat: 1, ops: [{op: relu, name: once, in: y3, out: z}]}\n");
    static const char *const names[] = {"b0.0", "l3",   "b1.0", "b1.1", "l2",
                                        "b2.0", "b2.1", "b2.2", "l1",   "once"};
    assert_int_equal(g->n_op, 10);
    for (int i = 0; i < 10; i++)
        assert_string_equal(g->op[i].name, names[i]);
    assert_int_equal(g->tensor[op_named(g, "l1")->out].shape.dim[0], 5);
    assert_string_equal(g->tensor[op_named(g, "l2")->out].name, "y2");
    assert_int_equal(op_named(g, "once")->in[0], op_named(g, "l1")->out);
    assert_int_equal(op_named(g, "l3")->in[0], op_named(g, "b0.0")->out);
    assert_non_null(g->param[0].name);
    assert_true(smp_graph_find_param(g, "l2.bias") >= 0);
    smp_graph_destroy(g);
}

static void test_model_lists_and_conditions(void **state)
{
    (void)state;
    smp_graph *g =
        read_model("smp: 1\n"
                   "let: {n: 2, width: [n, 5 * n], deep: ['width[0]', 0]}\n"
                   "inputs: {x: {dtype: float32, shape: ['width[0]']}}\n"
                   "ops:\n"
                   "  - repeat: n\n"
                   "    as: i\n"
                   "    ops:\n"
                   "      - {op: linear, name: 'l{i}', in: x, out: x, features: 'width[i]'}\n"
                   "      - {op: relu, name: 'r{i}', in: x, out: x, when: i == 1}\n"
                   "      - repeat: deep[i]\n"
                   "        as: k\n"
                   "        ops:\n"
                   "          - {op: tanh, name: 't{i}.{k}', in: x, out: x}\n"
                   "      - when: i\n"
                   "        repeat: n / i\n"
                   "        as: k\n"
                   "        ops:\n"
                   "          - {op: gelu, name: 'g{width[k]}', in: x, out: x}\n"
                   "      - {when: i < 1, ops: [{op: silu, name: s, in: x, out: x}]}\n"
                   "  - {ops: [{op: sigmoid, name: last, in: x, out: x}]}\n");
    static const char *const names[] = {"l0", "t0.0", "t0.1", "s", "l1", "r1", "g2", "g10", "last"};
    assert_int_equal(g->n_op, 9);
    for (int i = 0; i < 9; i++)
        assert_string_equal(g->op[i].name, names[i]);
    assert_int_equal(g->tensor[op_named(g, "l0")->out].shape.dim[0], 2);
    assert_int_equal(g->tensor[op_named(g, "last")->out].shape.dim[0], 10);
    smp_graph_destroy(g);
}

static const char set_text[] = "smp: 1\n"
                               "let: {n: 2, width: [n, 5 * n], rows: 'n + 1'}\n"
                               "inputs: {x: {dtype: float32, shape: [rows]}}\n"
                               "ops:\n"
                               "  - {op: linear, name: a, in: x, out: x, features: 'width[1]'}\n";

/* Width of input and output, where `set` is given in the place of entries of `let`. */
static void expect_widths(const char *path, const char *const *set, int n, int64_t in, int64_t out)
{
    smp_graph *g = NULL;
    if (smp_graph_read_with(path, (smp_settings){n, set}, &g) != SMP_OK)
        fail_msg("%s", smp_last_error());
    assert_int_equal(g->tensor[0].shape.dim[0], in);
    assert_int_equal(g->tensor[op_named(g, "a")->out].shape.dim[0], out);
    smp_graph_destroy(g);
}

static void expect_unset(const char *path, const char *setting, const char *message)
{
    smp_graph *g = NULL;
    assert_int_equal(smp_graph_read_with(path, (smp_settings){1, &setting}, &g), SMP_ERR_INPUT);
    if (!strstr(smp_last_error(), message))
        fail_msg("'%s': got '%s', expected '%s'", setting, smp_last_error(), message);
}

static void test_model_settings_replace_entries(void **state)
{
    (void)state;
    char path[] = P_tmpdir "/smp-model-XXXXXX";
    const int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, set_text, strlen(set_text)), (ssize_t)strlen(set_text));
    close(file);
    expect_widths(path, NULL, 0, 3, 10);
    expect_widths(path, (const char *const[]){"n=4"}, 1, 5, 20); /* and what is made of it */
    expect_widths(path, (const char *const[]){"width=[1, n + 5]"}, 1, 3, 7);
    expect_widths(path, (const char *const[]){"rows=9", "n=3", "rows=n * 2"}, 3, 6, 15);
    smp_graph *g = NULL;
    const char *const twice[] = {"n=1", "rows=8", "n=6"};
    assert_int_equal(smp_graph_read_with(path, (smp_settings){3, twice}, &g), SMP_OK);
    assert_int_equal(g->settings.n, 2);
    assert_string_equal(g->settings.text[0], "rows=8");
    assert_string_equal(g->settings.text[1], "n=6");
    smp_graph_destroy(g);
    expect_unset(path, "row=4", "no 'row' to set, did you mean 'rows'?");
    expect_unset(path, "n", "got 'n' to set, expected NAME=VALUE");
    expect_unset(path, "n=", "expected NAME=VALUE");
    expect_unset(path, "=3", "expected NAME=VALUE");
    expect_unset(path, "n=3\nrows: 4", "expected NAME=VALUE");
    expect_unset(path, "n=rows", "unknown name 'rows'"); /* not known yet */
    expect_unset(path, "smp=2", "smp");
    unlink(path);
    const char *n_is_3 = "n=3";
    const smp_settings many = {SMP_MAX_SETTINGS + 1, &n_is_3};
    assert_int_equal(smp_graph_read_with(SMP_SOURCE_DIR "/examples/mlp.yaml", many, &g),
                     SMP_ERR_INPUT);
}

static void test_model_attributes_of_a_repeat_are_its_own(void **state)
{
    (void)state;
    smp_graph *g =
        read_model("smp: 1\n"
                   "inputs: {x: {dtype: float32, shape: [4]}}\n"
                   "ops:\n"
                   "  - repeat: 3\n"
                   "    as: i\n"
                   "    ops:\n"
                   "      - {op: linear, name: 'a{i}', in: x, out: a, features: 7}\n"
                   "      - {op: linear, name: 'b{i}', in: x, out: b, features: i+1,\n"
                   "         bias: no}\n"
                   "      - {op: linear, name: 'c{i}', in: x, out: c, features: i+1,\n"
                   "         bias: no, weight: 'b{i}.weight'}\n"
                   "      - {op: opaque, name: 'd{i}', in: x, out: d, shape: [i+1, 2]}\n");
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "a%d", i);
        assert_int_equal(g->tensor[op_named(g, name)->out].shape.dim[0], 7);
        name[0] = 'b';
        const smp_op *b = op_named(g, name);
        assert_int_equal(g->tensor[b->out].shape.dim[0], i + 1);
        assert_int_equal(b->n_param, 1);
        name[0] = 'c';
        const smp_op *c = op_named(g, name);
        assert_int_equal(c->param[0], b->param[0]);
        assert_string_equal(c->attr[smp_op_attr_index(c->kind, "weight")].s.text,
                            g->param[b->param[0]].name);
        name[0] = 'd';
        const smp_op *d = op_named(g, name);
        assert_int_equal(d->attr[smp_op_attr_index(d->kind, "shape")].list.items[0], i + 1);
        assert_int_equal(g->tensor[d->out].elements, 2 * (i + 1));
    }
    assert_ptr_equal(op_named(g, "a0")->attr, op_named(g, "a2")->attr); /* shared: no variable */
    smp_graph_destroy(g);
}

static void test_model_pins_groups_and_costs(void **state)
{
    (void)state;
    smp_graph *g = read_model(
        "smp: 1\n"
        "let: {half: 1}\n"
        "ops:\n"
        "  - {op: opaque, name: a, out: a, stage: half - 1, group: front}\n"
        "  - {op: opaque, name: b, in: a, out: b, group: 'g{half}',\n"
        "     cost: {forward_us: 1.5, backward_us: 3, weight_bytes: 2MiB, stash_bytes: 10,\n"
        "            output_bytes: 1KB}}\n"
        "  - {op: opaque, name: c, in: [a, b], out: c, stage: 3, group: front,\n"
        "     cost: {forward_us: 0}}\n");
    assert_int_equal(g->op[0].pin, 0);
    assert_int_equal(g->op[1].pin, -1);
    assert_int_equal(g->op[2].pin, 3);
    assert_int_equal(g->n_group, 2);
    assert_string_equal(g->group[0], "front");
    assert_string_equal(g->group[1], "g1");
    assert_int_equal(g->op[0].group, 0);
    assert_int_equal(g->op[1].group, 1);
    assert_int_equal(g->op[2].group, 0);
    assert_null(g->op[0].cost);
    const smp_op_cost_override *cost = g->op[1].cost;
    assert_true(cost->forward_us == 1.5 && cost->backward_us == 3);
    assert_int_equal(cost->weight_bytes, 2 << 20);
    assert_int_equal(cost->stash_bytes, 10);
    assert_int_equal(cost->output_bytes, 1000);
    cost = g->op[2].cost;
    assert_true(cost->forward_us == 0 && isnan(cost->backward_us));
    assert_int_equal(cost->weight_bytes, -1);
    assert_int_equal(cost->output_bytes, -1);
    assert_false(g->tensor[0].known);
    smp_graph_destroy(g);
}

static void test_model_defaults_are_filled_in(void **state)
{
    (void)state;
    smp_graph *g = read_model("smp: 1\n"
                              "inputs: {x: {dtype: float32, shape: [4]}}\n"
                              "ops: [{op: linear, name: l, in: [x], out: y, features: 2}]\n");
    const smp_op *op = &g->op[0];
    assert_int_equal(op->attr[smp_op_attr_index(op->kind, "bias")].i, 1);
    assert_null(op->attr[smp_op_attr_index(op->kind, "weight")].s.text);
    assert_string_equal(g->name, "model");
    assert_true(g->training);
    smp_graph_destroy(g);
}

static void test_model_aliases_share_a_block(void **state)
{
    (void)state;
    smp_graph *g = read_model("smp: 1\n"
                              "inputs: {x: {dtype: float32, shape: [4]}}\n"
                              "ops:\n"
                              "  - repeat: 2\n"
                              "    as: i\n"
                              "    ops: &block [{op: relu, name: 'r{i}', in: x, out: x}]\n"
                              "  - {op: opaque, name: o, in: x, out: x, shape: &s [4, 2]}\n"
                              "  - {op: opaque, name: p, in: x, out: x, shape: *s}\n");
    assert_int_equal(g->n_op, 4);
    assert_int_equal(g->tensor[g->op[3].out].elements, 8);
    smp_graph_destroy(g);
}

/* Of the processor: the machine may be busy. */
static double seconds(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

/* Far too many ops: refused by arithmetic. The bound is loose, unrolling would take minutes. */
static void test_model_too_large_is_refused_at_once(void **state)
{
    static const char *const repeats[][2] = {
        {"[{repeat: 10000001, as: i, ops: [%s]}]", "more than 10000000 ops"},
        {"[{repeat: 9223372036854775807, as: i, ops: [%s]}]", "more than 10000000 ops"},
        {"[{repeat: 4000000000, ops: [{repeat: 4000000000, as: i, ops: [%s]}]}]",
         "more than 10000000 ops"},
        {"[{repeat: 10000, as: k, ops: [{repeat: k, as: i, ops: [%s]}]}]",
         "more than 10000000 ops"},
        {"[{repeat: 1000000000000, as: k, ops: [{repeat: 0*k, as: i, ops: [%s]}]}]",
         "more than 40000000 turns"},
        {"[{repeat: 30000000, as: i, ops: [{op: relu, name: r, in: x, out: x, when: 0}]}]",
         "more than 40000000 turns"},
        {"[{repeat: 1000000000000, ops: []}]", "more than 40000000 turns"},
    };
    (void)state;
    double start = seconds();
    for (size_t i = 0; i < sizeof repeats / sizeof repeats[0]; i++) {
        char text[512];
        int n = snprintf(text, sizeof text, "smp: 1\nops: ");
        n += snprintf(text + n, sizeof text - (size_t)n, repeats[i][0],
                      "{op: opaque, name: 'n{i}', out: t}");
        expect_error(text, (size_t)n, "m.yaml:2:", repeats[i][1]);
    }
    /* Few ops, many connections. */
    smp_text text = {0};
    smp_text_append(&text, "smp: 1\nops:\n  - {op: opaque, name: a, out: t}\n"
                           "  - {repeat: 100000, as: i, ops: [{op: opaque, name: 'n{i}', in: [t");
    for (int i = 0; i < 5000; i++)
        smp_text_append(&text, ",t");
    smp_text_append(&text, "], out: t}]}\n");
    expect_error(text.data, text.length, "m.yaml:4:", "inputs and values");
    smp_text_free(&text);
    assert_true(seconds() - start < 20);
}

static void test_model_many_ops(void **state)
{
    (void)state;
    smp_graph *g = read_model("smp: 1\n"
                              "inputs: {x0: {dtype: float32, shape: [4]}}\n"
                              "ops:\n"
                              "  - repeat: 100000\n"
                              "    as: i\n"
                              "    ops: [{op: relu, name: 'r{i}', in: 'x{i}', out: 'x{i+1}'}]\n");
    assert_int_equal(g->n_op, 100000);
    for (int32_t i = 0; i < g->n_op; i += 997) {
        char name[16];
        snprintf(name, sizeof name, "r%d", i);
        assert_int_equal(smp_graph_find_op(g, name), i);
        assert_int_equal(g->op[i].in[0], i);
    }
    smp_graph_destroy(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_nested_repeats),
        cmocka_unit_test(test_model_lists_and_conditions),
        cmocka_unit_test(test_model_settings_replace_entries),
        cmocka_unit_test(test_model_attributes_of_a_repeat_are_its_own),
        cmocka_unit_test(test_model_pins_groups_and_costs),
        cmocka_unit_test(test_model_defaults_are_filled_in),
        cmocka_unit_test(test_model_aliases_share_a_block),
        cmocka_unit_test(test_model_too_large_is_refused_at_once),
        cmocka_unit_test(test_model_many_ops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
