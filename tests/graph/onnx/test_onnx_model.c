/* Shapes and values of single nodes: what each operator makes of inputs with sizes, and of
 * constants, in the operator sets in which it is written differently, the last one included. Whole
 * models: tests/schedule/import/test_onnx_testdata.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/onnx/onnx_model.h"

enum { MOST_IN = 5, OLD = 11, NEW = SMP_ONNX_OPSET_LAST };

/* Inputs and outputs as text: "f2x3" floats of that shape, "i2x3" whole numbers, "fNx3" with a
 * symbol for a size; "=1,-1" a constant of whole numbers, "~1.5,2" of floats, a list unless a shape
 * stands before ("2x2=1,2,3,4", "s=3" has no dimensions); "" is left out. Attributes: "axis=1",
 * "perm=[0,2,1]", "mode=DCR". */
typedef struct node_case {
    int opset;
    const char *op, *in[MOST_IN], *attr, *wanted;
} node_case;

static const node_case shapes[] = {
    {NEW, "Relu", {"fNx3"}, "", "7x3"},
    {NEW, "Add", {"f2x1x4", "f3x1"}, "", "2x3x4"},
    {NEW, "Add", {"f2x3", "f2x4"}, "", "?"},
    {NEW, "MatMul", {"f2x3x4", "f4x5"}, "", "2x3x5"},
    {NEW, "MatMul", {"f2x1x3x4", "f6x4x5"}, "", "2x6x3x5"},
    {NEW, "MatMul", {"f2x3", "f4x5"}, "", "?"},
    {NEW, "Gemm", {"f2x3", "f5x3"}, "transB=1", "2x5"},
    {NEW, "Gemm", {"f3x2", "f3x5"}, "transA=1", "2x5"},
    {NEW, "Transpose", {"f2x3x4"}, "perm=[2,0,1]", "4x2x3"},
    {NEW, "Transpose", {"f2x3x4"}, "", "4x3x2"},
    {NEW, "Flatten", {"f2x3x4"}, "axis=2", "6x4"},
    {NEW, "Reshape", {"f2x3x4", "=0,-1"}, "", "2x12"},
    {NEW, "Reshape", {"f2x3x4", "=5,-1"}, "", "?"},
    {NEW, "Concat", {"f2x3", "f2x4"}, "axis=-1", "2x7"},
    {OLD, "Squeeze", {"f2x1x3"}, "axes=[1]", "2x3"},
    {NEW, "Squeeze", {"f2x1x3", "=1"}, "", "2x3"},
    {NEW, "Squeeze", {"f2x1x3", "=0"}, "", "?"},
    {OLD, "Unsqueeze", {"f2x3"}, "axes=[0,3]", "1x2x3x1"},
    {NEW, "Unsqueeze", {"f2x3", "=0,-1"}, "", "1x2x3x1"},
    {OLD, "Split", {"f6x3"}, "split=[2,4]", "2x3"},
    {NEW, "Split", {"f6x3", "=2,4"}, "", "2x3"},
    {NEW, "Slice", {"f5x8", "=1,0", "=4,8", "=0,1", "=1,3"}, "", "3x3"},
    {NEW, "Slice", {"f5x8", "=4", "=-6", "=0", "=-2"}, "", "3x8"},
    {NEW, "Gather", {"f9x4", "i2x3"}, "axis=0", "2x3x4"},
    {NEW, "GatherND", {"f5x6x7", "i2x3x2"}, "", "2x3x7"},
    {NEW, "GatherND", {"f5x6x7", "i5x3x1"}, "batch_dims=1", "5x3x7"},
    {NEW, "GatherND", {"f5x6", "i2x3"}, "", "?"},
    {NEW, "Expand", {"f3x1", "=2,1,4"}, "", "2x3x4"},
    {NEW, "Tile", {"f2x3", "=2,1"}, "", "4x3"},
    {NEW, "Pad", {"f2x3", "=0,1,0,2"}, "", "2x6"},
    {OLD, "ReduceMean", {"f2x3x4"}, "axes=[-1]", "2x3x1"},
    {NEW, "ReduceMean", {"f2x3x4", "=1"}, "keepdims=0", "2x4"},
    {NEW, "Conv", {"f2x3x9x9", "f8x3x3x3"}, "strides=[2,2] pads=[1,1,1,1]", "2x8x5x5"},
    {NEW, "Conv", {"f2x3x9x9", "f8x3x3x3"}, "auto_pad=SAME_UPPER strides=[2,2]", "2x8x5x5"},
    {NEW, "MaxPool", {"f2x3x8x8"}, "kernel_shape=[3,3] strides=[2,2]", "2x3x3x3"},
    {NEW, "MaxPool", {"f2x3x8x8"}, "kernel_shape=[3,3] strides=[2,2] ceil_mode=1", "2x3x4x4"},
    {NEW, "GlobalAveragePool", {"f2x3x8x8"}, "", "2x3x1x1"},
    {NEW, "DepthToSpace", {"f2x8x3x3"}, "blocksize=2", "2x2x6x6"},
    {NEW, "LayerNormalization", {"f2x3", "f3", "f3"}, "", "2x3"},
    {NEW, "Strange", {"f2x3"}, "", "?"},
};

