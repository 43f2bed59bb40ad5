/* Building the graph of an ONNX file: names to values, nodes in their order, shapes and constants
 * as far as they can be known, and which nodes an output needs. */
#include "graph/onnx/onnx_model.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_NODES = 1 << 20,
    MOST_VALUES = 1 << 20,
    MOST_FOLDED = 400 << 20, /* bytes of constants that are computed here */
    SMALL_FOLDED = 64 << 20, /* ... of a small file, and */
    FOLDED_BY_BYTE = 16,     /* for each byte that is stored */
    MOST_OPERANDS = 1 << 16
};

#define TYPE(name) ONNX__TENSOR_PROTO__DATA_TYPE__##name

smp_status smp_onnx_fail(const smp_onnx_model *model, const smp_onnx_node *node, const char *format,
                         ...)
{
    char what[600];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    const int32_t index = (int32_t)(node - model->node);
    return smp_fail(SMP_ERR_INPUT, "%s: node %d '%.100s' (%.60s) at byte %lld: %s",
                    model->file->path, index, node->name, node->op,
                    (long long)model->file->node_at[index], what);
}

const Onnx__AttributeProto *smp__onnx_attr(const smp_onnx_node *node, const char *name)
{
    for (size_t i = 0; i < node->proto->n_attribute; i++)
        if (node->proto->attribute[i]->name && strcmp(node->proto->attribute[i]->name, name) == 0)
            return node->proto->attribute[i];
    return NULL;
}

int64_t smp__onnx_int(const smp_onnx_node *node, const char *name, int64_t absent)
{
    const Onnx__AttributeProto *a = smp__onnx_attr(node, name);
    return a && a->has_i ? a->i : absent;
}

double smp__onnx_float(const smp_onnx_node *node, const char *name, double absent)
{
    const Onnx__AttributeProto *a = smp__onnx_attr(node, name);
    return a && a->has_f ? (double)a->f : absent;
}

const char *smp__onnx_text(const smp_onnx_node *node, const char *name, const char *absent)
{
    const Onnx__AttributeProto *a = smp__onnx_attr(node, name);
    /* protobuf-c ends bytes with none; those of attributes are compared by their length. */
    static const char *const KNOWN[] = {"NOTSET",
                                        "SAME_UPPER",
                                        "SAME_LOWER",
                                        "VALID",
                                        "tanh",
                                        "none",
                                        "nearest",
                                        "linear",
                                        "bilinear",
                                        "cubic",
                                        "asymmetric",
                                        "DCR",
                                        "CRD",
                                        "floor",
                                        "half_pixel",
                                        "stretch",
                                        "ceil",
                                        "round_prefer_floor",
                                        "round_prefer_ceil"};
    if (!a || !a->has_s)
        return absent;
    for (size_t i = 0; i < sizeof(KNOWN) / sizeof(KNOWN[0]); i++)
        if (a->s.len == strlen(KNOWN[i]) && memcmp(a->s.data, KNOWN[i], a->s.len) == 0)
            return KNOWN[i];
    return "another";
}

const int64_t *smp__onnx_ints(const smp_onnx_node *node, const char *name, size_t *n)
{
    static const int64_t nothing[1];
    const Onnx__AttributeProto *a = smp__onnx_attr(node, name);
    *n = a ? a->n_ints : 0;
    return !a ? NULL : a->n_ints > 0 ? a->ints : nothing;
}

smp_onnx_value *smp__onnx_in(const smp_onnx_model *model, const smp_onnx_node *node, int k)
{
    return k < node->n_in && node->in[k] >= 0 ? &model->value[node->in[k]] : NULL;
}

smp_onnx_value *smp__onnx_out(const smp_onnx_model *model, const smp_onnx_node *node, int k)
{
    return k < node->n_out && node->out[k] >= 0 ? &model->value[node->out[k]] : NULL;
}

bool smp__onnx_list(const smp_onnx_model *model, const smp_onnx_node *node, const char *attr,
                    int input, const int64_t **list, size_t *n)
{
    const smp_onnx_value *value = smp__onnx_in(model, node, input);
    if (value && value->ints && value->n_dim <= 1) {
        *list = value->ints;
        *n = (size_t)smp__onnx_elements(value);
        return true;
    }
    *list = value ? NULL : smp__onnx_ints(node, attr, n);
    return *list != NULL;
}

