/* A head and its cross_entropy are one op where a sample's logits are more than a chunk, in what is
 * trained; names, ties and fingerprints stay as the file says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include "tests/graph/model/model_text.h"

#define MODEL(mode, positions, middle, loss)                                                       \
    "smp: 1\nname: join\n" mode "inputs:\n  tokens: {dtype: int32, shape: [" positions "]}\n"      \
    "  targets: {dtype: int32, shape: [" positions "]}\nops:\n"                                    \
    "  - {op: embedding, name: wte, in: tokens, out: x, rows: 32768, features: 8}\n"               \
    "  - {op: layernorm, name: ln, in: x, out: x}\n"                                               \
    "  - {op: linear, name: head, in: x, out: y, features: 32768, weight: wte.weight}\n" middle    \
    "  - {op: cross_entropy, name: loss, in: [y, targets], out: l, label_smoothing: 0.1" loss      \
    "}\n"                                                                                          \
    "loss: l\n"
#define LARGE "4097"

static void test_graph_join_pairs(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool joined;
    } cases[] = {
        {MODEL("", LARGE, "", ""), true},
        {MODEL("", "4096", "", ""), false}, /* as many as a chunk has */
        {MODEL("mode: inference\n", LARGE, "", ""), false},
        {MODEL("", LARGE, "  - {op: relu, name: r, in: y, out: z}\n", ""), false}, /* read twice */
        {MODEL("", LARGE, "  - {op: relu, name: r, in: y, out: y}\n", ""), false},
        {MODEL("", LARGE, "", ", cost: {forward_us: 1}"), false},
        /* something that has nothing to do with it stands between */
        {MODEL("", LARGE, "  - {op: relu, name: r, in: x, out: z}\n", ""), true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        smp_graph *g = read_model(cases[i].text);
        const int32_t n_op = g->n_op;
        assert_int_equal(smp_graph_join(g), SMP_OK);
        if (g->n_op != n_op - cases[i].joined)
            fail_msg("case %zu: %d ops of %d", i, (int)g->n_op, (int)n_op);
        smp_graph_destroy(g);
    }
}

/* Also where ops and tensors stand after the pair. */
static void test_graph_join_keeps_rest(void **state)
{
    (void)state;
    static const char text[] = MODEL("", LARGE, "  - {op: relu, name: r, in: x, out: z}\n", "");
    smp_graph *g = read_model(text);
    const uint64_t fingerprint = g->fingerprint, weights = g->weights_fingerprint;
    const int32_t number = g->op[smp_graph_find_op(g, "loss")].number;
    assert_int_equal(smp_graph_join(g), SMP_OK);
    assert_int_equal(g->n_op, 4);
    assert_int_equal(smp_graph_find_op(g, "head"), -1);
    assert_int_equal(smp_graph_find_op(g, "r"), 2);
    const int32_t index = smp_graph_find_op(g, "loss");
    assert_int_equal(index, 3);
    const smp_op *loss = &g->op[index], *norm = &g->op[1];
    assert_string_equal(loss->kind->name, "linear_cross_entropy");
    assert_int_equal(loss->number, number);
    assert_int_equal(loss->n_in, 2);
    assert_int_equal(loss->in[0], norm->out);
    assert_string_equal(g->tensor[loss->in[1]].name, "targets");
    assert_int_equal(loss->out, g->loss);
    assert_int_equal(g->tensor[g->loss].producer, index);
    assert_int_equal(g->tensor[g->op[2].out].producer, 2);
    assert_int_equal(loss->attr[smp_op_attr_index(loss->kind, "features")].i, 32768);
    assert_true(loss->attr[smp_op_attr_index(loss->kind, "label_smoothing")].f == 0.1);
    assert_int_equal(loss->n_param, 2);
    assert_string_equal(g->param[loss->param[0]].name, "wte.weight");
    assert_string_equal(g->param[loss->param[1]].name, "head.bias");
    assert_int_equal(g->param[loss->param[0]].use_end - g->param[loss->param[0]].use_begin, 2);
    assert_int_equal(g->use[loss->use[0]].op, index);
    assert_int_equal(g->n_use, 5); /* the table, twice; two of the norm; the bias */
    assert_true(g->tensor[norm->out].needs_grad && g->tensor[g->loss].needs_grad);
    assert_int_equal(g->consumer_begin[norm->out + 1] - g->consumer_begin[norm->out], 2);
    assert_true(g->fingerprint == fingerprint && g->weights_fingerprint == weights);
    smp_graph_destroy(g);
}

/* Whoever asks for what the loss reads is told that it is not there. */
static void test_graph_join_hides_logits(void **state)
{
    (void)state;
    static const char text[] = MODEL("", LARGE, "", "");
    smp_graph *g = read_model(text);
    int32_t made;
    assert_int_equal(smp_graph_find_made(g, NULL, &made), SMP_OK);
    assert_string_equal(g->tensor[made].name, "y");
    assert_int_equal(smp_graph_join(g), SMP_OK);
    assert_int_equal(smp_graph_find_made(g, NULL, &made), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "op 'loss' (linear_cross_entropy) makes its logits"));
    smp_graph_destroy(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graph_join_pairs),
        cmocka_unit_test(test_graph_join_keeps_rest),
        cmocka_unit_test(test_graph_join_hides_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
