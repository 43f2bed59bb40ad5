/* A model as an ONNX file (graph/export/export_model.h): what the outputs need of it, op by op in
 * their order, then the weights that were used. O(ops + bytes of weights). */
#include "graph/export/export_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "graph/export/export_table.h"

/* Bytes that a protobuf may have, less what heads of tensors take. */
static const int64_t most_bytes = INT32_MAX;
enum { ALIGNMENT = 4096 }; /* of weights in their file, so that they can be mapped */

typedef struct writing {
    const smp_onnx_export *export;
    const char *path, *data_path, *old_data;
    smp__node_out x;
    bool *needed;       /* [ops] */
    bool *read;         /* [tensors] by a needed op */
    int32_t *output;    /* [n_output] tensors */
    const char **named; /* [n_output] */
    int n_output;
    Onnx__ModelProto model;
    Onnx__GraphProto graph;
    Onnx__OperatorSetIdProto opset, *opsets;
    bool apart;
    int64_t weight_bytes, n_weight;
} writing;

static smp_status find_outputs(writing *w)
{
    const smp_onnx_export *e = w->export;
    w->n_output = e->n_tensor > 0 ? e->n_tensor : 1;
    w->output = SMP_ARENA_NEW(w->x.arena, int32_t, (size_t)w->n_output);
    w->named = SMP_ARENA_NEW(w->x.arena, const char *, (size_t)w->n_output);
    if (!w->output || !w->named)
        return SMP_ERR_NO_MEMORY;
    for (int i = 0; i < w->n_output; i++)
        SMP_TRY(
            smp_graph_find_made(e->graph, e->n_tensor > 0 ? e->tensor[i] : NULL, &w->output[i]));
    return SMP_OK;
}

/* From the last op on, whoever makes what is read. */
static void find_needed(writing *w)
{
    const smp_graph *graph = w->export->graph;
    for (int i = 0; i < w->n_output; i++)
        w->needed[graph->tensor[w->output[i]].producer] = true;
    for (int32_t i = graph->n_op - 1; i >= 0; i--)
        for (int32_t k = 0; w->needed[i] && k < graph->op[i].n_in; k++) {
            const int32_t t = graph->op[i].in[k], producer = graph->tensor[t].producer;
            w->read[t] = true;
            if (producer >= 0)
                w->needed[producer] = true;
        }
}

/* Does the file that is there name the other one, in any way? One that cannot be read does not. */
static bool mentions(const char *path, const char *other)
{
    const char *slash = strrchr(other, '/'), *name = slash ? slash + 1 : other;
    const size_t length = strlen(name);
    char *bytes = NULL;
    size_t n = 0;
    bool found = false;
    if (smp_file_read(path, (size_t)most_bytes, &bytes, &n) != SMP_OK)
        return false;
    for (const char *at = bytes, *end = bytes + n;
         !found && at && (at = memchr(at, name[0], (size_t)(end - at))); at++)
        found = (size_t)(end - at) >= length && memcmp(at, name, length) == 0;
    free(bytes);
    return found;
}

/* Two names for the weights: the one that the model which is there does not use, so that it has its
 * own until it is replaced itself. */
static smp_status choose_data(writing *w)
{
    const char *first = smp_arena_printf(w->x.arena, "%s.data", w->path),
               *second = smp_arena_printf(w->x.arena, "%s.data2", w->path);
    if (!first || !second)
        return SMP_ERR_NO_MEMORY;
    const bool first_is_free = access(first, F_OK) != 0 || mentions(w->path, second);
    w->data_path = first_is_free ? first : second;
    w->old_data = first_is_free ? second : first;
    return SMP_OK;
}

static smp_status take_nodes(writing *w)
{
    const smp_graph *graph = w->export->graph;
    smp__node_out *x = &w->x;
    x->model = graph;
    if (!(x->arena = smp_arena_create()) || !(x->known = smp_map_create()))
        return SMP_ERR_NO_MEMORY;
    x->value = SMP_ARENA_NEW(x->arena, const char *, (size_t)graph->n_tensor);
    x->weight_used = SMP_ARENA_NEW(x->arena, bool, (size_t)graph->n_param);
    w->needed = SMP_ARENA_NEW(x->arena, bool, (size_t)graph->n_op);
    w->read = SMP_ARENA_NEW(x->arena, bool, (size_t)graph->n_tensor);
    return x->value && x->weight_used && w->needed && w->read ? choose_data(w) : SMP_ERR_NO_MEMORY;
}