bool smp__onnx_axis(int64_t axis, int n_dim, int *out)
{
    if (axis < -n_dim || axis >= n_dim)
        return false;
    *out = (int)(axis < 0 ? axis + n_dim : axis);
    return true;
}

int64_t smp__onnx_elements(const smp_onnx_value *value)
{
    int64_t n = 1;
    bool empty = false;
    if (value->n_dim < 0)
        return -1;
    /* The other sizes of what is empty are multiplied elsewhere too. */
    for (int i = 0; i < value->n_dim; i++) {
        const int64_t size = value->dim[i] == 0 ? 1 : value->dim[i];
        if (size < 0 || size > ((int64_t)1 << 40) / n)
            return -1;
        empty |= value->dim[i] == 0;
        n *= size;
    }
    return empty ? 0 : n;
}

bool smp__onnx_scalar(const smp_onnx_value *value, double *out)
{
    if (!value || !smp_onnx_constant(value) || smp__onnx_elements(value) != 1)
        return false;
    *out = value->floats ? (double)value->floats[0] : (double)value->ints[0];
    return true;
}

bool smp__onnx_work(smp_onnx_model *model, int64_t elements)
{
    const int64_t most = (int64_t)1 << 31;
    if (elements < 0 || elements > most - model->folded_work)
        return false;
    model->folded_work += elements;
    return true;
}

void *smp__onnx_take(smp_onnx_model *model, int64_t elements, size_t size)
{
    int64_t most = MOST_FOLDED + model->stored_bytes;
    if (model->stored_bytes < (MOST_FOLDED - SMALL_FOLDED) / FOLDED_BY_BYTE)
        most = SMALL_FOLDED + FOLDED_BY_BYTE * model->stored_bytes;
    if (elements < 0 || elements > most / (int64_t)size ||
        elements * (int64_t)size > most - model->folded_bytes)
        return NULL;
    model->folded_bytes += elements * (int64_t)size;
    return smp_arena_alloc(model->arena, (size_t)elements + 1, size);
}

/* The value of that name, made if it is new. "" is none: -1. */
static smp_status value_of(smp_onnx_model *m, const char *name, int32_t *out)
{
    int64_t found;
    *out = -1;
    if (!name || !*name)
        return SMP_OK;
    if (smp_map_get(m->by_name, name, &found)) {
        *out = (int32_t)found;
        return SMP_OK;
    }
    if (m->n_value >= MOST_VALUES)
        return smp_fail(SMP_ERR_INPUT, "%s: has more than %d values", m->file->path, MOST_VALUES);
    SMP_TRY(smp_array_reserve(&m->value, &m->value_capacity, sizeof(*m->value),
                              (size_t)m->n_value + 1));
    m->value[m->n_value] =
        (smp_onnx_value){.name = name, .n_dim = -1, .stored = -1, .producer = -1};
    *out = m->n_value++;
    return smp_map_set(m->by_name, name, *out);
}

static bool symbol_given(const smp_onnx_model *m, const char *symbol, int64_t *value)
{
    for (int i = 0; i < m->n_given; i++)
        if (strcmp(m->given[i].name, symbol) == 0) {
            *value = m->given[i].value;
            return true;
        }
    if (m->batch_symbol && strcmp(m->batch_symbol, symbol) == 0) {
        *value = m->batch;
        return true;
    }
    return false;
}

/* A dimension as the file says it; -1: not known. */
static int64_t declared_dim(const smp_onnx_model *m, const Onnx__TensorShapeProto__Dimension *dim)
{
    int64_t value;
    if (dim->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE &&
        dim->dim_value >= 0)
        return dim->dim_value;
    if (dim->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM && dim->dim_param &&
        symbol_given(m, dim->dim_param, &value))
        return value;
    return -1;
}

static const Onnx__TypeProto__Tensor *tensor_type(const Onnx__ValueInfoProto *info)
{
    const Onnx__TypeProto *type = info->type;
    return type && type->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE ? type->tensor_type
                                                                           : NULL;
}

