/* graph/model/graph.h: what a model becomes: tensors, weights and their uses, consumers, gradients,
 * the fingerprint, sizes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/graph/model/model_text.h"

static const smp_op *op_named(const smp_graph *g, const char *name)
{
    int32_t i = smp_graph_find_op(g, name);
    if (i < 0)
        fail_msg("no op '%s'", name);
    return &g->op[i];
}

static void test_graph_counts_and_order(void **state)
{
    (void)state;
    smp_graph *g = read_model(gpt_text);
    assert_string_equal(g->name, "gpt");
    assert_string_equal(g->path, "m.yaml");
    assert_true(g->training);
    assert_int_equal(g->n_input, 2);
    assert_int_equal(g->n_op, 2 + 2 * 5 + 2);
    assert_int_equal(g->n_tensor, g->n_input + g->n_op);
    for (int32_t o = 0; o < g->n_op; o++) {
        const smp_op *op = &g->op[o];
        assert_int_equal(g->tensor[op->out].producer, o);
        assert_int_equal(smp_graph_find_op(g, op->name), o);
        assert_int_equal(op->pin, -1);
        assert_int_equal(op->group, -1);
        assert_null(op->cost);
        for (int32_t i = 0; i < op->n_in; i++)
            assert_true(g->tensor[op->in[i]].producer < o);
    }
    assert_string_equal(g->op[2].name, "h0.ln");
    assert_string_equal(g->op[7].name, "h1.ln");
    assert_int_equal(smp_graph_find_op(g, "h2.ln"), -1);
    assert_int_equal(smp_graph_find_param(g, "h2.ln"), -1);
    assert_string_equal(g->tensor[g->loss].name, "loss");
    assert_false(g->tensor[g->loss].batched);
    smp_where where = smp_op_where(g, op_named(g, "h1.qkv"));
    assert_string_equal(where.file, "m.yaml");
    assert_int_equal(where.line, 14);
    assert_int_equal(where.column, 9);
    assert_int_equal(smp_graph_check_runnable(g), SMP_OK);
    smp_graph_destroy(g);
    smp_graph_destroy(NULL);
}

static void test_graph_rebinding_connects_to_the_latest(void **state)
{
    (void)state;
    smp_graph *g = read_model(gpt_text);
    /* x of the second block is what the first block's residual made. */
    assert_int_equal(op_named(g, "h1.ln")->in[0], op_named(g, "h0.res")->out);
    assert_int_equal(op_named(g, "h0.ln")->in[0], op_named(g, "wpe")->out);
    const smp_op *res = op_named(g, "h1.res");
    assert_int_equal(res->in[0], op_named(g, "h0.res")->out);
    assert_int_equal(res->in[1], op_named(g, "h1.proj")->out);
    assert_string_equal(g->tensor[res->out].name, "x");
    smp_graph_destroy(g);
}

static void test_graph_shapes_follow_let(void **state)
{
    (void)state;
    smp_graph *g = read_model(gpt_text);
    const smp_tensor *qkv = &g->tensor[op_named(g, "h0.qkv")->out];
    assert_int_equal(qkv->shape.n_dim, 2);
    assert_int_equal(qkv->shape.dim[0], 8);
    assert_int_equal(qkv->shape.dim[1], 48);
    assert_int_equal(qkv->elements, 384);
    assert_int_equal(g->tensor[op_named(g, "lm_head")->out].shape.dim[1], 36);
    smp_graph_destroy(g);
}

static void test_graph_tied_weight_has_two_uses(void **state)
{
    (void)state;
    smp_graph *g = read_model(gpt_text);
    const smp_op *wte = op_named(g, "wte");
    const smp_op *head = op_named(g, "lm_head");
    int32_t p = smp_graph_find_param(g, "wte.weight");
    assert_true(p >= 0);
    assert_int_equal(smp_graph_find_param(g, "lm_head.weight"), -1);
    assert_int_equal(wte->param[0], p);
    assert_int_equal(head->param[0], p);
    const smp_param *param = &g->param[p];
    assert_int_equal(param->elements, 36 * 16);
    assert_true(param->decay);
    assert_int_equal(param->use_end - param->use_begin, 2);
    assert_int_equal(g->use[param->use_begin].op, wte - g->op);
    assert_int_equal(g->use[param->use_begin + 1].op, head - g->op);
    assert_false(g->param[smp_graph_find_param(g, "h0.ln.bias")].decay);
    smp_graph_destroy(g);
}