/* [batch, shape], or as it is where all samples have one. */
static Onnx__ValueInfoProto *describe(writing *w, const smp_tensor *tensor, const char *name)
{
    typedef struct made {
        Onnx__ValueInfoProto info;
        Onnx__TypeProto type;
        Onnx__TypeProto__Tensor tensor;
        Onnx__TensorShapeProto shape;
        Onnx__TensorShapeProto__Dimension dim[SMP_MAX_DIMS + 1], *at[SMP_MAX_DIMS + 1];
    } made;
    made *m = SMP_ARENA_NEW(w->x.arena, made, 1);
    if (!m)
        return NULL;
    onnx__value_info_proto__init(&m->info);
    onnx__type_proto__init(&m->type);
    onnx__type_proto__tensor__init(&m->tensor);
    onnx__tensor_shape_proto__init(&m->shape);
    m->info.name = (char *)name;
    m->info.type = &m->type;
    m->type.value_case = ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
    m->type.tensor_type = &m->tensor;
    m->tensor.has_elem_type = 1;
    m->tensor.elem_type = tensor->dtype == SMP_I32 ? ONNX__TENSOR_PROTO__DATA_TYPE__INT32
                                                   : ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT;
    m->tensor.shape = &m->shape;
    m->shape.dim = m->at;
    for (int d = tensor->unsplit ? 0 : -1; d < tensor->shape.n_dim; d++) {
        Onnx__TensorShapeProto__Dimension *dim = &m->dim[m->shape.n_dim];
        onnx__tensor_shape_proto__dimension__init(dim);
        dim->value_case = d < 0 ? ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM
                                : ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
        if (d < 0)
            dim->dim_param = "batch";
        else
            dim->dim_value = tensor->shape.dim[d];
        m->at[m->shape.n_dim++] = dim;
    }
    return &m->info;
}

/* Those that are read, under their own names. */
static smp_status make_inputs(writing *w)
{
    const smp_graph *graph = w->export->graph;
    w->graph.input = SMP_ARENA_NEW(w->x.arena, Onnx__ValueInfoProto *, (size_t)graph->n_input + 1);
    if (!w->graph.input)
        return SMP_ERR_NO_MEMORY;
    for (int32_t t = 0; t < graph->n_input; t++) {
        const smp_tensor *tensor = &graph->tensor[t];
        if (!w->read[t])
            continue;
        if (smp_graph_find_param(graph, tensor->name) >= 0)
            return smp_fail(SMP_ERR_INPUT,
                            "%s: input '%s' has the name of a weight: expected "
                            "another one in an ONNX file",
                            graph->path, tensor->name);
        w->x.value[t] = tensor->name;
        if (!(w->graph.input[w->graph.n_input++] = describe(w, tensor, tensor->name)))
            return SMP_ERR_NO_MEMORY;
    }
    for (int32_t t = 0; t < graph->n_input; t++)
        if (w->read[t] && graph->tensor[t].unsplit)
            w->x.value[t] = smp__node_spread(&w->x, w->x.value[t], &graph->tensor[t].shape);
    return w->x.status;
}

/* A tensor's own name, unless something else has it. */
static const char *output_name(writing *w, int index)
{
    const smp_graph *graph = w->export->graph;
    const char *name = graph->tensor[w->output[index]].name;
    bool taken = smp_graph_find_param(graph, name) >= 0;
    for (int32_t t = 0; t < graph->n_input; t++)
        taken = taken || strcmp(graph->tensor[t].name, name) == 0;
    for (int i = 0; i < index; i++)
        taken = taken || strcmp(w->named[i], name) == 0;
    return taken ? smp__node_text_of(&w->x, "%s#out%d", name, index) : name;
}

static smp_status make_outputs(writing *w)
{
    smp__node_out *x = &w->x;
    x->op = NULL;
    w->graph.output = SMP_ARENA_NEW(x->arena, Onnx__ValueInfoProto *, (size_t)w->n_output);
    if (!w->graph.output)
        return SMP_ERR_NO_MEMORY;
    for (int i = 0; i < w->n_output && x->status == SMP_OK; i++) {
        w->named[i] = output_name(w, i);
        SMP__NODE(x, "Identity", x->value[w->output[i]]);
        SMP_TRY(x->status);
        x->node[x->n_node - 1]->output[0] = (char *)w->named[i];
        w->graph.output[i] = describe(w, &x->model->tensor[w->output[i]], w->named[i]);
        if (!w->graph.output[i])
            return SMP_ERR_NO_MEMORY;
    }
    w->graph.n_output = (size_t)w->n_output;
    return x->status;
}

