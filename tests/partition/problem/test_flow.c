/* Flow between stages: which tensors move, and that every split adds the gradients of a tensor in
 * the one canonical order. */
#include "tests/schedule/fixture.h"

static smp_graph *parse(const char *text)
{
    smp_graph *graph = NULL;
    smp_status status = smp_graph_parse("model.yaml", text, strlen(text), &graph);
    if (status != SMP_OK)
        fail_msg("%s", smp_last_error());
    return graph;
}

/* x feeds b, c and the loss head; file order a b c d e loss. */
static const char fan_out[] = "smp: 1\n"
                              "name: fan\n"
                              "inputs:\n"
                              "  i: {dtype: float32, shape: [4]}\n"
                              "  target: {dtype: float32, shape: [4]}\n"
                              "ops:\n"
                              "  - {op: linear, name: a, in: i, out: x, features: 4}\n"
                              "  - {op: relu, name: b, in: x, out: y}\n"
                              "  - {op: tanh, name: c, in: x, out: z}\n"
                              "  - {op: add, name: d, in: [y, z], out: s}\n"
                              "  - {op: add, name: e, in: [s, x], out: s}\n"
                              "  - {op: mse, name: loss, in: [s, target], out: loss}\n"
                              "loss: loss\n";

static smp_flow *build(const smp_graph *graph, const int32_t *stage, int n_stage)
{
    smp_flow *flow = NULL;
    if (smp_flow_build(graph, stage, n_stage, 2, &flow) != SMP_OK)
        fail_msg("%s", smp_last_error());
    return flow;
}

static int32_t op_named(const smp_graph *graph, const char *name)
{
    int32_t op = smp_graph_find_op(graph, name);
    assert_true(op >= 0);
    return op;
}

static const smp_fold *fold_of(const smp_flow *flow, int32_t tensor, int stage)
{
    for (int32_t f = flow->fold_begin[stage]; f < flow->fold_begin[stage + 1]; f++)
        if (flow->fold[f].tensor == tensor)
            return &flow->fold[f];
    fail_msg("no fold of tensor %d in stage %d", tensor, stage);
    return NULL;
}

static void expect_transfer(const smp_flow *flow, int32_t index, smp_transfer_kind kind,
                            int32_t tensor, int from, int to)
{
    const smp_transfer *t = &flow->transfer[index];
    assert_int_equal(kind, t->kind);
    assert_int_equal(tensor, t->tensor);
    assert_int_equal(from, t->from_stage);
    assert_int_equal(to, t->to_stage);
    assert_int_equal(2 * 4 * 4, t->bytes);
}

/* Consumers of x in reverse order: e (stage 2), c (stage 1), b (stage 0, as a): the sum goes
 * 2 -> 1 -> 0. */
static void test_flow_relay(void **state)
{
    (void)state;
    smp_graph *graph = parse(fan_out);
    smp_flow *flow = build(graph, (int32_t[]){0, 0, 1, 1, 2, 2}, 3);
    int32_t x = graph->op[op_named(graph, "a")].out, y = graph->op[op_named(graph, "b")].out;
    int32_t s = graph->op[op_named(graph, "d")].out;
    assert_int_equal(4 + 4, flow->n_transfer);
    expect_transfer(flow, 0, SMP_TRANSFER_F, x, 0, 1);
    expect_transfer(flow, 1, SMP_TRANSFER_F, y, 0, 1);
    expect_transfer(flow, 2, SMP_TRANSFER_F, x, 0, 2);
    expect_transfer(flow, 3, SMP_TRANSFER_F, s, 1, 2);
    expect_transfer(flow, 4, SMP_TRANSFER_B, x, 1, 0);
    expect_transfer(flow, 5, SMP_TRANSFER_B, y, 1, 0);
    expect_transfer(flow, 6, SMP_TRANSFER_B, x, 2, 1);
    expect_transfer(flow, 7, SMP_TRANSFER_B, s, 2, 1);

    const smp_fold *last = fold_of(flow, x, 2), *middle = fold_of(flow, x, 1);
    const smp_fold *home = fold_of(flow, x, 0);
    assert_int_equal(1, last->source_end - last->source_begin);
    assert_int_equal(op_named(graph, "e"), flow->source[last->source_begin].op);
    assert_int_equal(1, flow->source[last->source_begin].slot);
    assert_int_equal(6, last->transfer_out);
    assert_int_equal(2, middle->source_end - middle->source_begin);
    assert_int_equal(6, flow->source[middle->source_begin].transfer);
    assert_int_equal(op_named(graph, "c"), flow->source[middle->source_begin + 1].op);
    assert_int_equal(4, middle->transfer_out);
    assert_int_equal(2, home->source_end - home->source_begin);
    assert_int_equal(4, flow->source[home->source_begin].transfer);
    assert_int_equal(op_named(graph, "b"), flow->source[home->source_begin + 1].op);
    assert_int_equal(-1, home->transfer_out);
    smp_flow_destroy(flow);
    smp_graph_destroy(graph);
}