static int32_t param_of(const smp_graph *g, const char *op, int slot)
{
    return op_named(g, op)->param[slot];
}

/* By `tie:` any weight of any kind: a table of a table, a bias of a bias, two of one; a tie of what
 * is tied itself; and all turns of a repeat, the first of which makes what it names. */
static void test_graph_ties_any_weights(void **state)
{
    (void)state;
    smp_graph *g =
        read_model("smp: 1\n"
                   "inputs: {i: {dtype: int32, shape: [8]}}\n"
                   "ops:\n"
                   "  - {op: embedding, name: a, in: i, out: x, rows: 8, features: 8}\n"
                   "  - {op: embedding, name: b, in: i, out: y, rows: 8, features: 8,\n"
                   "     tie: {weight: a.weight}}\n"
                   "  - {op: position_embedding, name: p, in: y, out: y, tie: {weight: b.weight}}\n"
                   "  - repeat: 3\n"
                   "    as: k\n"
                   "    ops:\n"
                   "      - {op: linear, name: 'h{k}', in: x, out: x, features: 8,\n"
                   "         weight: h0.weight, tie: {bias: h0.bias}}\n"
                   "      - {op: layernorm, name: 'n{k}', in: x, out: x,\n"
                   "         tie: {weight: 'n{k / 2}.weight'}}\n"
                   "  - {op: layernorm, name: last, in: x, out: x,\n"
                   "     tie: {weight: h0.bias, bias: h1.bias}}\n");
    int32_t table = param_of(g, "a", 0);
    assert_int_equal(param_of(g, "b", 0), table);
    assert_int_equal(param_of(g, "p", 0), table);
    assert_int_equal(g->param[table].use_end - g->param[table].use_begin, 3);
    assert_string_equal(g->param[table].name, "a.weight");
    assert_int_equal(smp_graph_find_param(g, "h0.weight"), param_of(g, "h2", 0));
    assert_int_equal(param_of(g, "h0", 1), param_of(g, "h2", 1));
    assert_int_equal(param_of(g, "n0", 0), param_of(g, "n1", 0)); /* 1 / 2 is 0 */
    assert_int_equal(param_of(g, "n2", 0), param_of(g, "n1", 0));
    assert_int_not_equal(param_of(g, "n2", 1), param_of(g, "n1", 1));
    assert_int_equal(param_of(g, "last", 0), param_of(g, "h0", 1));
    assert_int_equal(param_of(g, "last", 1), param_of(g, "h0", 1));
    /* a.weight; h0.weight, h0.bias; n0.weight, three biases */
    assert_int_equal(g->n_param, 7);
    smp_graph_destroy(g);
}

/* Uses and consumers are two views of op->param and op->in. */
static void test_graph_indexes_are_complete(void **state)
{
    (void)state;
    smp_graph *g = read_model(gpt_text);
    int32_t uses = 0;
    int64_t connections = 0;
    for (int32_t p = 0; p < g->n_param; p++) {
        assert_int_equal(g->param[p].use_begin, uses);
        for (int32_t u = g->param[p].use_begin; u < g->param[p].use_end; u++) {
            const smp_use *use = &g->use[u];
            assert_int_equal(use->param, p);
            assert_int_equal(g->op[use->op].param[use->slot], p);
            assert_int_equal(g->op[use->op].use[use->slot], u);
            assert_true(u == g->param[p].use_begin || use->op > use[-1].op);
        }
        uses = g->param[p].use_end;
    }
    assert_int_equal(uses, g->n_use);
    for (int32_t t = 0; t < g->n_tensor; t++) {
        for (int64_t c = g->consumer_begin[t]; c < g->consumer_begin[t + 1]; c++) {
            const smp_consumer *consumer = &g->consumer[c];
            assert_int_equal(g->op[consumer->op].in[consumer->slot], t);
            assert_true(c == g->consumer_begin[t] || consumer->op > consumer[-1].op ||
                        (consumer->op == consumer[-1].op && consumer->slot > consumer[-1].slot));
        }
    }
    for (int32_t o = 0; o < g->n_op; o++)
        connections += g->op[o].n_in;
    assert_int_equal(g->consumer_begin[0], 0);
    assert_int_equal(g->consumer_begin[g->n_tensor], connections);
    smp_graph_destroy(g);
}