static smp_status make_nodes(writing *w)
{
    const smp_graph *graph = w->export->graph;
    SMP_TRY(make_inputs(w));
    for (int32_t i = 0; i < graph->n_op; i++) {
        w->x.op = &graph->op[i];
        if (w->needed[i])
            SMP_TRY(smp__export_op(&w->x));
    }
    return make_outputs(w);
}

/* The head of a weight's tensor; its values come later. */
static Onnx__TensorProto *describe_weight(writing *w, const smp_param *param)
{
    smp_arena *arena = w->x.arena;
    Onnx__TensorProto *t = SMP_ARENA_NEW(arena, Onnx__TensorProto, 1);
    int64_t *dims = SMP_ARENA_NEW(arena, int64_t, (size_t)param->shape.n_dim);
    if (!t || !dims)
        return NULL;
    onnx__tensor_proto__init(t);
    memcpy(dims, param->shape.dim, (size_t)param->shape.n_dim * sizeof *dims);
    t->name = (char *)param->name;
    t->dims = dims;
    t->n_dims = (size_t)param->shape.n_dim;
    t->has_data_type = 1;
    t->data_type = ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT;
    return t;
}

/* "location", "offset", "length" of values in the file beside. */
static smp_status point_at(writing *w, Onnx__TensorProto *t, int64_t at, int64_t bytes)
{
    smp_arena *arena = w->x.arena;
    const char *slash = strrchr(w->data_path, '/');
    const char *const text[3][2] = {
        {"location", slash ? slash + 1 : w->data_path},
        {"offset", smp_arena_printf(arena, "%" PRId64, at)},
        {"length", smp_arena_printf(arena, "%" PRId64, bytes)},
    };
    Onnx__StringStringEntryProto *entry = SMP_ARENA_NEW(arena, Onnx__StringStringEntryProto, 3);
    t->external_data = SMP_ARENA_NEW(arena, Onnx__StringStringEntryProto *, 3);
    if (!entry || !t->external_data || !text[1][1] || !text[2][1])
        return SMP_ERR_NO_MEMORY;
    for (int i = 0; i < 3; i++) {
        onnx__string_string_entry_proto__init(&entry[i]);
        entry[i].key = (char *)text[i][0];
        entry[i].value = (char *)text[i][1];
        t->external_data[i] = &entry[i];
    }
    t->n_external_data = 3;
    t->has_data_location = 1;
    t->data_location = ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
    return SMP_OK;
}

/* Values of one weight to the data file, or kept for the model's. */
static smp_status put_weight(writing *w, int32_t param, smp_writer *data, int64_t *at)
{
    static const char zeroes[ALIGNMENT];
    const smp_param *p = &w->export->graph->param[param];
    const size_t bytes = (size_t)p->elements * sizeof(float);
    Onnx__TensorProto *t = describe_weight(w, p);
    if (!t)
        return SMP_ERR_NO_MEMORY;
    float *values = malloc(bytes);
    if (!values)
        return smp_fail_memory(bytes);
    w->graph.initializer[w->graph.n_initializer++] = t;
    t->raw_data = (ProtobufCBinaryData){bytes, (uint8_t *)values}; /* ours to free */
    SMP_TRY(w->export->values(w->export->context, param, values));
    t->has_raw_data = !data;
    if (!data)
        return SMP_OK;
    const int64_t gap = (ALIGNMENT - *at % ALIGNMENT) % ALIGNMENT;
    SMP_TRY(point_at(w, t, *at + gap, (int64_t)bytes));
    smp_status status = smp_writer_add(data, zeroes, (size_t)gap);
    if (status == SMP_OK)
        status = smp_writer_add(data, values, bytes);
    *at += gap + (int64_t)bytes;
    free(values);
    t->raw_data = (ProtobufCBinaryData){0, NULL};
    return status;
}

static void free_weights(writing *w)
{
    for (size_t i = w->x.n_constant; i < w->graph.n_initializer; i++)
        free(w->graph.initializer[i]->raw_data.data);
}

