/* What PyTorch's exporter notes beside a node, as fields that older schemas do not know. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/onnx/onnx_model.h"

enum { METADATA = 9, ROOM = 512 };

typedef struct noted {
    uint8_t bytes[3][ROOM];
    ProtobufCMessageUnknownField field[3];
    Onnx__NodeProto proto;
    smp_onnx_node node;
} noted;

static size_t put_text(uint8_t *at, int field, const char *text)
{
    const size_t length = strlen(text);
    assert_true(length < ROOM / 2);
    at[0] = (uint8_t)(field << 3 | PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED);
    at[1] = (uint8_t)(length & 127) | 128;
    at[2] = (uint8_t)(length >> 7);
    memcpy(at + 3, text, length);
    return length + 3;
}

static void note(noted *n, const char *key, const char *value)
{
    uint8_t entry[ROOM];
    size_t length = put_text(entry, 1, key);
    length += put_text(entry + length, 2, value);
    const unsigned i = n->proto.base.n_unknown_fields++;
    assert_true(length + 2 <= ROOM && i < 3);
    n->bytes[i][0] = (uint8_t)(length & 127) | 128;
    n->bytes[i][1] = (uint8_t)(length >> 7);
    memcpy(n->bytes[i] + 2, entry, length);
    n->field[i] = (ProtobufCMessageUnknownField){METADATA, PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED,
                                                 length + 2, n->bytes[i]};
    n->proto.base.unknown_fields = n->field;
    n->node.proto = &n->proto;
}

static void start(noted *n)
{
    memset(n, 0, sizeof(*n));
    onnx__node_proto__init(&n->proto);
    n->node.proto = &n->proto;
}

static void test_parameters(void **state)
{
    (void)state;
    noted n;
    start(&n);
    assert_int_equal(smp__onnx_parameters(&n.node), -1);
    assert_false(smp__onnx_reads_another(&n.node, "h.0.ln.weight"));
    note(&n, "namespace", "h.0");
    note(&n, "pkg.torch.onnx.fx_node",
         "%p_norm : [num_users=1] = call_function[target=torch.ops.aten.layer_norm.default](args = "
         "(%x, "
         "[32], %p_h_1_ln_weight, %p_h_1_ln_bias, 1e-05), kwargs = {})");
    assert_int_equal(smp__onnx_parameters(&n.node), 2);
    assert_true(smp__onnx_reads_another(&n.node, "h.0.ln.weight"));
    assert_true(smp__onnx_reads_another(&n.node, "h.1.ln.weights"));
    assert_true(smp__onnx_reads_another(&n.node, "h.1.ln"));
    assert_false(smp__onnx_reads_another(&n.node, "h.1.ln.weight"));
    assert_false(
        smp__onnx_reads_another(&n.node, "h.1.LN.bias")); /* which are written small there */
    assert_int_equal(smp__onnx_padding_row(&n.node), -1);
}

static void test_shared(void **state)
{
    (void)state;
    noted a, b;
    start(&a);
    start(&b);
    note(&a, "pkg.torch.onnx.fx_node", "%e : [] = f(args = (%p_wte_weight, %x), kwargs = {})");
    assert_false(smp__onnx_share_parameter(&a.node, &b.node));
    assert_false(smp__onnx_share_parameter(&b.node, &a.node));
    note(&b, "pkg.torch.onnx.fx_node",
         "%l : [] = f(args = (%y, %p_wte, %p_wte_weight), kwargs = {})");
    assert_true(smp__onnx_share_parameter(&a.node, &b.node));
    assert_true(smp__onnx_share_parameter(&b.node, &a.node));
    start(&b);
    note(&b, "pkg.torch.onnx.fx_node", "%l : [] = f(args = (%y, %p_wte_weights), kwargs = {})");
    assert_false(smp__onnx_share_parameter(&a.node, &b.node));
}