static const node_case values[] = {
    {NEW, "Shape", {"f2x3x4"}, "", "3=2,3,4"},
    {NEW, "Shape", {"f2x3x4"}, "start=1 end=-1", "1=3"},
    {NEW, "Size", {"f2x3x4"}, "", "s=24"},
    {NEW, "Gather", {"=5,6,7", "s=-1"}, "axis=0", "s=7"},
    {NEW, "GatherElements", {"2x3=1,2,3,4,5,6", "2x2=2,0,-1,1"}, "axis=1", "2x2=3,1,6,5"},
    {NEW, "GatherElements", {"2x2=1,2,3,4", "1x2=1,0"}, "axis=0", "1x2=3,2"},
    {NEW, "GatherElements", {"2x2=1,2,3,4", "1x2=2,0"}, "axis=0", "1x2"}, /* outside */
    {NEW, "GatherElements", {"2x3=4,4,4,4,4,4", "i2x2"}, "axis=1", "2x2=4,4,4,4"},
    {NEW, "GatherND", {"2x3=1,2,3,4,5,6", "2x2=1,2,0,-1"}, "", "2=6,3"},
    {NEW, "GatherND", {"2x2=1,2,3,4", "2x1=1,0"}, "", "2x2=3,4,1,2"},
    {NEW, "GatherND", {"2x2=1,2,3,4", "1x2=0,2"}, "", "1"},
    {NEW, "CumSum", {"2x3=1,2,3,4,5,6", "s=1"}, "", "2x3=1,3,6,4,9,15"},
    {NEW, "CumSum", {"2x3=1,2,3,4,5,6", "s=0"}, "exclusive=1", "2x3=0,0,0,1,2,3"},
    {NEW, "CumSum", {"~1,2,3", "s=-1"}, "reverse=1", "3~6,5,3"},
    {NEW, "Concat", {"=5,6", "=7"}, "axis=0", "3=5,6,7"},
    {NEW, "Add", {"2x1=1,2", "=10,20"}, "", "2x2=11,21,12,22"},
    {NEW, "Sub", {"~1.5,2", "s~0.5"}, "", "2~1,1.5"},
    {NEW, "Div", {"=7,-7", "s=2"}, "", "2=3,-3"},
    {NEW, "Mod", {"=7,-7", "s=3"}, "", "2=1,2"},
    {NEW, "Pow", {"~2,3", "s~2"}, "", "2~4,9"},
    {NEW, "Sqrt", {"~4,9"}, "", "2~2,3"},
    {NEW, "Range", {"s=2", "s=9", "s=3"}, "", "3=2,5,8"},
    {NEW, "Transpose", {"2x3=1,2,3,4,5,6"}, "", "3x2=1,4,2,5,3,6"},
    {NEW, "Reshape", {"=1,2,3,4", "=2,-1"}, "", "2x2=1,2,3,4"},
    {NEW, "Unsqueeze", {"=1,2", "=0"}, "", "1x2=1,2"},
    {NEW, "Slice", {"=1,2,3,4,5", "=-1", "=-9", "=0", "=-2"}, "", "3=5,3,1"},
    {NEW, "Expand", {"2x1=1,2", "=2,2"}, "", "2x2=1,1,2,2"},
    {NEW, "Tile", {"=1,2", "=2"}, "", "4=1,2,1,2"},
    {NEW, "Where", {"2=1,0", "=5,6", "s=9"}, "", "2=5,9"},
    {NEW, "Trilu", {"2x2=1,2,3,4"}, "upper=0", "2x2=1,0,3,4"},
    {NEW, "Equal", {"=1,2", "s=2"}, "", "2=0,1"},
    {OLD, "ReduceSum", {"2x2=1,2,3,4"}, "axes=[0,1] keepdims=0", "s=10"},
    {NEW, "ReduceSum", {"2x2=1,2,3,4", "=0,1"}, "", "1x1=10"},
    {NEW, "ReduceProd", {"=2,3,4"}, "keepdims=0", "s=24"},
    {NEW, "MatMul", {"1x2~1,2", "2x1~3,4"}, "", "1x1~11"},
    {NEW, "Relu", {"~1,2"}, "", "2"}, /* none that shapes and masks need */
};