static const char gradient_text[] =
    "smp: 1\n"
    "%s"
    "inputs: {a: {dtype: float32, shape: [4]}, t: {dtype: float32, shape: [4]}}\n"
    "ops:\n"
    "  - {op: relu, name: pre, in: a, out: pre}\n"
    "  - {op: linear, name: fc, in: pre, out: y, features: 4}\n"
    "  - {op: gelu, name: act, in: y, out: z}\n"
    "  - {op: linear, name: side, in: y, out: side, features: 2}\n"
    "  - {op: opaque, name: hidden, in: a, out: hidden, shape: [4]}\n"
    "  - {op: add, name: sum, in: [z, hidden], out: z}\n"
    "  - {op: mse, name: loss, in: [z, t], out: loss}\n"
    "%s";

static bool grad_of(const smp_graph *g, const char *op)
{
    return g->tensor[op_named(g, op)->out].needs_grad;
}

static void test_graph_needs_grad(void **state)
{
    char text[2048];
    (void)state;
    snprintf(text, sizeof text, gradient_text, "", "loss: loss\n");
    smp_graph *g = read_model(text);
    assert_false(g->tensor[0].needs_grad);
    assert_false(grad_of(g, "pre"));   /* no weight upstream */
    assert_true(grad_of(g, "fc"));     /* its own weight */
    assert_true(grad_of(g, "act"));    /* a weight upstream */
    assert_false(grad_of(g, "side"));  /* does not reach the loss */
    assert_true(grad_of(g, "hidden")); /* opaque: may hold weights */
    assert_true(grad_of(g, "loss"));
    smp_graph_destroy(g);

    snprintf(text, sizeof text, gradient_text, "", "");
    g = read_model(text); /* no loss: everything with weights upstream */
    assert_false(grad_of(g, "pre"));
    assert_true(grad_of(g, "side"));
    assert_int_equal(g->loss, -1);
    smp_graph_destroy(g);

    snprintf(text, sizeof text, gradient_text, "mode: inference\n", "loss: loss\n");
    g = read_model(text);
    assert_false(g->training);
    for (int32_t t = 0; t < g->n_tensor; t++)
        assert_false(g->tensor[t].needs_grad);
    smp_graph_destroy(g);
}

/* Side by side; each with a shape, readers and a gradient, or none, of its own. */
static void test_graph_several_outputs(void **state)
{
    static const char text[] =
        "smp: 1\n"
        "inputs: {a: {dtype: float32, shape: [6]}, t: {dtype: float32, shape: [5]}}\n"
        "ops:\n"
        "  - {op: linear, name: fc, in: a, out: y, features: 6}\n"
        "  - {op: split, name: parts, in: y, out: [p, y, r], sizes: [1, 2, 3]}\n"
        "  - {op: linear, name: side, in: p, out: side, features: 2}\n"
        "  - {op: concat, name: join, in: [r, y], out: z}\n"
        "  - {op: mse, name: loss, in: [z, t], out: loss}\n"
        "loss: loss\n";
    static const char *const names[] = {"p", "y", "r"};
    (void)state;
    smp_graph *g = read_model(text);
    const smp_op *parts = op_named(g, "parts"), *join = op_named(g, "join");
    assert_int_equal(parts->n_out, 3);
    assert_int_equal(parts->out, op_named(g, "fc")->out + 1);
    assert_int_equal(op_named(g, "side")->out, parts->out + 3);
    for (int k = 0; k < 3; k++) {
        const smp_tensor *out = &g->tensor[parts->out + k];
        assert_string_equal(out->name, names[k]);
        assert_int_equal(out->elements, k + 1);
        assert_int_equal(out->producer, parts - g->op);
        assert_int_equal(out->needs_grad, k > 0); /* `side` does not reach the loss */
    }
    assert_int_equal(join->in[0], parts->out + 2);
    assert_int_equal(join->in[1], parts->out + 1);
    assert_true(grad_of(g, "fc") && smp_op_has_gradient(g, parts));
    assert_false(smp_op_has_gradient(g, op_named(g, "side")));
    smp_graph_destroy(g);
}