/* With b in stage 2 and c in stage 1 the tour e (2), c (1), b (2) rises: contributions go to the
 * producer one by one and are added there in canonical order. */
static void test_flow_loose(void **state)
{
    (void)state;
    smp_graph *graph = parse(fan_out);
    smp_flow *flow = build(graph, (int32_t[]){0, 2, 1, 2, 2, 2}, 3);
    int32_t x = graph->op[op_named(graph, "a")].out;
    const smp_fold *home = fold_of(flow, x, 0);
    const int from[] = {2, 1, 2};
    const char *giver[] = {"e", "c", "b"};
    assert_int_equal(3, home->source_end - home->source_begin);
    for (int i = 0; i < 3; i++) {
        int32_t transfer = flow->source[home->source_begin + i].transfer;
        expect_transfer(flow, transfer, SMP_TRANSFER_B, x, from[i], 0);
        bool found = false;
        for (int32_t f = 0; f < flow->n_fold; f++)
            if (flow->fold[f].transfer_out == transfer) {
                found = true;
                assert_int_equal(1, flow->fold[f].source_end - flow->fold[f].source_begin);
                assert_int_equal(op_named(graph, giver[i]),
                                 flow->source[flow->fold[f].source_begin].op);
            }
        assert_true(found);
    }
    smp_flow_destroy(flow);
    smp_graph_destroy(graph);
}

static void test_flow_ties(void **state)
{
    (void)state;
    static const char text[] =
        "smp: 1\nname: tied\n"
        "inputs: {i: {dtype: float32, shape: [4]}, target: {dtype: float32, shape: [4]}}\n"
        "ops:\n"
        "  - {op: linear, name: a, in: i, out: x, features: 4, bias: false}\n"
        "  - {op: linear, name: b, in: x, out: x, features: 4}\n"
        "  - {op: linear, name: c, in: x, out: x, features: 4, bias: false, weight: a.weight}\n"
        "  - {op: linear, name: d, in: x, out: x, features: 4, bias: false, weight: b.weight}\n"
        "  - {op: mse, name: loss, in: [x, target], out: loss}\n"
        "loss: loss\n";
    smp_graph *graph = parse(text);
    smp_flow *flow = build(graph, (int32_t[]){0, 1, 1, 1, 2}, 3);
    assert_int_equal(1, flow->n_tie); /* b.weight has both uses in stage 1 */
    assert_string_equal("a.weight", graph->param[flow->tie[0].param].name);
    assert_int_equal(2, flow->tie[0].holder_end - flow->tie[0].holder_begin);
    assert_int_equal(0, flow->holder[flow->tie[0].holder_begin]);
    assert_int_equal(1, flow->holder[flow->tie[0].holder_begin + 1]);
    smp_flow_destroy(flow);
    smp_graph_destroy(graph);
}

static void test_flow_refuses_backward_edges(void **state)
{
    (void)state;
    smp_graph *graph = parse(fan_out);
    smp_flow *flow = NULL;
    assert_int_equal(SMP_ERR_INPUT,
                     smp_flow_build(graph, (int32_t[]){0, 1, 0, 0, 1, 1}, 2, 2, &flow));
    assert_non_null(
        strstr(smp_last_error(), "op 'd' in stage 0 reads the output of op 'b' in stage 1"));
    assert_int_equal(SMP_ERR_INPUT,
                     smp_flow_build(graph, (int32_t[]){0, 0, 0, 0, 0, 2}, 2, 2, &flow));
    assert_non_null(strstr(smp_last_error(), "op 'loss': stage 2"));
    assert_int_equal(SMP_ERR_INPUT,
                     smp_flow_build(graph, (int32_t[]){0, 0, -1, 0, 0, 0}, 2, 2, &flow));
    smp_graph_destroy(graph);
}