/* What was made for the operators, then the weights that they use, in the model's order. */
static smp_status put_weights(writing *w, smp_writer *data)
{
    const smp_graph *graph = w->export->graph;
    const size_t n = w->x.n_constant + (size_t)w->n_weight;
    int64_t at = 0;
    w->graph.initializer = SMP_ARENA_NEW(w->x.arena, Onnx__TensorProto *, n);
    if (!w->graph.initializer)
        return SMP_ERR_NO_MEMORY;
    if (w->x.n_constant > 0)
        memcpy(w->graph.initializer, w->x.constant, w->x.n_constant * sizeof(void *));
    w->graph.n_initializer = w->x.n_constant;
    for (int32_t i = 0; i < graph->n_param; i++)
        if (w->x.weight_used[i])
            SMP_TRY(put_weight(w, i, data, &at));
    return SMP_OK;
}

static void count_weights(writing *w)
{
    const smp_graph *graph = w->export->graph;
    for (int32_t i = 0; i < graph->n_param; i++)
        if (w->x.weight_used[i]) {
            w->n_weight++;
            w->weight_bytes += graph->param[i].elements * (int64_t)sizeof(float);
        }
}

static void make_model(writing *w)
{
    onnx__operator_set_id_proto__init(&w->opset);
    w->opset.domain = "";
    w->opset.has_version = 1;
    w->opset.version = SMP__OPSET;
    w->opsets = &w->opset;
    onnx__model_proto__init(&w->model);
    w->model.has_ir_version = 1;
    w->model.ir_version = SMP__IR_VERSION;
    w->model.producer_name = "smp";
    w->model.n_opset_import = 1;
    w->model.opset_import = &w->opsets;
    w->model.graph = &w->graph;
    w->graph.name = w->export->graph->name[0] ? (char *)w->export->graph->name : "model";
    w->graph.node = w->x.node;
    w->graph.n_node = w->x.n_node;
}

/* How long the model's file is without weights: those that lie apart take no more than this. */
static int64_t head_bytes(const writing *w)
{
    int64_t bytes = (int64_t)onnx__model_proto__get_packed_size(&w->model) + 4096;
    for (size_t i = 0; i < w->x.n_constant; i++)
        bytes += (int64_t)onnx__tensor_proto__get_packed_size(w->x.constant[i]) + 16;
    return bytes + 1024 * w->n_weight;
}

static smp_status write_model(writing *w, smp_writer *file)
{
    const size_t bytes = onnx__model_proto__get_packed_size(&w->model);
    uint8_t *packed = malloc(bytes);
    if (!packed)
        return smp_fail_memory(bytes);
    onnx__model_proto__pack(&w->model, packed);
    const smp_status status = smp_writer_add(file, packed, bytes);
    free(packed);
    return status;
}

static smp_status write_files(writing *w)
{
    smp_writer *file = NULL, *data = NULL;
    const bool replaces = mentions(w->path, w->old_data); /* the model that is there, if any */
    smp_status status = smp_writer_open(w->path, &file);
    if (status == SMP_OK && w->apart)
        status = smp_writer_open(w->data_path, &data);
    if (status == SMP_OK)
        status = put_weights(w, data);
    if (status == SMP_OK)
        status = write_model(w, file);
    if (data)
        status = smp_writer_close(data, status);
    if (file)
        status = smp_writer_close(file, status);
    if (status == SMP_OK && replaces)
        unlink(w->old_data);
    return status;
}

static smp_status export_all(writing *w)
{
    SMP_TRY(take_nodes(w));
    SMP_TRY(find_outputs(w));
    find_needed(w);
    onnx__graph_proto__init(&w->graph);
    SMP_TRY(make_nodes(w));
    count_weights(w);
    make_model(w);
    w->apart = w->export->apart || head_bytes(w) + w->weight_bytes > most_bytes;
    if (head_bytes(w) > most_bytes)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: the operators alone take more than the 2 GiB that an "
                        "ONNX file may have",
                        w->export->graph->path);
    return write_files(w);
}

smp_status smp_onnx_export_write(const smp_onnx_export *export, const char *path,
                                 smp_onnx_exported *out)
{
    writing w = {.export = export, .path = path};
    const smp_status status = export_all(&w);
    if (status == SMP_OK)
        *out = (smp_onnx_exported){(int64_t)w.x.n_node, w.n_weight, w.weight_bytes, ""};
    if (status == SMP_OK && w.apart)
        snprintf(out->apart, sizeof out->apart, "%s", strrchr(w.data_path, '.'));
    free_weights(&w);
    free(w.x.node);
    free(w.x.constant);
    smp_map_destroy(w.x.known);
    smp_arena_destroy(w.x.arena);
    return status;
}