static void test_graph_runnable(void **state)
{
    char text[2048];
    (void)state;
    snprintf(text, sizeof text, gradient_text, "", "loss: loss\n");
    smp_graph *g = read_model(text);
    assert_int_equal(smp_graph_check_runnable(g), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "m.yaml:8:5: op 'hidden' (opaque)"));
    smp_graph_destroy(g);
    static const char no_loss[] = "smp: 1\n%s"
                                  "inputs: {a: {dtype: float32, shape: [4]}}\n"
                                  "ops: [{op: relu, name: r, in: a, out: y}]\n";
    snprintf(text, sizeof text, no_loss, "");
    g = read_model(text);
    assert_int_equal(smp_graph_check_runnable(g), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "'loss'"));
    smp_graph_destroy(g);
    snprintf(text, sizeof text, no_loss, "mode: inference\n");
    g = read_model(text);
    assert_int_equal(smp_graph_check_runnable(g), SMP_OK);
    smp_graph_destroy(g);
}

static void test_graph_tensor_bytes(void **state)
{
    static const char text[] =
        "smp: 1\n"
        "inputs: {a: {dtype: float32, shape: [3, 5]}, s: {dtype: int32, shape: []}}\n"
        "ops:\n"
        "  - {op: opaque, name: o1, in: a, out: o1, cost: {output_bytes: 777}}\n"
        "  - {op: opaque, name: o2, in: a, out: o2}\n"
        "  - {op: opaque, name: o3, in: a, out: o3, shape: [2]}\n"
        "  - {op: mse, name: loss, in: [a, a], out: loss}\n";
    (void)state;
    smp_graph *g = read_model(text);
    assert_int_equal(smp_tensor_bytes(g, 0, 2), 3 * 5 * 4 * 2);
    assert_int_equal(smp_tensor_bytes(g, 1, 7), 4 * 7);
    assert_int_equal(smp_tensor_bytes(g, op_named(g, "o1")->out, 2), 777);
    assert_int_equal(smp_tensor_bytes(g, op_named(g, "o2")->out, 2), 0);
    assert_int_equal(smp_tensor_bytes(g, op_named(g, "o3")->out, 2), 2 * 4 * 2);
    assert_int_equal(smp_tensor_bytes(g, op_named(g, "loss")->out, 9), 4);
    assert_int_equal(smp_tensor_bytes(g, 0, INT64_MAX / 2), INT64_MAX);
    smp_graph_destroy(g);
}

static uint64_t fingerprint(const char *text)
{
    smp_graph *g = read_model(text);
    uint64_t f = g->fingerprint;
    smp_graph_destroy(g);
    return f;
}

