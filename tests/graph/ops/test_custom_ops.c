/* smp_op_register: what is refused when an operator is registered and when a model uses it, and
 * what its functions are given. */
#include "graph/ops/custom_op.h"
#include "tests/graph/ops/op_harness.h"

static smp_status pass(const smp_custom_call *call)
{
    (void)call;
    return SMP_OK;
}

static smp_custom_op a_good_one(const char *name)
{
    return (smp_custom_op){.abi = SMP_CUSTOM_ABI,
                           .size = sizeof(smp_custom_op),
                           .name = name,
                           .summary = "for this test",
                           .min_inputs = 1,
                           .max_inputs = 2,
                           .forward = pass,
                           .backward_input = pass,
                           .backward_weight = pass};
}

static void assert_message(smp_status status, const char *part)
{
    assert_int_equal(status, SMP_ERR_INPUT);
    if (!strstr(smp_last_error(), part))
        fail_msg("got \"%s\", expected \"%s\"", smp_last_error(), part);
}

static void assert_refused(const smp_custom_op *op, const char *part)
{
    const int before = smp__custom_ops();
    assert_message(smp_op_register(op), part);
    assert_int_equal(smp__custom_ops(), before);
}

static void test_custom_op_that_is_incomplete_is_refused(void **state)
{
    (void)state;
    smp_custom_op op = a_good_one("half");
    assert_refused(NULL, "NULL");
    op.abi = 0;
    assert_refused(&op, "compiled for version 0 of smp_custom_op, expected 1");
    op = a_good_one("half");
    op.size -= 8;
    assert_refused(&op, "expected sizeof(smp_custom_op)");
    static const char *const names[] = {"", "Half", "1half", "half-way", "a b", NULL};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        op = a_good_one(names[i]);
        assert_refused(&op, "expected small letters, digits and _");
    }
    op = a_good_one("a23456789_123456789_123456789_123456789_123456789_123456789_1");
    assert_refused(&op, "at most 60");
    op = a_good_one("softmax");
    assert_refused(&op, "op 'softmax': the name is already that of a built-in operator");
    op = a_good_one("half");
    op.summary = NULL;
    assert_refused(&op, "op 'half': expected a summary and forward");
    op = a_good_one("half");
    op.forward = NULL;
    assert_refused(&op, "expected a summary and forward");
    op = a_good_one("half");
    op.min_inputs = 3;
    assert_refused(&op, "3 to 2 inputs");
    op = a_good_one("half");
    op.max_inputs = SMP_CUSTOM_MAX_INPUTS + 1;
    assert_refused(&op, "1 to 33 inputs, expected from 0 to 32");
    op = a_good_one("half");
    op.outputs = 33;
    assert_refused(&op, "33 outputs");
    op.outputs = 2;
    op.loss = 1;
    assert_refused(&op, "2 outputs, expected at most 1");
}