/* Appends the contributions behind a fold, received partial sums followed to their origin. */
static void expand(const smp_flow *flow, const smp_fold *fold, smp_consumer *list, int *n)
{
    for (int32_t k = fold->source_begin; k < fold->source_end; k++) {
        const smp_fold_source *source = &flow->source[k];
        if (source->transfer < 0) {
            assert_int_equal(fold->stage, flow->stage_of_op[source->op]);
            list[(*n)++] = (smp_consumer){source->op, source->slot};
            continue;
        }
        const smp_transfer *t = &flow->transfer[source->transfer];
        const smp_fold *origin = NULL;
        assert_int_equal(SMP_TRANSFER_B, t->kind);
        assert_int_equal(fold->tensor, t->tensor);
        assert_int_equal(fold->stage, t->to_stage);
        assert_true(t->from_stage > t->to_stage);
        for (int32_t f = flow->fold_begin[t->from_stage]; f < flow->fold_begin[t->from_stage + 1];
             f++)
            if (flow->fold[f].transfer_out == source->transfer) {
                assert_null(origin);
                origin = &flow->fold[f];
            }
        assert_non_null(origin);
        expand(flow, origin, list, n);
    }
}

static void check_folds(const smp_graph *g, const smp_flow *flow)
{
    smp_consumer got[200];
    bool *has_gradient = calloc((size_t)g->n_op, sizeof *has_gradient);
    for (int32_t t = 0; t < g->n_tensor; t++) {
        int n = 0, at = 0;
        for (int32_t f = 0; f < flow->n_fold; f++)
            if (flow->fold[f].tensor == t && flow->fold[f].transfer_out < 0) {
                assert_int_equal(0, n);
                assert_int_equal(flow->stage_of_op[g->tensor[t].producer], flow->fold[f].stage);
                expand(flow, &flow->fold[f], got, &n);
            }
        for (int32_t u = g->n_op - 1; u >= 0; u--)
            for (int32_t i = 0; i < g->op[u].n_in; i++)
                if (g->op[u].in[i] == t && smp_flow_contributes(g, flow->backward, u, i)) {
                    assert_true(at < n);
                    assert_int_equal(u, got[at].op);
                    assert_int_equal(i, got[at].slot);
                    at++;
                }
        assert_int_equal(n, at);
        if (g->tensor[t].producer >= 0)
            has_gradient[g->tensor[t].producer] |= t == g->loss || n > 0;
    }
    /* Who gets a gradient by any output, and can pass it on, takes part, and nobody else. */
    for (int32_t u = 0; u < g->n_op; u++) {
        bool wanted = g->op[u].n_param > 0;
        for (int32_t i = 0; i < g->op[u].n_in; i++)
            wanted |= g->tensor[g->op[u].in[i]].needs_grad;
        assert_int_equal(flow->backward[u], g->training && has_gradient[u] && wanted);
    }
    free(has_gradient);
}

static void check_activations(const smp_graph *g, const smp_flow *flow)
{
    int32_t n = 0;
    for (int32_t t = 0; t < g->n_tensor; t++)
        for (int s = 0; s < flow->n_stage; s++) {
            int32_t producer = g->tensor[t].producer;
            bool wanted = false, found = false;
            for (int64_t c = g->consumer_begin[t]; c < g->consumer_begin[t + 1]; c++)
                wanted |= flow->stage_of_op[g->consumer[c].op] == s;
            wanted = wanted && producer >= 0 && flow->stage_of_op[producer] != s;
            for (int32_t i = flow->in_begin[s]; i < flow->in_begin[s + 1]; i++) {
                const smp_transfer *transfer = &flow->transfer[flow->in_list[i]];
                assert_int_equal(s, transfer->to_stage);
                found |= transfer->kind == SMP_TRANSFER_F && transfer->tensor == t;
            }
            assert_int_equal(wanted, found);
            n += found;
        }
    for (int32_t i = 0; i < flow->n_transfer; i++)
        n -= flow->transfer[i].kind == SMP_TRANSFER_F;
    assert_int_equal(0, n);
}

static void test_flow_random(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 500; seed++) {
        fixture_random random = {seed * 31};
        fixture_graph f;
        int32_t stage[60];
        int n_stage = 1 + (int)fixture_below(&random, 8);
        fixture_graph_make(&f, seed, 1 + (int32_t)fixture_below(&random, 50), seed % 5 != 0,
                           1 + (int)(seed % 3));
        fixture_stages(&f.graph, &random, n_stage, stage);
        smp_flow *flow = build(&f.graph, stage, n_stage);
        check_activations(&f.graph, flow);
        check_folds(&f.graph, flow);
        assert_true(f.graph.training || flow->n_fold == 0);
        smp_flow_destroy(flow);
        fixture_graph_free(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flow_relay),  cmocka_unit_test(test_flow_loose),
        cmocka_unit_test(test_flow_ties),   cmocka_unit_test(test_flow_refuses_backward_edges),
        cmocka_unit_test(test_flow_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
