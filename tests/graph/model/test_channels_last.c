/* Which images lie channels last: on CUDA those whose class no operator and no input of the model
 * needs as [C, H, W]; transposes, which take each image as it lies, part classes. In graphs of
 * several devices, too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include "graph/split/splitting.h"
#include "tests/graph/model/model_text.h"

static const smp_target cuda = {SMP_BACKEND_CUDA, SMP_PRECISION_BF16};

/* The names of the tensors that are channels_last, each followed by a blank. */
static const char *last_of(const smp_graph *graph)
{
    static char names[512];
    names[0] = '\0';
    for (int32_t t = 0; t < graph->n_tensor; t++)
        if (graph->tensor[t].channels_last)
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s ",
                     graph->tensor[t].name);
    return names;
}

static smp_graph *read_ops(const char *ops)
{
    char text[2048];
    snprintf(text, sizeof text,
             "smp: 1\nname: images\nmode: inference\ninputs:\n"
             "  p: {dtype: float32, shape: [6, 5, 4]}\n" /* pixels, channels last */
             "  i: {dtype: float32, shape: [4, 6, 5]}\n" /* an image */
             "ops: [{op: transpose, name: in, in: p, out: a, axes: [2, 0, 1]}, %s]\n",
             ops);
    return read_model(text);
}

/* a, which the transpose makes, and what else the ops do. */
static void test_channels_last_classes(void **state)
{
    (void)state;
    static const struct {
        const char *ops, *last;
    } cases[] = {
        {"{op: relu, name: r, in: a, out: b}", "a b "},
        {"{op: batchnorm, name: n, in: a, out: b}, {op: gelu, name: g, in: b, out: c}, "
         "{op: max_pool, name: m, in: c, out: d, kernel: 2}, "
         "{op: upsample, name: u, in: d, out: e, factor: 2}, "
         "{op: groupnorm, name: o, in: e, out: f, groups: 2}, "
         "{op: global_avg_pool, name: p, in: f, out: g}, "
         "{op: linear, name: l, in: g, out: h, features: 2}",
         "a b c d e f "},
        /* an input of the model, alone and in a sum */
        {"{op: relu, name: r, in: i, out: b}", "a "},
        {"{op: add, name: s, in: [a, i], out: b}", ""},
        /* who needs rows, right there and further on; and who does not */
        {"{op: softmax, name: s, in: a, out: b}", ""},
        {"{op: relu, name: r, in: a, out: b}, {op: scale, name: s, in: b, out: c, factor: 2}, "
         "{op: flatten, name: f, in: c, out: d}",
         ""},
        {"{op: relu, name: r, in: a, out: b}, {op: dropout, name: d, in: b, out: c, p: 0.5}", ""},
        {"{op: relu, name: r, in: a, out: b}, {op: transpose, name: t, in: b, out: c, "
         "axes: [0, 2, 1]}, {op: flatten, name: f, in: c, out: d}",
         "a b "},
        {"{op: relu, name: r, in: a, out: b}, {op: transpose, name: t, in: b, out: c, "
         "axes: [0, 2, 1]}, {op: tanh, name: h, in: c, out: d}",
         "a b c d "},
        /* branches are one class where they meet */
        {"{op: relu, name: r, in: a, out: b}, {op: transpose, name: t, in: p, out: c, "
         "axes: [2, 0, 1]}, {op: flatten, name: f, in: c, out: d}, "
         "{op: concat, name: j, in: [b, c], out: e, axis: 0}",
         ""},
        {"{op: relu, name: r, in: a, out: b}, {op: transpose, name: t, in: p, out: c, "
         "axes: [2, 0, 1]}, {op: flatten, name: f, in: c, out: d}, "
         "{op: concat, name: j, in: [b, b], out: e, axis: 0}",
         "a b e "},
        {"{op: split, name: s, in: a, out: [b, c], axis: 0}, {op: flatten, name: f, in: c, "
         "out: d}",
         ""},
        /* one pixel lies as it does */
        {"{op: slice, name: s, in: a, out: b, axis: 1, end: 1}, {op: slice, name: t, in: b, "
         "out: c, axis: 2, end: 1}, {op: flatten, name: f, in: c, out: d}",
         "a b c "},
        /* sums leave no image, and what they leave is in order, or not */
        {"{op: sum, name: s, in: a, out: b, axis: 0}", "a "},
        {"{op: mean, name: s, in: a, out: b, axis: -3}", "a "},
        {"{op: sum, name: s, in: a, out: b, axis: 1}", ""},
        {"{op: bias, name: s, in: a, out: b, axis: 0}", "a b "},
        {"{op: mse, name: s, in: [a, a], out: b}", ""},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        smp_graph *graph = read_ops(cases[k].ops);
        assert_string_equal(last_of(graph), "");
        assert_int_equal(smp_graph_set_target(graph, cuda), SMP_OK);
        if (strcmp(last_of(graph), cases[k].last) != 0)
            fail_msg("case %zu: got '%s', expected '%s'", k, last_of(graph), cases[k].last);
        smp_graph_destroy(graph);
    }
}