/* `text` with the first `from` replaced. */
static const char *replaced(const char *text, const char *from, const char *to)
{
    static char buffer[4096];
    const char *at = strstr(text, from);
    if (!at)
        fail_msg("no '%s'", from);
    snprintf(buffer, sizeof buffer, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return buffer;
}

static void test_graph_fingerprint(void **state)
{
    static const char *const same[][2] = {
        {"name: gpt", "name: other"},
        {"d: 4 * 4", "d: 16"},
        {"causal: true}", "causal: yes, stage: 1}"},
        {"out: x, rows: vocab", "out: x, group: g, cost: {forward_us: 9}, rows: vocab"},
        {"heads: heads,", "heads: 2,"},
        {"ops:\n", "# a comment\nops:\n"},
        {"name: wpe, in: x, out: x}\n  - repeat: layers\n    as: i",
         "name: wpe, in: x, out: x}\n  - repeat: 2\n    as: i"},
        {"features: vocab, bias: false", "bias: false, features: vocab"},
        {"weight: wte.weight", "tie: {weight: wte.weight}"},
    };
    static const char *const differs[][2] = {
        {"layers: 2", "layers: 3"},
        {"d: 4 * 4", "d: 18"},
        {"causal: true", "causal: false"},
        {"heads: 2", "heads: 4"},
        {"tokens: {dtype: int32, shape: [T]}", "tokens: {dtype: int32, shape: [T]}\n"
                                               "  more: {dtype: int32, shape: [T]}"},
        {"name: \"h{i}.res\", in: [x, a]", "name: \"h{i}.res\", in: [a, x]"},
        {"name: \"h{i}.res\"", "name: \"h{i}.sum\""},
        {",\n     weight: wte.weight", ""},
        {"loss: loss\n", ""},
        {", tie: {bias: h0.ln.bias}", ""},
        {"op: layernorm, name: \"h{i}.ln\", in: x, out: a, tie: {bias: h0.ln.bias}}",
         "op: gelu, name: \"h{i}.ln\", in: x, out: a}"},
        {"name: gpt", "mode: inference"},
        {"rows: vocab,", "init_std: 0.5, rows: vocab,"},
    };
    (void)state;
    uint64_t base = fingerprint(gpt_text);
    assert_int_equal(fingerprint(gpt_text), base);
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        const char *text = replaced(gpt_text, same[i][0], same[i][1]);
        if (fingerprint(text) != base)
            fail_msg("'%s' changed the fingerprint", same[i][1]);
    }
    uint64_t seen[sizeof differs / sizeof differs[0]];
    for (size_t i = 0; i < sizeof differs / sizeof differs[0]; i++) {
        seen[i] = fingerprint(replaced(gpt_text, differs[i][0], differs[i][1]));
        for (size_t k = 0; k <= i; k++) {
            if (seen[i] == (k == i ? base : seen[k]))
                fail_msg("'%s' did not change the fingerprint", differs[i][1]);
        }
    }
}

/* A model and its twin in the other mode have the same weights; other models have not. */
static void test_graph_weights_fingerprint(void **state)
{
    (void)state;
    smp_graph *trained = read_model(gpt_text);
    smp_graph *twin = read_model(replaced(gpt_text, "name: gpt", "mode: inference"));
    smp_graph *other = read_model(replaced(gpt_text, "layers: 2", "layers: 3"));
    assert_int_equal(trained->weights_fingerprint, trained->fingerprint);
    assert_int_equal(twin->weights_fingerprint, trained->fingerprint);
    assert_int_not_equal(twin->fingerprint, trained->fingerprint);
    assert_int_not_equal(other->weights_fingerprint, trained->fingerprint);
    smp_graph_destroy(trained);
    smp_graph_destroy(twin);
    smp_graph_destroy(other);
}

static void test_graph_shape_helpers(void **state)
{
    char text[64];
    (void)state;
    smp_shape a = {3, {2, 3, 4}};
    smp_shape b = {3, {2, 3, 5}};
    smp_shape c = {2, {2, 3}};
    assert_true(smp_shape_equal(&a, &a));
    assert_false(smp_shape_equal(&a, &b) || smp_shape_equal(&a, &c));
    assert_string_equal(smp_shape_format(text, sizeof text, &a), "[2, 3, 4]");
    assert_string_equal(smp_shape_format(text, sizeof text, &(smp_shape){0}), "[]");
    assert_int_equal(strlen(smp_shape_format(text, 5, &a)), 4);
    assert_int_equal(smp_shape_elements(&a), 24);
    assert_int_equal(smp_shape_elements(&(smp_shape){0}), 1);
    assert_int_equal(smp_shape_elements(&(smp_shape){2, {(int64_t)1 << 20, (int64_t)1 << 20}}),
                     (int64_t)1 << 40);
    assert_int_equal(smp_shape_elements(&(smp_shape){3, {1 << 20, 1 << 20, 2}}), -1);
    assert_int_equal(smp_shape_elements(&(smp_shape){2, {INT64_MAX, INT64_MAX}}), -1);
    assert_int_equal(smp_shape_elements(&(smp_shape){2, {-2, -2}}), -1);
    const smp_op_kind *linear = smp_op_kind_find("linear");
    assert_non_null(linear);
    assert_string_equal(linear->attrs[smp_op_attr_index(linear, "bias")].name, "bias");
    assert_int_equal(smp_op_attr_index(linear, "colour"), -1);
}

