/* The walk over the nodes, and the model file that it writes. */
#include "graph/import/importing.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TEXT = 256 << 20 };

#define TYPE(name) ONNX__TENSOR_PROTO__DATA_TYPE__##name

static const smp__converter *const TABLES[] = {smp__convert_arithmetic, smp__convert_layers,
                                               smp__convert_layout, smp__convert_pictures};

static const smp__converter *converter_of(const char *op)
{
    for (size_t t = 0; t < sizeof(TABLES) / sizeof(TABLES[0]); t++)
        for (const smp__converter *c = TABLES[t]; c->op; c++)
            if (strcmp(c->op, op) == 0)
                return c;
    return NULL;
}

const smp__bound *smp__peek(smp_import *im, const smp_onnx_node *node, int k)
{
    const smp_onnx_value *v = smp__onnx_in(im->model, node, k);
    return v ? smp__bound_of(im, v) : NULL;
}

int64_t smp__product(const smp_shape *shape, int begin, int end)
{
    int64_t n = 1;
    for (int d = begin; d < end && d < shape->n_dim; d++)
        n *= shape->dim[d];
    return n;
}

bool smp__sample_shape(const smp_import *im, const smp_onnx_value *value, smp_shape *out)
{
    if (value->n_dim < 1 || value->n_dim - 1 > SMP_MAX_DIMS || value->dim[0] != im->model->batch)
        return false;
    out->n_dim = value->n_dim - 1;
    memcpy(out->dim, value->dim + 1, sizeof(int64_t) * (size_t)out->n_dim);
    return true;
}

int smp__sample_axis(const smp__bound *bound, int64_t axis, int n_dim)
{
    int at;
    if (!smp__onnx_axis(axis, n_dim, &at))
        return -1;
    if (bound->single)
        return at;
    return at == 0 ? -1 : at - 1 + bound->merged;
}

void smp__bind(smp_import *im, const smp_onnx_node *node, int k, const smp__bound *bound)
{
    const smp_onnx_value *v = smp__onnx_out(im->model, node, k);
    if (v)
        *smp__bound_of(im, v) = *bound;
}

void smp__bind_tensor(smp_import *im, const smp_onnx_node *node, int k, const char *tensor,
                      const smp_shape *shape, int merged)
{
    smp__bind(
        im, node, k,
        &(smp__bound){.form = SMP__TENSOR, .tensor = tensor, .shape = *shape, .merged = merged});
}

static bool same_dims(const int64_t *a, const int64_t *b, int n)
{
    return memcmp(a, b, sizeof(*a) * (size_t)n) == 0;
}

const char *smp__reshaped(smp_import *im, const char *near, const char *tensor,
                          const smp_shape *from, const smp_shape *to)
{
    if (from->n_dim == to->n_dim && same_dims(from->dim, to->dim, to->n_dim))
        return tensor;
    smp_text shape = {0};
    for (int d = 0; d < to->n_dim; d++)
        smp_text_append(&shape, "%s%lld", d > 0 ? ", " : "", (long long)to->dim[d]);
    const char *name = smp__emit_one(im, "reshape", smp__unique(im, near), tensor, ", shape: [%s]}",
                                     shape.data ? shape.data : "");
    smp_text_free(&shape);
    return name;
}

/* Does a bound tensor look as ONNX says? If not so, it becomes one that does. */
static bool as_in_onnx(smp_import *im, const smp_onnx_value *value, smp__bound *bound)
{
    smp_shape wanted;
    if (bound->single)
        return value->n_dim == bound->shape.n_dim &&
               same_dims(value->dim, bound->shape.dim, value->n_dim);
    const int rest = bound->shape.n_dim - bound->merged;
    if (bound->merged > 0 && rest == value->n_dim - 1 &&
        same_dims(value->dim + 1, bound->shape.dim + bound->merged, rest))
        return true;
    if (!smp__sample_shape(im, value, &wanted) ||
        smp__product(&wanted, 0, wanted.n_dim) !=
            smp__product(&bound->shape, 0, bound->shape.n_dim))
        return false;
    bound->tensor = smp__reshaped(im, bound->tensor, bound->tensor, &bound->shape, &wanted);
    bound->shape = wanted;
    bound->merged = 0;
    return true;
}