static void test_custom_op_with_bad_attributes_is_refused(void **state)
{
    (void)state;
    static const struct {
        smp_custom_attr attr[2];
        const char *message;
    } cases[] = {
        {{{"Rate", SMP_CUSTOM_INT, 0, 0, 0, 1}}, "an attribute is named 'Rate'"},
        {{{"cost", SMP_CUSTOM_INT, 0, 0, 0, 1}}, "no key of every op"},
        {{{"a", SMP_CUSTOM_INT, 0, 0, 0, 1}, {"a", SMP_CUSTOM_INT, 0, 0, 0, 1}}, "named 'a'"},
        {{{"a", (smp_custom_type)3, 0, 0, 0, 1}}, "type 3"},
        {{{"a", SMP_CUSTOM_INT, 0, 2, 0, 1}}, "attribute 'a': default 2 in 0 to 1"},
        {{{"a", SMP_CUSTOM_INT, 0, 0.5, 0, 1}}, "default 0.5"},
        {{{"a", SMP_CUSTOM_FLOAT, 1, 0, 2, 1}}, "in 2 to 1"},
        {{{"a", SMP_CUSTOM_FLOAT, 0, NAN, 0, 1}}, "default nan"},
        {{{"a", SMP_CUSTOM_BOOL, 0, 2, 0, 0}}, "default 2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        smp_custom_attr attrs[3] = {cases[i].attr[0], cases[i].attr[1], {0}};
        smp_custom_op op = a_good_one("half");
        op.attrs = attrs;
        assert_refused(&op, cases[i].message);
    }
    smp_custom_attr many[SMP_CUSTOM_MAX_ATTRS + 2] = {{0}};
    char name[SMP_CUSTOM_MAX_ATTRS + 1][16];
    for (int i = 0; i <= SMP_CUSTOM_MAX_ATTRS; i++) {
        snprintf(name[i], sizeof name[i], "a%d", i);
        many[i] = (smp_custom_attr){name[i], SMP_CUSTOM_BOOL, 0, 0, 0, 0};
    }
    smp_custom_op op = a_good_one("half");
    op.attrs = many;
    assert_refused(&op, "more than 32 attributes");
}

/* A struct of a later smp.h is taken as long as it uses nothing that is not known here. */
static void test_custom_op_may_be_of_a_later_header(void **state)
{
    (void)state;
    struct {
        smp_custom_op op;
        void *more;
    } later = {.op = a_good_one("later"), .more = &later};
    later.op.size = sizeof later;
    assert_refused(&later.op,
                   "op 'later': it uses more of smp_custom_op than smp " SMP_VERSION_STRING);
    later.more = NULL;
    assert_int_equal(smp_op_register(&later.op), SMP_OK);
    assert_refused(&later.op, "op 'later': the name is already that of a registered operator");
    smp__custom_ops_keep(smp__custom_ops() - 1);
}

static void test_custom_ops_have_a_limit(void **state)
{
    (void)state;
    static char name[SMP_CUSTOM_MAX_OPS + 1][24];
    const int before = smp__custom_ops();
    for (int i = 0; i <= SMP_CUSTOM_MAX_OPS; i++) {
        snprintf(name[i], sizeof name[i], "many_%d", i);
        smp_custom_op op = a_good_one(name[i]);
        if (smp__custom_ops() == SMP_CUSTOM_MAX_OPS)
            assert_refused(&op, "128 operators are registered already");
        else
            assert_int_equal(smp_op_register(&op), SMP_OK);
    }
    assert_int_equal(smp__custom_ops(), SMP_CUSTOM_MAX_OPS);
    assert_non_null(smp_op_kind_find("many_0"));
    smp__custom_ops_keep(before);
    assert_null(smp_op_kind_find("many_0"));
    assert_non_null(smp_op_kind_find("linear"));
}

/* What `describe` says: one wrong thing for each number. */
static smp_status describe_badly(smp_custom_node *node)
{
    node->n_weight = 1;
    node->weight[0] = (smp_custom_weight){.name = "w", .n_dim = 1, .dim = {3}};
    switch (node->attr[0].i) {
    case 0:
        return smp_op_fail(node, "%d is no good", 0);
    case 1:
        return SMP_ERR_FAILED;
    case 2:
        node->out[0].n_dim = 7;
        break;
    case 3:
        node->out[0].dim[0] = 0;
        break;
    case 4:
        node->out[0].is_int = 1;
        break;
    case 5:
        node->n_weight = 9;
        break;
    case 6:
        node->weight[0].name = NULL;
        break;
    case 7:
        node->n_weight = 2;
        node->weight[1] = node->weight[0];
        break;
    case 8:
        node->weight[0].dim[0] = -1;
        break;
    case 9:
        node->weight[0].init_scale = NAN;
        break;
    case 10:
        node->weight[0].init = (smp_custom_init)4;
        break;
    case 11:
        node->input_grad_in = 2;
        break;
    case 12:
        node->input_grad_out = 2;
        break;
    case 13:
        node->aux_bytes = -1;
        break;
    case 14:
        node->workspace_sample_bytes = INT64_MAX;
        break;
    default:
        node->forward_flops = NAN;
    }
    return SMP_OK;
}

static smp_status read_model(const char *op, smp_graph **graph)
{
    char text[512];
    snprintf(text, sizeof text,
             "smp: 1\nname: m\ninputs:\n  x: {dtype: float32, shape: [4]}\n"
             "  i: {dtype: int32, shape: [4]}\nops:\n  - {op: %s, name: mine, out: y}\n",
             op);
    return smp_graph_parse("m.yaml", text, strlen(text), graph);
}

static void test_custom_op_that_says_wrong_things_is_refused(void **state)
{
    (void)state;
    static const char *const messages[] = {
        "m.yaml:7:5: op 'mine' (odd): 0 is no good",
        "m.yaml:7:5: op 'mine' (odd): describe returned 1, and not by smp_op_fail",
        "output 0 has 7 dimensions",
        "output 0 has shape [0], expected 1 to 2^40 elements",
        "output 0: expected float",
        "9 weights, expected at most 8",
        "weight 0 is named ''",
        "weight 1 is named 'w', expected a name of its own",
        "weight 'w' has shape [-1]",
        "weight 'w': init 0 with scale nan",
        "weight 'w': init 4",
        "backward reads inputs 0x2 and 0x1 and outputs 0",
        "outputs 0x2, but there are 1 and 1",
        "aux -1",
        "9223372036854775807 a sample",
        "nan, 0 and 0 flops",
    };
    static const smp_custom_attr attrs[] = {{"wrong", SMP_CUSTOM_INT, 1, 0, 0, 100}, {0}};
    smp_custom_op op = a_good_one("odd");
    op.attrs = attrs;
    op.describe = describe_badly;
    assert_int_equal(smp_op_register(&op), SMP_OK);
    smp_graph *graph = NULL;
    for (int i = 0; i < (int)(sizeof messages / sizeof messages[0]); i++) {
        char text[64];
        snprintf(text, sizeof text, "odd, in: x, wrong: %d", i);
        assert_message(read_model(text, &graph), messages[i]);
    }
    assert_message(read_model("odd, in: x", &graph), "wrong");
    assert_message(read_model("odd, in: [x, x, x], wrong: 0", &graph),
                   "got 3 inputs, expected 1 to 2");
    smp__custom_ops_keep(0);
    op.backward_weight = NULL;
    assert_int_equal(smp_op_register(&op), SMP_OK);
    assert_message(read_model("odd, in: x, wrong: 11", &graph), "no backward_weight");
    smp__custom_ops_keep(0);
    op.backward_input = NULL;
    assert_int_equal(smp_op_register(&op), SMP_OK);
    assert_message(read_model("odd, in: [i, x], wrong: 0", &graph),
                   "input 1 is float, and the operator has no backward_input");
    smp__custom_ops_keep(0);
    op = a_good_one("pair");
    op.outputs = 2;
    assert_int_equal(smp_op_register(&op), SMP_OK);
    assert_message(read_model("pair, in: x", &graph), "got 1 outputs, expected 2");
    smp__custom_ops_keep(0);
}

/* y = x * w[i], z = aux = x + i, where w has a row for each value of i. */
static const smp_custom_attr PICK_ATTRS[] = {{"rows", SMP_CUSTOM_INT, 1, 0, 1, 100},
                                             {"tenth", SMP_CUSTOM_FLOAT, 0, 0.5, 0, 1},
                                             {"on", SMP_CUSTOM_BOOL, 0, 1, 0, 0},
                                             {0}};

static smp_status pick_describe(smp_custom_node *node)
{
    node->n_weight = 1;
    node->weight[0] = (smp_custom_weight){.name = "w",
                                          .n_dim = 2,
                                          .dim = {node->attr[0].i, 1},
                                          .init = SMP_CUSTOM_UNIFORM,
                                          .init_scale = 0.25f};
    node->forward_flops = 2.0 * (double)node->in[0].elements;
    node->backward_weight_flops = 3;
    node->input_grad_in = 2;
    node->input_grad_out = 1;
    node->aux_bytes = 4 * node->in[0].elements;
    node->workspace_bytes = 100;
    node->workspace_sample_bytes = 20;
    return SMP_OK;
}

static smp_custom_call seen; /* of the last call; its arrays are gone */

static smp_status pick_forward(const smp_custom_call *call)
{
    seen = *call;
    for (int64_t k = 0; k < call->batch * call->node->in[0].elements; k++) {
        const float x = ((const float *)call->in[0])[k];
        const int32_t i = ((const int32_t *)call->in[1])[k];
        if (i < 0 || i >= call->node->attr[0].i)
            return smp_op_fail(call->node, "index %d of %d rows", i, (int)call->node->attr[0].i);
        call->out[0][k] = x * call->weight[0][i];
        ((float *)call->aux)[k] = call->out[1][k] = x + (float)i;
    }
    return SMP_OK;
}

static smp_status pick_backward_input(const smp_custom_call *call)
{
    seen = *call;
    assert_true(!call->in[0] && call->in[1] && call->out[0] && !call->out[1] && call->aux);
    assert_true(call->in_grad[0] && !call->in_grad[1] && call->out_grad[0] && call->out_grad[1]);
    return SMP_OK;
}

static smp_status pick_backward_weight(const smp_custom_call *call)
{
    seen = *call;
    assert_true(call->in[0] && call->in[1] && !call->out[0] && !call->out[1] && call->aux);
    assert_true(call->weight_grad[0] && call->out_grad[0] && call->workspace);
    return SMP_OK;
}

static void open_pick(op_run *run)
{
    op_run_open(run,
                "smp: 1\nname: m\ninputs:\n  x: {dtype: float32, shape: [4]}\n"
                "  i: {dtype: int32, shape: [4]}\nops:\n"
                "  - {op: pick, name: a, in: [x, i], out: [u, v], rows: 3, on: false}\n"
                "  - {op: pick, name: b, in: [u, i], out: [y, z], rows: 2 * 5, tenth: 0.1}\n",
                "b", 3, 0);
    for (int k = 0; k < 12; k++) {
        ((float *)run->in[0].data)[k] = (float)k;
        ((int32_t *)run->in[1].data)[k] = k % 10;
    }
    for (int k = 0; k < 10; k++)
        ((float *)run->param[0].data)[k] = (float)(2 * k);
}

static void check_pick_is_described(const op_run *run)
{
    smp_op_work work;
    const smp_param *w = &run->graph->param[run->op->param[0]];
    assert_string_equal(w->name, "b.w");
    assert_int_equal(w->shape.dim[0], 10);
    assert_int_equal(w->init, SMP_INIT_UNIFORM);
    assert_float_equal(w->init_scale, 0.25f, 0);
    assert_true(w->decay);
    assert_int_equal(run->needs.input_grad_in, 2);
    assert_int_equal(run->needs.input_grad_out, 1);
    assert_int_equal(run->needs.weight_grad_in, 3);
    assert_true(run->needs.input_grad_aux && run->needs.weight_grad_aux);
    assert_int_equal(run->needs.aux_bytes, 16);
    assert_int_equal(run->needs.workspace_bytes, 160);
    smp_op_work_get(run->graph, run->op, 3, &work);
    assert_true(work.forward_flops == 24 && work.backward_weight_flops == 9);
    assert_true(work.forward_bytes == 3 * 4 * (4 + 4 + 4 + 4 + 4) + 40);
}

static void test_custom_op_is_given_what_it_asks_for(void **state)
{
    (void)state;
    op_run run;
    smp_custom_op op = a_good_one("pick");
    op.min_inputs = op.max_inputs = op.outputs = 2;
    op.attrs = PICK_ATTRS;
    op.describe = pick_describe;
    op.forward = pick_forward;
    op.backward_input = pick_backward_input;
    op.backward_weight = pick_backward_weight;
    assert_int_equal(smp_op_register(&op), SMP_OK);
    open_pick(&run);
    check_pick_is_described(&run);
    assert_int_equal(op_run_forward(&run), SMP_OK);
    assert_true(seen.batch == 3 && seen.training && seen.padding == 0);
    assert_true(seen.node->attr[0].i == 10 && seen.node->attr[1].f == 0.1 &&
                seen.node->attr[2].i == 1);
    assert_true(!seen.node->in[0].is_int && seen.node->in[1].is_int &&
                seen.node->in[1].elements == 4);
    assert_true(seen.node->out[1].n_dim == 1 && seen.node->out[1].dim[0] == 4);
    assert_float_equal(((float *)run.outs[0].data)[5], 50, 0);
    assert_float_equal(((float *)run.outs[1].data)[5], 10, 0);
    const uint64_t random = seen.random;
    op_run_backward_input(&run, ~0u);
    assert_true(seen.in_grad && seen.random == random);
    op_run_backward_weight(&run);
    assert_true(seen.weight_grad && seen.random == random);
    run.step.turn = smp_op_turn(2, 0);
    assert_int_equal(op_run_forward(&run), SMP_OK);
    assert_true(seen.random != random);
    ((int32_t *)run.in[1].data)[7] = 10;
    assert_message(op_run_forward(&run), "model.yaml:8:5: op 'b' (pick): index 10 of 10 rows");
    op_run_close(&run);
    smp__custom_ops_keep(0);
}

/* Of what has no backward functions nothing is kept for them, and its output is float even so. */
static smp_status aux_describe(smp_custom_node *node)
{
    node->aux_bytes = 8;
    return SMP_OK;
}

static void test_custom_op_without_gradients_keeps_nothing(void **state)
{
    (void)state;
    smp_graph *graph = NULL;
    smp_op_needs needs;
    smp_custom_op op = a_good_one("lookup");
    op.backward_input = op.backward_weight = NULL;
    op.describe = aux_describe;
    assert_int_equal(smp_op_register(&op), SMP_OK);
    assert_int_equal(read_model("lookup, in: [i, i]", &graph), SMP_OK);
    assert_int_equal(graph->tensor[graph->op[0].out].dtype, SMP_F32);
    assert_int_equal(graph->tensor[graph->op[0].out].elements, 4);
    assert_false(smp_op_kind_passes_gradients(graph->op[0].kind));
    smp_op_needs_get(graph, &graph->op[0], 2, &needs);
    assert_int_equal(needs.input_grad_in | needs.weight_grad_in | needs.input_grad_out, 0);
    assert_false(needs.input_grad_aux || needs.weight_grad_aux);
    assert_int_equal(needs.aux_bytes, 8);
    smp_graph_destroy(graph);
    smp__custom_ops_keep(0);
}

/* A loss has one value for a micro-batch; a function that fails by itself is reported. */
static smp_status sum_forward(const smp_custom_call *call)
{
    float sum = 0;
    for (int64_t k = 0; k < (call->batch - call->padding) * call->node->in[0].elements; k++)
        sum += ((const float *)call->in[0])[k];
    call->out[0][0] = sum / (float)(call->batch - call->padding);
    return sum == 0 ? SMP_ERR_PEER : SMP_OK;
}

static void test_custom_op_can_be_a_loss(void **state)
{
    (void)state;
    op_run run;
    smp_custom_op op = a_good_one("total");
    op.loss = 1;
    op.forward = sum_forward;
    assert_int_equal(smp_op_register(&op), SMP_OK);
    op_run_open(&run,
                "smp: 1\nname: m\ninputs:\n  x: {dtype: float32, shape: [4]}\nops:\n"
                "  - {op: total, name: t, in: x, out: y}\nloss: y\nmode: inference\n",
                "t", 3, 0);
    assert_false(run.graph->tensor[run.op->out].batched);
    for (int k = 0; k < 12; k++)
        ((float *)run.in[0].data)[k] = 1;
    assert_int_equal(op_run_forward(&run), SMP_OK);
    assert_float_equal(((float *)run.out.data)[0], 4, 0);
    memset(run.in[0].data, 0, 48);
    assert_int_equal(op_run_forward(&run), SMP_ERR_INPUT);
    assert_message(SMP_ERR_INPUT, "op 't' (total): forward returned 3, and not by smp_op_fail");
    op_run_close(&run);
    smp__custom_ops_keep(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_custom_op_that_is_incomplete_is_refused),
        cmocka_unit_test(test_custom_op_with_bad_attributes_is_refused),
        cmocka_unit_test(test_custom_op_may_be_of_a_later_header),
        cmocka_unit_test(test_custom_ops_have_a_limit),
        cmocka_unit_test(test_custom_op_that_says_wrong_things_is_refused),
        cmocka_unit_test(test_custom_op_is_given_what_it_asks_for),
        cmocka_unit_test(test_custom_op_without_gradients_keeps_nothing),
        cmocka_unit_test(test_custom_op_can_be_a_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