/* What the file says of a value that is not inferred: all of it, or no shape. */
static void declare(const smp_onnx_model *m, const Onnx__ValueInfoProto *info, smp_onnx_value *v)
{
    const Onnx__TypeProto__Tensor *type = tensor_type(info);
    if (!type)
        return;
    if (v->type == 0)
        v->type = type->elem_type;
    if (v->n_dim >= 0 || !type->shape || type->shape->n_dim > SMP_ONNX_DIMS)
        return;
    for (size_t i = 0; i < type->shape->n_dim; i++)
        if ((v->dim[i] = declared_dim(m, type->shape->dim[i])) < 0)
            return;
    v->n_dim = (int)type->shape->n_dim;
    if (smp__onnx_elements(v) < 0)
        v->n_dim = -1;
}

static smp_status read_initializers(smp_onnx_model *m)
{
    const Onnx__GraphProto *graph = m->file->model->graph;
    for (size_t i = 0; i < graph->n_initializer; i++) {
        const Onnx__TensorProto *tensor = graph->initializer[i];
        int32_t index;
        SMP_TRY(value_of(m, tensor->name, &index));
        if (index < 0 || m->value[index].stored >= 0)
            return smp_fail(SMP_ERR_INPUT, "%s: initializer %zu '%.100s': %s", m->file->path, i,
                            tensor->name ? tensor->name : "",
                            index < 0 ? "has no name" : "is there twice");
        m->value[index].stored = index;
        smp_onnx_value value = m->value[index];
        SMP_TRY(smp__onnx_constant(
            m, tensor, smp_arena_printf(m->arena, "initializer %zu '%.100s'", i, tensor->name),
            &value));
        m->value[index] = value;
    }
    if (graph->n_sparse_initializer > 0)
        return smp_fail(SMP_ERR_INPUT, "%s: sparse initializers are not read", m->file->path);
    return SMP_OK;
}

/* The batch is the first dimension of the first input that has dimensions. */
static bool find_batch(smp_onnx_model *m)
{
    const Onnx__GraphProto *graph = m->file->model->graph;
    for (size_t i = 0; i < graph->n_input; i++) {
        const Onnx__TypeProto__Tensor *type = tensor_type(graph->input[i]);
        int64_t at;
        if (!graph->input[i]->name || !type || !type->shape || type->shape->n_dim == 0 ||
            (smp_map_get(m->by_name, graph->input[i]->name, &at) && m->value[at].stored >= 0))
            continue;
        const Onnx__TensorShapeProto__Dimension *dim = type->shape->dim[0];
        m->batch = declared_dim(m, dim);
        if (m->batch >= 0)
            return m->batch > 0;
        m->batch = SMP_ONNX_SYMBOL;
        if (dim->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM)
            m->batch_symbol = dim->dim_param;
        return true;
    }
    return false;
}

static smp_status read_input(smp_onnx_model *m, const Onnx__ValueInfoProto *info)
{
    int32_t index;
    SMP_TRY(value_of(m, info->name, &index));
    if (index < 0)
        return smp_fail(SMP_ERR_INPUT, "%s: an input has no name", m->file->path);
    smp_onnx_value *v = &m->value[index];
    if (v->stored >= 0)
        return SMP_OK; /* older files list initializers among the inputs */
    const Onnx__TypeProto__Tensor *type = tensor_type(info);
    if (v->input)
        return smp_fail(SMP_ERR_INPUT, "%s: input '%.100s': is there twice", m->file->path,
                        info->name);
    v->input = true;
    if (!type || !type->shape || type->shape->n_dim > SMP_ONNX_DIMS)
        return smp_fail(SMP_ERR_INPUT, "%s: input '%.100s': expected a tensor with a shape",
                        m->file->path, info->name);
    v->type = type->elem_type;
    v->n_dim = (int)type->shape->n_dim;
    for (int i = 0; i < v->n_dim; i++) {
        const Onnx__TensorShapeProto__Dimension *dim = type->shape->dim[i];
        v->dim[i] = declared_dim(m, dim);
        if (v->dim[i] < 0 && i == 0 && !dim->dim_param)
            v->dim[i] = m->batch;
        if (v->dim[i] < 0)
            return smp_fail(SMP_ERR_INPUT,
                            "%s: input '%.100s': dimension %d is '%.60s', expected a number (--dim "
                            "NAME=NUMBER)",
                            m->file->path, info->name, i,
                            dim->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM
                                ? dim->dim_param
                                : "not known");
        if (v->dim[i] == 0)
            return smp_fail(SMP_ERR_INPUT, "%s: input '%.100s': is empty: dimension %d is 0",
                            m->file->path, info->name, i);
    }
    if (smp__onnx_elements(v) < 0)
        return smp_fail(SMP_ERR_INPUT, "%s: input '%.100s': has more than 2^40 values",
                        m->file->path, info->name);
    const Onnx__TensorShapeProto__Dimension *first = v->n_dim > 0 ? type->shape->dim[0] : NULL;
    v->batched = first && v->dim[0] == m->batch &&
                 (!m->batch_symbol ||
                  (first->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM &&
                   strcmp(first->dim_param, m->batch_symbol) == 0));
    return SMP_OK;
}

