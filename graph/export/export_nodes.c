/* Nodes, attributes and constants of an ONNX graph: graph/export/export_nodes.h. Everything lies in
 * the arena but the two lists, which grow. */
#include "graph/export/export_nodes.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void no_memory(smp__node_out *x)
{
    if (x->status == SMP_OK)
        x->status = smp_fail_memory(1);
}

static void *take_array(smp__node_out *x, size_t count, size_t size)
{
    void *memory = x->status == SMP_OK ? smp_arena_alloc(x->arena, count, size) : NULL;
    if (!memory && x->status == SMP_OK)
        x->status = SMP_ERR_NO_MEMORY;
    return memory;
}

#define TAKE(x, type, count) ((type *)take_array(x, (size_t)(count), sizeof(type)))

const char *smp__node_text_of(smp__node_out *x, const char *format, ...)
{
    char buffer[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(buffer, sizeof buffer, format, list);
    va_end(list);
    const char *text = smp_arena_strdup(x->arena, buffer);
    if (!text)
        no_memory(x);
    return text ? text : "";
}

static const char *new_name(smp__node_out *x)
{
    /* With nothing before the sign it could be a constant: "#1". */
    return smp__node_text_of(x, "%s#%" PRId64, x->op ? x->op->name : "model", ++x->n_name);
}

const char *smp__node_known(smp__node_out *x, const char *key)
{
    int64_t at = 0;
    return x->status == SMP_OK && smp_map_get(x->known, key, &at) ? (const char *)(intptr_t)at
                                                                  : NULL;
}

const char *smp__node_keep(smp__node_out *x, const char *key, const char *value)
{
    if (x->status == SMP_OK)
        x->status = smp_map_set(x->known, key, (int64_t)(intptr_t)value);
    return value;
}

static int count(const char *const *in)
{
    int n = 0;
    while (in[n])
        n++;
    return n;
}

static Onnx__NodeProto *new_node(smp__node_out *x, const char *type, const char *const *in, int n)
{
    const int n_in = count(in);
    Onnx__NodeProto *node = TAKE(x, Onnx__NodeProto, 1);
    char **names = TAKE(x, char *, n_in + n);
    if (x->status == SMP_OK)
        x->status = smp_array_reserve(&x->node, &x->node_capacity, sizeof(void *), x->n_node + 1);
    if (x->status != SMP_OK)
        return NULL;
    onnx__node_proto__init(node);
    node->op_type = (char *)type;
    node->input = names;
    node->n_input = (size_t)n_in;
    node->output = names + n_in;
    node->n_output = (size_t)n;
    memcpy(names, in, (size_t)n_in * sizeof *names);
    for (int i = 0; i < n; i++)
        node->output[i] = (char *)new_name(x);
    node->name = node->output[0];
    x->node[x->n_node++] = node;
    return node;
}

const char *smp__node_add(smp__node_out *x, const char *type, const char *const *in)
{
    const Onnx__NodeProto *node = new_node(x, type, in, 1);
    return node ? node->output[0] : "";
}

void smp__node_node_many(smp__node_out *x, const char *type, const char *const *in, int n,
                         const char **out)
{
    const Onnx__NodeProto *node = new_node(x, type, in, n);
    for (int i = 0; i < n; i++)
        out[i] = node ? node->output[i] : "";
}

/* Nodes have few attributes, so each new one copies the list. */
static Onnx__AttributeProto *new_attribute(smp__node_out *x, const char *name,
                                           Onnx__AttributeProto__AttributeType type)
{
    Onnx__NodeProto *node = x->n_node > 0 ? x->node[x->n_node - 1] : NULL;
    Onnx__AttributeProto *attribute = TAKE(x, Onnx__AttributeProto, 1);
    Onnx__AttributeProto **list =
        attribute ? TAKE(x, Onnx__AttributeProto *, node->n_attribute + 1) : NULL;
    if (!list)
        return NULL;
    onnx__attribute_proto__init(attribute);
    attribute->name = (char *)name;
    attribute->has_type = 1;
    attribute->type = type;
    if (node->n_attribute > 0)
        memcpy(list, node->attribute, node->n_attribute * sizeof *list);
    list[node->n_attribute++] = attribute;
    node->attribute = list;
    return attribute;
}

void smp__node_int(smp__node_out *x, const char *name, int64_t value)
{
    Onnx__AttributeProto *a = new_attribute(x, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT);
    if (a) {
        a->has_i = 1;
        a->i = value;
    }
}

void smp__node_float(smp__node_out *x, const char *name, double value)
{
    Onnx__AttributeProto *a = new_attribute(x, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT);
    if (a) {
        a->has_f = 1;
        a->f = (float)value;
    }
}

void smp__node_text(smp__node_out *x, const char *name, const char *value)
{
    Onnx__AttributeProto *a = new_attribute(x, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING);
    if (a) {
        a->has_s = 1;
        a->s = (ProtobufCBinaryData){strlen(value), (uint8_t *)value};
    }
}

void smp__node_ints(smp__node_out *x, const char *name, const int64_t *value, int n)
{
    Onnx__AttributeProto *a = new_attribute(x, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS);
    int64_t *copy = TAKE(x, int64_t, n);
    if (copy) {
        memcpy(copy, value, (size_t)n * sizeof *copy);
        a->ints = copy;
        a->n_ints = (size_t)n;
    }
}

const char *smp__node_table(smp__node_out *x, const char *key, smp_shape shape, bool whole,
                            void **fill)
{
    const char *known = smp__node_known(x, key);
    const int64_t elements = smp_shape_elements(&shape);
    const size_t width = whole ? sizeof(int64_t) : sizeof(float);
    *fill = NULL;
    if (known)
        return known;
    Onnx__TensorProto *t = TAKE(x, Onnx__TensorProto, 1);
    int64_t *dims = TAKE(x, int64_t, shape.n_dim);
    void *values = take_array(x, (size_t)elements, width);
    const char *name = smp__node_text_of(x, "#%s", key);
    if (x->status == SMP_OK)
        x->status = smp_array_reserve(&x->constant, &x->constant_capacity, sizeof(void *),
                                      x->n_constant + 1);
    if (x->status != SMP_OK)
        return "";
    onnx__tensor_proto__init(t);
    memcpy(dims, shape.dim, (size_t)shape.n_dim * sizeof *dims);
    t->dims = dims;
    t->n_dims = (size_t)shape.n_dim;
    t->has_data_type = t->has_raw_data = 1;
    t->data_type =
        whole ? ONNX__TENSOR_PROTO__DATA_TYPE__INT64 : ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT;
    t->name = (char *)name;
    t->raw_data = (ProtobufCBinaryData){(size_t)elements * width, values};
    x->constant[x->n_constant++] = t;
    *fill = values;
    return smp__node_keep(x, name + 1, name);
}

const char *smp__node_number(smp__node_out *x, double value)
{
    char key[64];
    void *fill;
    snprintf(key, sizeof key, "%.9g", value);
    const char *name = smp__node_table(x, key, (smp_shape){0}, false, &fill);
    if (fill)
        *(float *)fill = (float)value;
    return name;
}

const char *smp__node_list(smp__node_out *x, const int64_t *value, int64_t n)
{
    char key[512];
    size_t length = 0;
    void *fill;
    for (int64_t i = 0; i < n && length < sizeof key; i++)
        length += (size_t)snprintf(key + length, sizeof key - length, "%s%" PRId64,
                                   i == 0 ? "[" : ",", value[i]);
    if (length + 1 < sizeof key)
        memcpy(key + length, "]", 2);
    const char *name = smp__node_table(x, key, (smp_shape){1, {n}}, true, &fill);
    if (fill)
        memcpy(fill, value, (size_t)n * sizeof *value);
    return name;
}

const char *smp__node_in(smp__node_out *x, int slot)
{
    return x->value[x->op->in[slot]];
}

const char *smp__node_weight(smp__node_out *x, int slot)
{
    x->weight_used[x->op->param[slot]] = true;
    return x->model->param[x->op->param[slot]].name;
}

const smp_attr_value *smp__node_attr(const smp__node_out *x, const char *name)
{
    return &x->op->attr[smp_op_attr_index(x->op->kind, name)];
}

const smp_shape *smp__node_in_shape(const smp__node_out *x, int slot)
{
    return &x->model->tensor[x->op->in[slot]].shape;
}

const smp_shape *smp__node_out_shape(const smp__node_out *x)
{
    return &x->model->tensor[x->op->out].shape;
}

void smp__node_is(smp__node_out *x, const char *value)
{
    x->value[x->op->out] = value;
}

const char *smp__node_reshape(smp__node_out *x, const char *value, const smp_shape *shape)
{
    int64_t dims[SMP_MAX_DIMS + 1] = {0};
    memcpy(dims + 1, shape->dim, (size_t)shape->n_dim * sizeof *dims);
    return SMP__NODE(x, "Reshape", value, smp__node_list(x, dims, shape->n_dim + 1));
}

const char *smp__node_permute(smp__node_out *x, const char *value, const int64_t *perm, int n)
{
    const char *out = SMP__NODE(x, "Transpose", value);
    smp__node_ints(x, "perm", perm, n);
    return out;
}

/* The number of samples, [1], as an input of the model has it. */
static const char *batch_of(smp__node_out *x)
{
    static const char key[] = "samples";
    const char *known = smp__node_known(x, key);
    for (int32_t t = 0; t < x->model->n_input && !known; t++)
        if (x->value[t] && !x->model->tensor[t].unsplit) {
            known = SMP__NODE(x, "Shape", x->value[t]);
            smp__node_int(x, "start", 0);
            smp__node_int(x, "end", 1);
            return smp__node_keep(x, key, known);
        }
    if (!known)
        smp__node_refuse(x, "no input says how many samples there are");
    return known ? known : "";
}

const char *smp__node_spread(smp__node_out *x, const char *value, const smp_shape *shape)
{
    const char *dims = smp__node_list(x, shape->dim, shape->n_dim);
    const char *all = SMP__NODE(x, "Concat", batch_of(x), dims);
    smp__node_int(x, "axis", 0);
    return SMP__NODE(x, "Expand", value, all);
}

int64_t smp__node_axis(const smp__node_out *x)
{
    const int64_t axis = smp__node_attr(x, "axis")->i;
    return 1 + axis + (axis < 0 ? smp__node_in_shape(x, 0)->n_dim : 0);
}

void smp__node_refuse(smp__node_out *x, const char *reason)
{
    if (x->status != SMP_OK)
        return;
    if (x->op)
        x->status = smp_fail_at(smp_op_where(x->model, x->op),
                                "op '%s' (%s): cannot be exported to ONNX: %s", x->op->name,
                                x->op->kind->name, reason);
    else
        x->status =
            smp_fail(SMP_ERR_INPUT, "%s: cannot be exported to ONNX: %s", x->model->path, reason);
}