static smp_arena *arena;

static void *take(size_t n)
{
    void *p = smp_arena_alloc(arena, 1, n + 1);
    assert_non_null(p);
    memset(p, 0, n + 1);
    return p;
}

static char *copy(const char *text, size_t n)
{
    char *p = take(n);
    memcpy(p, text, n);
    return p;
}

/* "2x3" up to what is no size; "s" has none. */
static const char *read_dims(const char *at, int64_t *dim, size_t *n)
{
    char *end;
    *n = 0;
    if (*at == 's')
        return at + 1;
    for (; *at >= '0' && *at <= '9'; at = *end == 'x' ? end + 1 : end)
        dim[(*n)++] = strtoll(at, &end, 10);
    return at;
}

static Onnx__TensorProto *constant_of(const char *text, char *name)
{
    Onnx__TensorProto *t = take(sizeof *t);
    char *end;
    onnx__tensor_proto__init(t);
    t->name = name;
    t->dims = take(8 * sizeof *t->dims);
    t->int64_data = take(16 * sizeof *t->int64_data);
    t->float_data = take(16 * sizeof *t->float_data);
    const bool listed = *text == '=' || *text == '~';
    const char *at = read_dims(text, t->dims, &t->n_dims);
    const bool whole = *at == '=';
    size_t n = 0;
    for (at++; *at; at = *end == ',' ? end + 1 : end, n++) {
        t->int64_data[n] = strtoll(at, &end, 10);
        t->float_data[n] = strtof(at, &end);
    }
    *(whole ? &t->n_int64_data : &t->n_float_data) = n;
    t->has_data_type = 1;
    t->data_type =
        whole ? ONNX__TENSOR_PROTO__DATA_TYPE__INT64 : ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT;
    if (listed)
        t->dims[t->n_dims++] = (int64_t)n;
    return t;
}