/* In bf16 activations take half; the loss, integers and what the model is do not change. */
static void test_graph_target(void **state)
{
    (void)state;
    static const smp_target cpu = {SMP_BACKEND_CPU, SMP_PRECISION_FP32};
    static const smp_target targets[] = {{SMP_BACKEND_CUDA, SMP_PRECISION_FP32},
                                         {SMP_BACKEND_CUDA, SMP_PRECISION_TF32},
                                         {SMP_BACKEND_CUDA, SMP_PRECISION_BF16},
                                         {SMP_BACKEND_CPU, SMP_PRECISION_BF16}};
    smp_graph *g = read_model(gpt_text), *plain = read_model(gpt_text);
    for (size_t k = 0; k < sizeof targets / sizeof targets[0]; k++) {
        bool bf16 = targets[k].precision == SMP_PRECISION_BF16;
        assert_int_equal(SMP_OK, smp_graph_set_target(g, targets[k]));
        for (int32_t t = 0; t < g->n_tensor; t++) {
            smp_dtype was = plain->tensor[t].dtype, now = g->tensor[t].dtype;
            bool half = bf16 && was == SMP_F32 && t != g->loss;
            assert_int_equal(half ? SMP_BF16 : was, now);
            assert_int_equal(smp_tensor_bytes(plain, t, 3),
                             (half ? 2 : 1) * smp_tensor_bytes(g, t, 3));
        }
        assert_int_equal(SMP_F32, g->tensor[g->loss].dtype);
        assert_true(g->fingerprint == plain->fingerprint);
        assert_int_equal(SMP_OK, smp_graph_check_runnable(g));
        assert_int_equal(SMP_OK, smp_graph_check_kernels(g));
        /* refused: nothing has changed */
        smp_target wrong = {SMP_BACKEND_CPU, SMP_PRECISION_TF32};
        assert_int_equal(SMP_ERR_INPUT, smp_graph_set_target(g, wrong));
        assert_int_equal(targets[k].backend, g->target.backend);
    }
    assert_int_equal(SMP_OK, smp_graph_set_target(g, cpu));
    assert_int_equal(SMP_BACKEND_CPU, g->target.backend);
    for (int32_t t = 0; t < g->n_tensor; t++)
        assert_int_equal(plain->tensor[t].dtype, g->tensor[t].dtype);
    smp_graph_destroy(plain);
    smp_graph_destroy(g);
}

/* What needs a kernel that is not there is refused; what runs nowhere can be planned. */
static void test_graph_check_kernels(void **state)
{
    (void)state;
    static const char text[] = "smp: 1\nname: n\ninputs: {a: {dtype: float32, shape: [4]}}\n"
                               "ops:\n"
                               "  - {op: opaque, name: o, in: a, out: b, shape: [4], cost: "
                               "{forward_us: 1}}\n"
                               "  - {op: relu, name: r, in: b, out: c}\n";
    smp_graph *g = read_model(text);
    assert_int_equal(SMP_OK, smp_graph_check_kernels(g));
    assert_int_equal(SMP_OK, smp_graph_set_target(g, (smp_target){SMP_BACKEND_CUDA, 0}));
    assert_int_equal(SMP_OK, smp_graph_check_kernels(g));
    assert_int_equal(SMP_ERR_INPUT, smp_graph_check_runnable(g));
    smp_op_kind made_up = *g->op[1].kind;
    made_up.name = "made-up";
    ((smp_op *)g->op)[1].kind = &made_up;
    assert_int_equal(SMP_ERR_INPUT, smp_graph_check_kernels(g));
    assert_non_null(strstr(smp_last_error(),
                           "m.yaml:6:5: op 'r' (made-up): 'made-up' has no kernel "
                           "for cuda"));
    assert_int_equal(SMP_OK, smp_graph_set_target(g, (smp_target){0}));
    assert_int_equal(SMP_OK, smp_graph_check_kernels(g));
    smp_graph_destroy(g);
}