static void test_buffer(void **state)
{
    (void)state;
    noted n;
    start(&n);
    assert_false(smp__onnx_reads_buffer(&n.node));
    note(&n, "pkg.torch.onnx.fx_node", "%m : [] = f(args = (%x, %b_scale), kwargs = {})");
    assert_true(smp__onnx_reads_buffer(&n.node));
    start(&n);
    note(&n, "pkg.torch.onnx.fx_node", "%m : [] = f(args = (%p_w, %b_scale), kwargs = {})");
    assert_false(smp__onnx_reads_buffer(&n.node));
}

static void test_folded(void **state)
{
    (void)state;
    noted n;
    start(&n);
    assert_false(smp__onnx_batchnorm_folded(&n.node));
    note(&n, "pkg.onnxscript.rewriter.rule_name", "RemoveOptionalBiasFromConv");
    assert_false(smp__onnx_batchnorm_folded(&n.node));
    start(&n);
    note(&n, "pkg.onnxscript.rewriter.rule_name",
         "RemoveOptionalBiasFromConv, FuseBatchNormIntoConv");
    assert_true(smp__onnx_batchnorm_folded(&n.node));
}

static void test_nothing_read(void **state)
{
    (void)state;
    noted n;
    start(&n);
    note(&n, "pkg.torch.onnx.fx_node",
         "%add : [num_users=1] = call_function[target=add](args = (%x, %y), kwargs = {})");
    assert_int_equal(smp__onnx_parameters(&n.node), 0);
    assert_false(smp__onnx_reads_another(&n.node, "h.0.ln.weight"));
}

static void test_padding_row(void **state)
{
    (void)state;
    static const struct {
        const char *args;
        int64_t row;
    } CASE[] = {{"%p_w, %x, 12", 12},
                {"%p_w, %x, 0", 0},
                {"%p_w, %x", -1},
                {"%p_w, %x, -1", -1},
                {"%p_w, %x, 1, True", 1}};
    for (size_t i = 0; i < sizeof(CASE) / sizeof(CASE[0]); i++) {
        noted n;
        char text[ROOM];
        start(&n);
        snprintf(text, sizeof(text),
                 "%%e : [] = call_function[target=torch.ops.aten.embedding.default](args = (%s), "
                 "kwargs = {})",
                 CASE[i].args);
        note(&n, "pkg.torch.onnx.fx_node", text);
        assert_int_equal(smp__onnx_padding_row(&n.node), CASE[i].row);
    }
}

static void test_module(void **state)
{
    (void)state;
    static const struct {
        const char *scopes, *module;
    } CASE[] = {{"['', 'h', 'h.0.ln_1', 'layer_norm']", "h.0.ln_1"},
                {"['', 'add']", ""},
                {"['add']", ""},
                {"['', 'open", ""}};
    for (size_t i = 0; i < sizeof(CASE) / sizeof(CASE[0]); i++) {
        noted n;
        start(&n);
        note(&n, "pkg.torch.onnx.name_scopes", CASE[i].scopes);
        const smp__onnx_note module = smp__onnx_module(&n.node);
        assert_int_equal(module.length, strlen(CASE[i].module));
        assert_memory_equal(module.text ? module.text : "", CASE[i].module, module.length);
    }
}

/* Whatever is cut off is no note. */
static void test_cut_off(void **state)
{
    (void)state;
    noted n;
    start(&n);
    note(&n, "key", "value");
    assert_int_equal(smp__onnx_noted(&n.node, "key").length, 5);
    assert_int_equal(smp__onnx_noted(&n.node, "ke").length, 0);
    const size_t whole = n.field[0].len;
    for (size_t length = 0; length < whole; length++) {
        uint8_t *exact = malloc(length + 1); /* so that a sanitizer sees what is read behind it */
        assert_non_null(exact);
        memcpy(exact, n.bytes[0], length);
        n.field[0].len = length;
        n.field[0].data = exact;
        assert_int_equal(smp__onnx_noted(&n.node, "key").length, 0);
        free(exact);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parameters),   cmocka_unit_test(test_shared),
        cmocka_unit_test(test_buffer),       cmocka_unit_test(test_folded),
        cmocka_unit_test(test_nothing_read), cmocka_unit_test(test_padding_row),
        cmocka_unit_test(test_module),       cmocka_unit_test(test_cut_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