static Onnx__ValueInfoProto *input_of(const char *text, char *name)
{
    Onnx__ValueInfoProto *v = take(sizeof *v);
    Onnx__TypeProto *type = take(sizeof *type);
    Onnx__TypeProto__Tensor *tensor = take(sizeof *tensor);
    Onnx__TensorShapeProto *shape = take(sizeof *shape);
    onnx__value_info_proto__init(v);
    onnx__type_proto__init(type);
    onnx__type_proto__tensor__init(tensor);
    onnx__tensor_shape_proto__init(shape);
    v->name = name;
    v->type = type;
    type->value_case = ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
    type->tensor_type = tensor;
    tensor->has_elem_type = 1;
    tensor->elem_type =
        *text == 'i' ? ONNX__TENSOR_PROTO__DATA_TYPE__INT64 : ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT;
    tensor->shape = shape;
    shape->dim = take(8 * sizeof *shape->dim);
    for (const char *at = text + 1; *at; at += *at == 'x') {
        Onnx__TensorShapeProto__Dimension *d = take(sizeof *d);
        onnx__tensor_shape_proto__dimension__init(d);
        shape->dim[shape->n_dim++] = d;
        if (*at == 'N') {
            d->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM;
            d->dim_param = copy(at++, 1);
        } else {
            d->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
            d->dim_value = strtoll(at, (char **)&at, 10);
        }
    }
    return v;
}

static void add_attributes(Onnx__NodeProto *node, const char *at)
{
    node->attribute = take(4 * sizeof *node->attribute);
    while (*at) {
        Onnx__AttributeProto *a = take(sizeof *a);
        const char *value = strchr(at, '=') + 1;
        const size_t n = strcspn(value, " ");
        char *end;
        onnx__attribute_proto__init(a);
        a->name = copy(at, (size_t)(value - 1 - at));
        a->has_type = 1;
        a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT;
        if (*value == '[') {
            a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS;
            a->ints = take(8 * sizeof *a->ints);
            for (at = value + 1; at[-1] != ']'; at = end + 1)
                a->ints[a->n_ints++] = strtoll(at, &end, 10);
        } else if (*value >= 'A') {
            a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING;
            a->has_s = 1;
            a->s = (ProtobufCBinaryData){n, (uint8_t *)copy(value, n)};
        } else {
            a->has_i = 1;
            a->i = strtoll(value, NULL, 10);
        }
        node->attribute[node->n_attribute++] = a;
        at = value + n + (value[n] == ' ');
    }
}

/* A model of that one node, whose outputs y and z are the model's. */
static smp_onnx_file *file_of(const node_case *c)
{
    Onnx__ModelProto model = ONNX__MODEL_PROTO__INIT;
    Onnx__GraphProto graph = ONNX__GRAPH_PROTO__INIT;
    Onnx__OperatorSetIdProto set = ONNX__OPERATOR_SET_ID_PROTO__INIT;
    Onnx__NodeProto node = ONNX__NODE_PROTO__INIT;
    Onnx__ValueInfoProto out[2] = {ONNX__VALUE_INFO_PROTO__INIT, ONNX__VALUE_INFO_PROTO__INIT};
    smp_onnx_file *file;
    const bool two = strcmp(c->op, "Split") == 0;
    graph.name = "g";
    graph.input = take((MOST_IN + 1) * sizeof *graph.input);
    graph.initializer = take(MOST_IN * sizeof *graph.initializer);
    node.op_type = (char *)c->op;
    node.input = take(MOST_IN * sizeof *node.input);
    for (int i = 0; i < MOST_IN && c->in[i]; i++) {
        char name[2] = {(char)('a' + i), 0}, *kept = copy(name, 1);
        node.input[node.n_input++] = kept;
        if (*c->in[i] == 'f' || *c->in[i] == 'i')
            graph.input[graph.n_input++] = input_of(c->in[i], kept);
        else
            graph.initializer[graph.n_initializer++] = constant_of(c->in[i], kept);
    }
    if (graph.n_input == 0)
        graph.input[graph.n_input++] = input_of("f1", "unread");
    node.output = (char *[]){"y", "z"};
    node.n_output = two ? 2 : 1;
    add_attributes(&node, c->attr);
    out[0].name = "y";
    out[1].name = "z";
    graph.output = (Onnx__ValueInfoProto *[]){&out[0], &out[1]};
    graph.n_output = two ? 2 : 1;
    graph.node = (Onnx__NodeProto *[]){&node};
    graph.n_node = 1;
    set.has_version = 1;
    set.version = c->opset;
    model.has_ir_version = 1;
    model.ir_version = 8;
    model.graph = &graph;
    model.opset_import = (Onnx__OperatorSetIdProto *[]){&set};
    model.n_opset_import = 1;
    const size_t n = onnx__model_proto__get_packed_size(&model);
    uint8_t *bytes = take(n);
    onnx__model_proto__pack(&model, bytes);
    if (smp_onnx_file_parse("m.onnx", bytes, n, &file) != SMP_OK)
        fail_msg("%s: %s", c->op, smp_last_error());
    return file;
}