/* fc1 - bn - fc2 - loss: what of it still has a gradient. */
static void test_graph_freeze(void **state)
{
    (void)state;
    smp_graph *g = read_model("smp: 1\nname: f\ninputs:\n  x: {dtype: float32, shape: [6]}\n"
                              "  y: {dtype: float32, shape: [6]}\nops:\n"
                              "  - {op: linear, name: fc1, in: x, out: h, features: 6}\n"
                              "  - {op: batchnorm, name: bn, in: h, out: h}\n"
                              "  - {op: linear, name: fc2, in: h, out: h, features: 6}\n"
                              "  - {op: mse, name: loss, in: [h, y], out: loss}\nloss: loss\n");
    const uint64_t before = g->fingerprint;
    bool frozen[8] = {false};
    assert_int_equal(g->n_param, 8);
    frozen[smp_graph_find_param(g, "fc1.weight")] = true;
    assert_int_equal(SMP_OK, smp_graph_freeze(g, frozen));
    assert_true(grad_of(g, "fc1") && smp_op_has_trained(g, op_named(g, "fc1")));
    frozen[smp_graph_find_param(g, "fc1.bias")] = true;
    assert_int_equal(SMP_OK, smp_graph_freeze(g, frozen));
    assert_false(grad_of(g, "fc1") || smp_op_has_trained(g, op_named(g, "fc1")));
    assert_true(grad_of(g, "bn") && !op_named(g, "bn")->statistics);
    for (int32_t k = 0; k < 4; k++)
        frozen[op_named(g, "bn")->param[k]] = true;
    assert_int_equal(SMP_OK, smp_graph_freeze(g, frozen));
    assert_false(grad_of(g, "bn"));
    assert_true(op_named(g, "bn")->statistics && smp_op_has_trained(g, op_named(g, "bn")));
    assert_false(g->param[smp_graph_find_param(g, "bn.running_mean")].frozen);
    assert_true(grad_of(g, "fc2") && grad_of(g, "loss") && g->fingerprint == before);
    memset(frozen, true, sizeof frozen);
    assert_int_equal(SMP_ERR_INPUT, smp_graph_freeze(g, frozen));
    assert_non_null(strstr(smp_last_error(), "no weight that the loss depends on"));
    memset(frozen, false, sizeof frozen);
    assert_int_equal(SMP_OK, smp_graph_freeze(g, frozen));
    assert_true(grad_of(g, "fc1") && grad_of(g, "bn") && !op_named(g, "bn")->statistics);
    smp_graph_destroy(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graph_counts_and_order),
        cmocka_unit_test(test_graph_rebinding_connects_to_the_latest),
        cmocka_unit_test(test_graph_shapes_follow_let),
        cmocka_unit_test(test_graph_tied_weight_has_two_uses),
        cmocka_unit_test(test_graph_ties_any_weights),
        cmocka_unit_test(test_graph_indexes_are_complete),
        cmocka_unit_test(test_graph_needs_grad),
        cmocka_unit_test(test_graph_freeze),
        cmocka_unit_test(test_graph_several_outputs),
        cmocka_unit_test(test_graph_runnable),
        cmocka_unit_test(test_graph_tensor_bytes),
        cmocka_unit_test(test_graph_fingerprint),
        cmocka_unit_test(test_graph_weights_fingerprint),
        cmocka_unit_test(test_graph_shape_helpers),
        cmocka_unit_test(test_graph_target),
        cmocka_unit_test(test_graph_check_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