bool smp__tensor_of(smp_import *im, const smp_onnx_value *value, smp__bound *out)
{
    smp__bound *bound = smp__bound_of(im, value);
    if (bound->form == SMP__HEADS) {
        smp__bound tensor;
        if (smp__axes_write(im, bound, &tensor))
            *bound = tensor;
    }
    if (bound->form != SMP__TENSOR && bound->form != SMP__NOTHING && value->producer >= 0)
        smp__opaque(im, &im->model->node[value->producer],
                    "a part of attention that is read elsewhere");
    if (bound->form != SMP__TENSOR)
        return smp__refuse(im, "input '%.60s' is a constant", value->name);
    if (!as_in_onnx(im, value, bound))
        return smp__refuse(im, "input '%.60s' mixes samples", value->name);
    *out = *bound;
    return true;
}

bool smp__tensor_in(smp_import *im, const smp_onnx_node *node, int k, smp__bound *out)
{
    const smp_onnx_value *v = smp__onnx_in(im->model, node, k);
    if (!v)
        return smp__refuse(im, "input %d is left out", k);
    if (!smp__tensor_of(im, v, out))
        return false;
    if (out->is_int || out->opaque)
        return smp__refuse(im, "input '%.60s' is not of float32 with a batch", v->name);
    return true;
}

bool smp__refuse(smp_import *im, const char *format, ...)
{
    char buffer[400];
    va_list args;
    va_start(args, format);
    vsnprintf(buffer, sizeof(buffer), format, args);
    va_end(args);
    im->why = smp_arena_strdup(im->arena, buffer);
    return false;
}

static const char *dtype_of(int type)
{
    switch (type) {
    case TYPE(FLOAT):
        return "float32";
    case TYPE(INT64):
    case TYPE(INT32):
    case TYPE(UINT32):
    case TYPE(UINT64):
        return "int32"; /* indices, which the file has in 64 bits */
    case TYPE(FLOAT16):
        return "fp16";
    case TYPE(BFLOAT16):
        return "bf16";
    case TYPE(DOUBLE):
        return "float64";
    case TYPE(INT16):
    case TYPE(UINT16):
        return "int16";
    case TYPE(INT8):
        return "int8";
    case TYPE(UINT8):
        return "uint8";
    case TYPE(BOOL):
        return "bool";
    default:
        return NULL;
    }
}

static void note_computed(smp_import *im, const char *tensor, const char *name)
{
    smp_text_append(&im->notes, "# input %s: what the file computes from others as '", tensor);
    smp__comment(&im->notes, name);
    smp_text_append(&im->notes, "'\n");
}

static smp_status bind_input(smp_import *im, smp_onnx_value *v)
{
    smp__bound *bound = smp__bound_of(im, v);
    const char *dtype = dtype_of(v->type);
    const int first = v->batched ? 1 : 0;
    if (!dtype || v->n_dim - first > SMP_MAX_DIMS)
        return smp_fail(SMP_ERR_INPUT, "%s: input '%.100s': %s", im->model->file->path, v->name,
                        dtype ? "has too many dimensions" : "has a type without numbers");
    bound->form = SMP__TENSOR;
    bound->tensor = smp__unique(im, v->name);
    if (v->producer >= 0)
        note_computed(im, bound->tensor, v->name);
    bound->single = !v->batched;
    bound->is_int = strcmp(dtype, "int32") == 0;
    bound->opaque = !bound->is_int && v->type != TYPE(FLOAT);
    bound->shape.n_dim = v->n_dim - first;
    memcpy(bound->shape.dim, v->dim + first, sizeof(int64_t) * (size_t)bound->shape.n_dim);
    smp_text_append(&im->inputs, "  %s: {dtype: %s, shape: [", bound->tensor, dtype);
    for (int d = 0; d < bound->shape.n_dim; d++)
        smp_text_append(&im->inputs, "%s%lld", d > 0 ? ", " : "", (long long)bound->shape.dim[d]);
    smp_text_append(&im->inputs, "]%s}\n", bound->single ? ", split: false" : "");
    return SMP_OK;
}

/* Nothing, put behind something: what rotary positions leave of heads that turn as a whole. */
static bool is_nothing(const smp_import *im, const smp_onnx_node *node)
{
    const smp_onnx_value *out = smp__onnx_out(im->model, node, 0);
    const int32_t reader = out ? im->reader[out - im->model->value] : -1;
    return node->n_out == 1 && out && out->inferred && smp__onnx_elements(out) == 0 &&
           out->n_use == 1 && reader >= 0 && strcmp(im->model->node[reader].op, "Concat") == 0;
}