/* Tensors of other dimensions are no images: an op of four has none, and makes none. */
static void test_channels_last_dimensions(void **state)
{
    (void)state;
    static const char text[] =
        "smp: 1\nname: m\nmode: inference\ninputs: {x: {dtype: float32, shape: [2, 3, 4, 5]}, "
        "t: {dtype: int32, shape: [2, 3, 4]}}\n"
        "ops: [{op: relu, name: r, in: x, out: a}, {op: sum, name: s, in: a, out: b, axis: 0}, "
        "{op: slice, name: c, in: t, out: c, axis: 0, begin: 1}]\n";
    smp_graph *graph = read_model(text);
    assert_int_equal(smp_graph_set_target(graph, cuda), SMP_OK);
    assert_string_equal(last_of(graph), "");
    smp_graph_destroy(graph);
}

/* The CPU has none, before and afterwards. */
static void test_channels_last_targets(void **state)
{
    (void)state;
    smp_graph *graph = read_ops("{op: relu, name: r, in: a, out: b}");
    assert_string_equal(last_of(graph), "");
    for (int round = 0; round < 2; round++) {
        assert_int_equal(smp_graph_set_target(graph, cuda), SMP_OK);
        assert_string_equal(last_of(graph), "a b ");
        assert_int_equal(smp_graph_set_target(graph, (smp_target){SMP_BACKEND_CPU, 0}), SMP_OK);
        assert_string_equal(last_of(graph), "");
    }
    smp_graph_destroy(graph);
}

/* Two devices share channels: what they gather is in rows, what only elements know lies last. */
static void test_channels_last_of_devices(void **state)
{
    (void)state;
    static const smp_split_entry entry = {.op = "n", .as = "channels"};
    const smp_splitting splitting = {.devices = 2, .n_entry = 1, .entry = &entry};
    for (int late = 0; late < 2; late++) {
        smp_graph *graph = read_ops("{op: relu, name: r, in: a, out: b}, "
                                    "{op: batchnorm, name: n, in: b, out: c}, "
                                    "{op: transpose, name: t, in: c, out: d, axes: [0, 2, 1]}, "
                                    "{op: tanh, name: h, in: d, out: e}");
        if (late)
            assert_int_equal(smp_graph_set_target(graph, cuda), SMP_OK);
        assert_int_equal(smp_splitting_apply(&splitting, 0, &graph), SMP_OK);
        if (!late)
            assert_string_equal(last_of(graph), "");
        assert_int_equal(smp_graph_set_target(graph, cuda), SMP_OK);
        assert_string_equal(last_of(graph), "d e ");
        assert_string_equal(last_of(smp_graph_whole(graph)), "a b c d e ");
        smp_graph_destroy(graph);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_channels_last_classes),
        cmocka_unit_test(test_channels_last_dimensions),
        cmocka_unit_test(test_channels_last_targets),
        cmocka_unit_test(test_channels_last_of_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