static smp_status read_node(smp_onnx_model *m, const Onnx__NodeProto *proto, smp_onnx_node *node)
{
    const char *op = proto->op_type ? proto->op_type : "";
    const char *domain = proto->domain ? proto->domain : "";
    node->proto = proto;
    node->op = *domain && strcmp(domain, "ai.onnx") != 0
                   ? smp_arena_printf(m->arena, "%.100s.%.100s", domain, op)
                   : op;
    node->n_in = (int)proto->n_input;
    node->n_out = (int)proto->n_output;
    if (proto->n_input > MOST_OPERANDS || proto->n_output > MOST_OPERANDS)
        return smp_fail(SMP_ERR_INPUT, "%s: node %d at byte %lld: more than %d inputs or outputs",
                        m->file->path, (int)(node - m->node),
                        (long long)m->file->node_at[node - m->node], MOST_OPERANDS);
    node->in = SMP_ARENA_NEW(m->arena, int32_t, proto->n_input);
    node->out = SMP_ARENA_NEW(m->arena, int32_t, proto->n_output);
    if (!node->op || !node->in || !node->out)
        return SMP_ERR_NO_MEMORY;
    node->name = proto->name && *proto->name                ? proto->name
                 : proto->n_output > 0 && *proto->output[0] ? proto->output[0]
                                                            : "";
    for (int k = 0; k < node->n_in; k++) {
        const int32_t before = m->n_value;
        SMP_TRY(value_of(m, proto->input[k], &node->in[k]));
        if (m->n_value > before)
            return smp_onnx_fail(m, node, "reads '%.100s', which nothing before it makes",
                                 proto->input[k]);
        if (node->in[k] >= 0)
            m->value[node->in[k]].n_use++;
    }
    for (int k = 0; k < node->n_out; k++) {
        const int32_t before = m->n_value;
        SMP_TRY(value_of(m, proto->output[k], &node->out[k]));
        if (node->out[k] >= 0 && m->n_value == before)
            return smp_onnx_fail(m, node, "makes '%.100s', which is there already",
                                 proto->output[k]);
        if (node->out[k] >= 0)
            m->value[node->out[k]].producer = (int32_t)(node - m->node);
    }
    return SMP_OK;
}

static smp_status read_nodes(smp_onnx_model *m)
{
    const Onnx__GraphProto *graph = m->file->model->graph;
    smp_map *declared = smp_map_create();
    smp_status status = declared ? SMP_OK : smp_fail_memory(sizeof(declared));
    for (size_t i = 0; status == SMP_OK && i < graph->n_value_info; i++)
        if (graph->value_info[i]->name)
            status = smp_map_set(declared, graph->value_info[i]->name, (int64_t)i);
    for (size_t i = 0; status == SMP_OK && i < graph->n_output; i++)
        if (graph->output[i]->name)
            status =
                smp_map_set(declared, graph->output[i]->name, (int64_t)(graph->n_value_info + i));
    for (size_t i = 0; status == SMP_OK && i < graph->n_node; i++) {
        smp_onnx_node *node = &m->node[i];
        m->n_node = (int32_t)i + 1;
        if ((status = read_node(m, graph->node[i], node)) != SMP_OK)
            break;
        smp__onnx_infer(m, node);
        for (int k = 0; k < node->n_out; k++) {
            smp_onnx_value *v = smp__onnx_out(m, node, k);
            int64_t at;
            if (v)
                v->inferred = v->n_dim >= 0;
            if (v && smp_map_get(declared, v->name, &at))
                declare(m,
                        at < (int64_t)graph->n_value_info
                            ? graph->value_info[at]
                            : graph->output[at - (int64_t)graph->n_value_info],
                        v);
        }
        status = smp__onnx_fold(m, node);
    }
    smp_map_destroy(declared);
    return status;
}