static void take_node(smp_import *im, const smp_onnx_node *node)
{
    const smp__converter *converter = converter_of(node->op);
    bool shapes = true;
    im->node = node;
    if (is_nothing(im, node))
        return;
    for (int k = 0; k < node->n_out; k++) {
        const smp_onnx_value *v = smp__onnx_out(im->model, node, k);
        shapes &= !v || v->n_use == 0 || smp_onnx_constant(v) ||
                  (v->n_dim >= 0 && smp__onnx_elements(v) > 0 && v->type != 0);
    }
    const smp_onnx_value *out = smp__onnx_out(im->model, node, 0);
    im->why = "no operator of SMP does this";
    if (!shapes && im->status == SMP_OK) {
        im->status =
            smp_onnx_fail(im->model, node, "the shape of what it makes is not known, or is empty");
        return;
    }
    if (converter && (!out || !out->inferred))
        im->why = "its shape does not follow from its inputs and attributes";
    else if (converter && converter->convert(im, node))
        return;
    smp__opaque(im, node, im->why);
}

static smp_status take_nodes(smp_import *im)
{
    const smp_onnx_model *m = im->model;
    for (int32_t i = 0; i < m->n_node; i++)
        for (int k = 0; m->node[i].live && k < m->node[i].n_in; k++)
            if (m->node[i].in[k] >= 0)
                im->reader[m->node[i].in[k]] = i;
    for (int32_t i = 0; i < m->n_value; i++)
        if (m->value[i].input && m->value[i].n_use > 0)
            SMP_TRY(bind_input(im, &m->value[i]));
    for (int32_t i = 0; i < m->n_node && im->status == SMP_OK; i++)
        if (m->node[i].live && !im->done[i]) {
            im->done[i] = true;
            take_node(im, &m->node[i]);
            if (im->ops.length > MOST_TEXT && im->status == SMP_OK)
                im->status = smp_onnx_fail(m, &m->node[i],
                                           "the model's text is longer than %d bytes", MOST_TEXT);
        }
    return im->status;
}

/* An output that is no operator's is passed through one, so that it has a name and a model at least
 * one operator. */
static smp_status take_outputs(smp_import *im)
{
    const Onnx__GraphProto *graph = im->model->file->model->graph;
    im->output = SMP_ARENA_NEW(im->arena, smp_imported_output, graph->n_output);
    if (!im->output)
        return SMP_ERR_NO_MEMORY;
    for (size_t i = 0; i < graph->n_output && im->status == SMP_OK; i++) {
        int64_t at = -1;
        smp__bound bound;
        smp_map_get(im->model->by_name, graph->output[i]->name, &at);
        const smp_onnx_value *v = &im->model->value[at];
        im->output[im->n_output++] = (smp_imported_output){v->name, NULL};
        if (smp_onnx_constant(v) || !smp__tensor_of(im, v, &bound))
            continue;
        if (v->input && !bound.is_int && !bound.opaque)
            bound.tensor =
                smp__emit_one(im, "scale", smp__unique(im, "output"), bound.tensor, ", factor: 1}");
        im->output[im->n_output - 1].tensor = bound.tensor;
    }
    if (im->status == SMP_OK && im->n_op == 0)
        return smp_fail(SMP_ERR_INPUT, "%s: no output depends on an input by an operator",
                        im->model->file->path);
    return im->status;
}

/* An input that only folded or dropped nodes read is no input of the model. */
static smp_status add_loss(smp_import *im)
{
    const char *loss = im->options->loss, *tensor = im->n_output > 0 ? im->output[0].tensor : NULL;
    const smp__bound *bound = NULL;
    if (strcmp(loss, "cross_entropy") != 0 && strcmp(loss, "mse") != 0) {
        static const char *const NAMES[] = {"cross_entropy", "mse"};
        return smp_fail_choice((smp_where){0}, "--loss", loss, NAMES, 2);
    }
    for (int32_t i = 0; tensor && i < im->model->n_value; i++)
        if (im->bound[i].form == SMP__TENSOR && im->bound[i].tensor == tensor)
            bound = &im->bound[i];
    const bool classes = strcmp(loss, "cross_entropy") == 0;
    if (!bound || bound->single || bound->is_int || bound->opaque ||
        bound->shape.n_dim < (classes ? 1 : 0))
        return smp_fail(SMP_ERR_INPUT,
                        "%s: --loss %s: the first output is no float tensor with a batch",
                        im->model->file->path, loss);
    const char *targets = smp__unique(im, "targets");
    smp_text_append(&im->inputs, "  %s: {dtype: %s, shape: [", targets,
                    classes ? "int32" : "float32");
    for (int d = 0; d < bound->shape.n_dim - (classes ? 1 : 0); d++)
        smp_text_append(&im->inputs, "%s%lld", d > 0 ? ", " : "", (long long)bound->shape.dim[d]);
    smp_text_append(&im->inputs, "]}\n");
    const char *const in[] = {tensor, targets};
    smp_text_append(&im->ops, "loss: %s\n",
                    smp__emit(im, loss, smp__unique(im, "loss"), in, 2, "}"));
    return im->status;
}