/* "?" without a shape, else sizes, and the values of a constant. */
static void describe(const smp_onnx_value *v, smp_text *text)
{
    text->length = 0;
    smp_text_append(text, "%s", v->n_dim < 0 ? "?" : v->n_dim == 0 ? "s" : "");
    for (int d = 0; d < v->n_dim; d++)
        smp_text_append(text, "%s%lld", d ? "x" : "", (long long)v->dim[d]);
    for (int64_t i = 0; smp_onnx_constant(v) && i < smp__onnx_elements(v); i++) {
        smp_text_append(text, "%s", i ? "," : v->ints ? "=" : "~");
        smp_text_append(text, "%g", v->ints ? (double)v->ints[i] : (double)v->floats[i]);
    }
}

static void check(const node_case *c, bool other_sets)
{
    smp_text got = {0};
    for (int set = other_sets ? 13 : c->opset; set <= c->opset; set += 4) {
        node_case one = *c;
        smp_onnx_model *model;
        int64_t at;
        one.opset = set;
        smp_onnx_file *file = file_of(&one);
        if (smp_onnx_model_read(file, NULL, 0, &model) != SMP_OK)
            fail_msg("%s: %s", c->op, smp_last_error());
        assert_int_equal(model->opset, set);
        assert_true(smp_map_get(model->by_name, "y", &at));
        describe(&model->value[at], &got);
        if (strcmp(got.data, c->wanted) != 0)
            fail_msg("%s of %s, %s (%s), operator set %d: got %s, expected %s", c->op, c->in[0],
                     c->in[1] ? c->in[1] : "nothing", c->attr, set, got.data, c->wanted);
        smp_onnx_model_destroy(model);
        smp_onnx_file_close(file);
    }
    smp_text_free(&got);
}

static void test_onnx_shapes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        check(&shapes[i], false);
}

static void test_onnx_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        check(&values[i], values[i].opset == NEW); /* 13, 17 and 21 are written alike */
}

/* The first and the last operator set are read, those beyond are not. */
static void test_onnx_operator_sets(void **state)
{
    (void)state;
    for (int set = SMP_ONNX_OPSET_FIRST - 1; set <= SMP_ONNX_OPSET_LAST + 1; set++) {
        const node_case c = {set, "Relu", {"f2x3"}, "", "2x3"};
        smp_onnx_file *file = file_of(&c);
        smp_onnx_model *model = NULL;
        const bool known = set >= SMP_ONNX_OPSET_FIRST && set <= SMP_ONNX_OPSET_LAST;
        assert_int_equal(smp_onnx_model_read(file, NULL, 0, &model),
                         known ? SMP_OK : SMP_ERR_INPUT);
        assert_true(known || strstr(smp_last_error(), "m.onnx: "));
        smp_onnx_model_destroy(model);
        smp_onnx_file_close(file);
    }
}

static int open_arena(void **state)
{
    (void)state;
    arena = smp_arena_create();
    return arena ? 0 : -1;
}

static int close_arena(void **state)
{
    (void)state;
    smp_arena_destroy(arena);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_onnx_shapes),
        cmocka_unit_test(test_onnx_values),
        cmocka_unit_test(test_onnx_operator_sets),
    };
    return cmocka_run_group_tests(tests, open_arena, close_arena);
}