static smp_status mark_live(smp_onnx_model *m)
{
    const Onnx__GraphProto *graph = m->file->model->graph;
    for (size_t i = 0; i < graph->n_output; i++) {
        int64_t at;
        if (!graph->output[i]->name || !smp_map_get(m->by_name, graph->output[i]->name, &at))
            return smp_fail(SMP_ERR_INPUT, "%s: output '%.100s': nothing makes it", m->file->path,
                            graph->output[i]->name ? graph->output[i]->name : "");
        m->value[at].output = true;
        m->value[at].n_use++;
        if (m->value[at].producer >= 0)
            m->node[m->value[at].producer].live = true;
    }
    for (int32_t i = m->n_node - 1; i >= 0; i--) {
        smp_onnx_node *node = &m->node[i];
        bool constant = node->n_out > 0;
        for (int k = 0; k < node->n_out; k++)
            constant &= node->out[k] < 0 || smp_onnx_constant(&m->value[node->out[k]]);
        node->live &= !constant;
        for (int k = 0; k < node->n_in; k++) {
            if (node->in[k] < 0)
                continue;
            smp_onnx_value *v = &m->value[node->in[k]];
            if (node->live && v->producer >= 0)
                m->node[v->producer].live = true;
            v->n_use -= node->live ? 0 : 1;
        }
    }
    return SMP_OK;
}

static smp_status find_opset(smp_onnx_model *m)
{
    const Onnx__ModelProto *model = m->file->model;
    m->opset = model->n_opset_import == 0 ? 1 : 0; /* of files older than operator sets */
    for (size_t i = 0; i < model->n_opset_import; i++) {
        const char *domain = model->opset_import[i]->domain;
        if (!domain || !*domain || strcmp(domain, "ai.onnx") == 0)
            m->opset =
                (int)(model->opset_import[i]->version < 1000 ? model->opset_import[i]->version
                                                             : 1000);
    }
    if (m->opset < SMP_ONNX_OPSET_FIRST || m->opset > SMP_ONNX_OPSET_LAST)
        return smp_fail(SMP_ERR_INPUT, "%s: operator set %d, expected %d to %d", m->file->path,
                        m->opset, SMP_ONNX_OPSET_FIRST, SMP_ONNX_OPSET_LAST);
    return SMP_OK;
}

static smp_status read_graph(smp_onnx_model *m)
{
    const Onnx__GraphProto *graph = m->file->model->graph;
    SMP_TRY(find_opset(m));
    if (graph->n_node > MOST_NODES || graph->n_node == 0)
        return smp_fail(SMP_ERR_INPUT, "%s: has %zu nodes, expected 1 to %d", m->file->path,
                        graph->n_node, MOST_NODES);
    m->node = SMP_ARENA_NEW(m->arena, smp_onnx_node, graph->n_node);
    if (!m->node)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(read_initializers(m));
    if (!find_batch(m))
        return smp_fail(SMP_ERR_INPUT, "%s: no input has a batch: a first dimension above 0",
                        m->file->path);
    for (size_t i = 0; i < graph->n_input; i++)
        SMP_TRY(read_input(m, graph->input[i]));
    SMP_TRY(read_nodes(m));
    return mark_live(m);
}

smp_status smp_onnx_model_read(const smp_onnx_file *file, const smp_onnx_dim *given, int n_given,
                               smp_onnx_model **out)
{
    smp_onnx_model *m = calloc(1, sizeof(*m));
    if (!m)
        return smp_fail_memory(sizeof(*m));
    m->file = file;
    m->given = given;
    m->n_given = n_given;
    m->stored_bytes = (int64_t)file->bytes;
    m->arena = smp_arena_create();
    m->by_name = smp_map_create();
    m->read_beside = smp_map_create();
    smp_status status =
        m->arena && m->by_name && m->read_beside ? read_graph(m) : smp_fail_memory(sizeof(*m));
    if (status == SMP_OK)
        *out = m;
    else
        smp_onnx_model_destroy(m);
    return status;
}

void smp_onnx_model_destroy(smp_onnx_model *model)
{
    if (!model)
        return;
    free(model->value);
    smp_map_destroy(model->by_name);
    smp_map_destroy(model->read_beside);
    smp_arena_destroy(model->arena);
    free(model);
}