static smp_status write_text(smp_import *im)
{
    const smp_onnx_model *m = im->model;
    const Onnx__ModelProto *file = m->file->model;
    smp_text *text = &im->text;
    smp_text_append(text, "# Imported from ONNX, operator set %d", m->opset);
    if (file->producer_name && *file->producer_name)
        smp_text_append(text, ", of %s", smp__unique(im, file->producer_name));
    smp_text_append(text, ". %d of %d operators are planned, not run.\n", im->n_opaque, im->n_op);
    for (int i = 0; i < im->n_output; i++)
        if (im->output[i].tensor)
            smp_text_append(text, "# output %d: %s\n", i, im->output[i].tensor);
    smp_text_append(text, "%s", im->notes.data ? im->notes.data : "");
    const char *name = file->graph->name && *file->graph->name ? file->graph->name : "imported";
    smp_text_append(text, "smp: 1\nname: %s\n", smp__unique(im, name));
    if (!im->options->loss)
        smp_text_append(text, "mode: inference\n");
    smp_text_append(text, "inputs:\n%sops:\n%s", im->inputs.data ? im->inputs.data : "  {}\n",
                    im->ops.data ? im->ops.data : "");
    return text->failed || im->notes.failed || im->inputs.failed || im->ops.failed
               ? smp_fail_memory(im->ops.length)
               : SMP_OK;
}

static smp_status import_graph(smp_import *im)
{
    const smp_onnx_model *m = im->model;
    im->arena = smp_arena_create();
    im->names = smp_map_create();
    im->opaque_weights = smp_map_create();
    im->matrices = smp_map_create();
    im->parts = smp_map_create();
    if (!im->arena || !im->names || !im->opaque_weights || !im->matrices || !im->parts)
        return smp_fail_memory(sizeof(*im));
    im->bound = SMP_ARENA_NEW(im->arena, smp__bound, m->n_value);
    im->reader = SMP_ARENA_NEW(im->arena, int32_t, m->n_value);
    im->done = SMP_ARENA_NEW(im->arena, bool, m->n_node);
    if (!im->bound || !im->reader || !im->done)
        return SMP_ERR_NO_MEMORY;
    memset(im->reader, -1, sizeof(*im->reader) * (size_t)m->n_value);
    SMP_TRY(smp__take_indices(im));
    SMP_TRY(take_nodes(im));
    SMP_TRY(take_outputs(im));
    if (im->options->loss)
        SMP_TRY(add_loss(im));
    return write_text(im);
}

smp_status smp_import_onnx(smp_onnx_model *model, const smp_import_options *options,
                           smp_import **out)
{
    smp_import *im = calloc(1, sizeof(*im));
    if (!im)
        return smp_fail_memory(sizeof(*im));
    im->model = model;
    im->options = options;
    smp_status status = smp__find_patterns(model);
    if (status == SMP_OK)
        status = import_graph(im);
    if (status == SMP_OK)
        *out = im;
    else
        smp_import_destroy(im);
    return status;
}

void smp_import_destroy(smp_import *import)
{
    if (!import)
        return;
    smp_text_free(&import->inputs);
    smp_text_free(&import->ops);
    smp_text_free(&import->text);
    smp_text_free(&import->notes);
    free(import->weight);
    smp_map_destroy(import->names);
    smp_map_destroy(import->opaque_weights);
    smp_map_destroy(import->matrices);
    smp_map_destroy(import->parts);
    smp_arena_destroy(import->arena);
    free(import);
}

const char *smp_import_text(const smp_import *import)
{
    return import->text.data;
}

int smp_import_opaque(const smp_import *import)
{
    return import->n_opaque;
}

const smp_imported_output *smp_import_outputs(const smp_import *import, int *n)
{
    *n = import->n_output;
    return import->output;
}

const char *smp_import_input(const smp_import *import, const char *name)
{
    int64_t at;
    if (!smp_map_get(import->model->by_name, name, &at) || !import->model->value[at].input)
        return NULL;
    return import->bound[at].tensor;
}
