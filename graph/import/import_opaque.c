/* A node that no operator of SMP can be: `opaque`, with its shapes, its weights and a cost that is
 * estimated from arithmetic and memory traffic. */
#include "graph/import/importing.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TYPE(name) ONNX__TENSOR_PROTO__DATA_TYPE__##name

enum { MOST_WEIGHTS = 64 /* of one node, which are listed */ };

/* A core of a few years ago; a profile knows better. */
static const double FLOPS_PER_US = 20e3, BYTES_PER_US = 8e3;

static const char *dtype_of(int type)
{
    static const struct {
        int type;
        const char *name;
    } NAMES[] = {{TYPE(FLOAT), "float32"},  {TYPE(FLOAT16), "fp16"}, {TYPE(BFLOAT16), "bf16"},
                 {TYPE(DOUBLE), "float64"}, {TYPE(INT64), "int64"},  {TYPE(UINT64), "int64"},
                 {TYPE(INT32), "int32"},    {TYPE(UINT32), "int32"}, {TYPE(INT16), "int16"},
                 {TYPE(UINT16), "int16"},   {TYPE(INT8), "int8"},    {TYPE(UINT8), "uint8"},
                 {TYPE(BOOL), "bool"}};
    for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++)
        if (NAMES[i].type == type)
            return NAMES[i].name;
    return NULL;
}

/* Multiplications and additions of one sample. */
static double flops_of(const smp_import *im, const smp_onnx_node *node)
{
    const smp_onnx_value *out = smp__onnx_out(im->model, node, 0);
    const smp_onnx_value *a = smp__onnx_in(im->model, node, 0),
                         *w = smp__onnx_in(im->model, node, 1);
    const double n = out ? (double)smp__onnx_elements(out) / (double)im->model->batch : 0;
    if (a && w && (strcmp(node->op, "MatMul") == 0 || strcmp(node->op, "Gemm") == 0))
        return 2 * n * (double)(a->n_dim > 0 ? a->dim[a->n_dim - 1] : 1);
    if (w && w->n_dim > 0 && w->dim[0] > 0 && strncmp(node->op, "Conv", 4) == 0)
        return 2 * n * (double)smp__onnx_elements(w) / (double)w->dim[0];
    if (w && a && a->n_dim > 0 && w->n_dim == 3 && smp_onnx_constant(w)) /* recurrent layers */
        return 2 * (double)a->dim[0] * (double)smp__onnx_elements(w);
    return 4 * n;
}

static double bytes_of(const smp_import *im, const smp_onnx_node *node)
{
    double bytes = 0;
    for (int k = 0; k < node->n_in + node->n_out; k++) {
        const smp_onnx_value *v = k < node->n_in ? smp__onnx_in(im->model, node, k)
                                                 : smp__onnx_out(im->model, node, k - node->n_in);
        if (v && v->n_dim >= 0)
            bytes += (double)smp__onnx_elements(v) * smp__onnx_type_bytes(v->type) /
                     (double)(smp_onnx_constant(v) ? 1 : im->model->batch);
    }
    return bytes;
}

static void write_shape(smp_text *text, const int64_t *dim, int n)
{
    /* More dimensions than SMP has: the last ones become one. */
    for (int d = 0; d < n && d < SMP_MAX_DIMS; d++) {
        int64_t size = dim[d];
        for (int rest = d + 1; d == SMP_MAX_DIMS - 1 && rest < n; rest++)
            size *= dim[rest];
        smp_text_append(text, "%s%lld", d > 0 ? ", " : "", (long long)size);
    }
}

static bool write_output(smp_import *im, const smp_onnx_node *node, int k, const char *name,
                         bool batched, smp_text *text)
{
    const smp_onnx_value *v = smp__onnx_out(im->model, node, k);
    const char *dtype = dtype_of(v->type);
    batched = batched && v->n_dim > 0 && v->dim[0] == im->model->batch;
    if (!dtype) {
        im->status = smp_onnx_fail(im->model, node, "makes values of a type that has no numbers");
        return false;
    }
    const char *tensor = text->length > 0 ? smp__unique(im, name) : name;
    smp_text_append(text, "%s{name: %s, shape: [", text->length > 0 ? ", " : "", tensor);
    write_shape(text, v->dim + batched, v->n_dim - batched);
    smp_text_append(text, "]%s", batched ? "" : ", batched: false");
    if (v->type != TYPE(FLOAT))
        smp_text_append(text, ", dtype: %s", dtype);
    smp_text_append(text, "}");
    smp__bound bound = {.form = SMP__TENSOR,
                        .tensor = tensor,
                        .single = !batched,
                        .is_int = v->type == TYPE(INT32),
                        .opaque = !batched || (v->type != TYPE(FLOAT) && v->type != TYPE(INT32))};
    bound.shape.n_dim = v->n_dim - batched;
    if (bound.shape.n_dim > SMP_MAX_DIMS) {
        bound.opaque = true; /* its shape here is not that in ONNX */
        bound.shape.n_dim = SMP_MAX_DIMS;
    }
    memcpy(bound.shape.dim, v->dim + batched, sizeof(int64_t) * (size_t)bound.shape.n_dim);
    smp__bind(im, node, k, &bound);
    return true;
}

/* Initializers of floats, each a weight once, and then by its name. */
static void write_weights(smp_import *im, const smp_onnx_node *node, smp_text *text)
{
    int n = 0;
    for (int k = 0; k < node->n_in && k < MOST_WEIGHTS; k++) {
        const smp_onnx_value *v = smp__onnx_in(im->model, node, k);
        int64_t at = 0;
        if (!v || v->stored < 0 || !v->floats || smp__onnx_elements(v) < 2 ||
            v->n_dim > SMP_MAX_DIMS)
            continue;
        bool before = false; /* in this node */
        for (int j = 0; j < k; j++) {
            const smp_onnx_value *other = smp__onnx_in(im->model, node, j);
            before |= other && other->stored == v->stored;
        }
        if (before)
            continue;
        char key[32];
        snprintf(key, sizeof(key), "%d", v->stored);
        smp_text_append(text, "%s", n++ > 0 ? ", " : "");
        if (smp_map_get(im->opaque_weights, key, &at)) {
            smp_text_append(text, "%s", (const char *)(intptr_t)at);
            continue;
        }
        const char *name = smp__unique(im, im->model->value[v->stored].name);
        smp_text_append(text, "{name: %s, shape: [", name);
        write_shape(text, v->dim, v->n_dim);
        smp_text_append(text, "]}");
        const char *kept = smp_arena_strdup(im->arena, key);
        if (!kept || smp_map_set(im->opaque_weights, kept, (int64_t)(intptr_t)name) != SMP_OK)
            im->status = SMP_ERR_NO_MEMORY;
    }
}

/* Names of the inputs that are tensors, each once. */
static bool write_inputs(smp_import *im, const smp_onnx_node *node, smp_text *text)
{
    bool batched = false;
    int n = 0;
    for (int k = 0; k < node->n_in; k++) {
        const smp_onnx_value *v = smp__onnx_in(im->model, node, k);
        smp__bound bound;
        if (!v || smp_onnx_constant(v))
            continue;
        if (!smp__tensor_of(im, v, &bound)) {
            /* Whatever its shape: it is only planned. */
            bound = *smp__bound_of(im, v);
            if (bound.form != SMP__TENSOR)
                continue;
        }
        batched |= !bound.single;
        smp_text_append(text, "%s%s", n++ > 0 ? ", " : "", bound.tensor);
    }
    return batched;
}

void smp__comment(smp_text *out, const char *text)
{
    for (int i = 0; text[i] && i < 400; i++)
        smp_text_append(out, "%c", text[i] >= ' ' && text[i] < 127 ? text[i] : '_');
}

void smp__opaque(smp_import *im, const smp_onnx_node *node, const char *why)
{
    smp_text inputs = {0}, outputs = {0}, weights = {0};
    const char *reason = smp_arena_strdup(im->arena, why ? why : "");
    const bool batched = write_inputs(im, node, &inputs);
    const char *name = smp__op_name(im, node, NULL);
    im->done[node - im->model->node] = true;
    for (int k = 0, n = 0; k < node->n_out && im->status == SMP_OK; k++) {
        const smp_onnx_value *v = smp__onnx_out(im->model, node, k);
        if (!v || v->n_dim < 0 || v->type == 0 || smp__onnx_elements(v) < 1)
            continue;
        if (!write_output(im, node, k, n++ > 0 ? v->name : name, batched, &outputs))
            break;
    }
    write_weights(im, node, &weights);
    const double us = flops_of(im, node) / FLOPS_PER_US + bytes_of(im, node) / BYTES_PER_US;
    smp_text_append(&im->ops, "  # ");
    smp__comment(&im->ops, node->op);
    smp_text_append(&im->ops, ": ");
    smp__comment(&im->ops, reason ? reason : "");
    smp_text_append(&im->ops,
                    "\n  - {op: opaque, name: %s, in: [%s], outputs: [%s], weights: [%s], cost: "
                    "{forward_us: %.3g}}\n",
                    name, inputs.data ? inputs.data : "", outputs.data ? outputs.data : "",
                    weights.data ? weights.data : "", us > 0.01 ? us : 0.01);
    if (im->status == SMP_OK && (inputs.failed || outputs.failed || weights.failed))
        im->status = smp_fail_memory(outputs.length);
    if (im->status == SMP_OK && !outputs.data)
        im->status = smp_onnx_fail(im->model, node, "makes nothing whose shape is known");
    im->n_op++;
    im->n_opaque++;
    smp_text_free(&inputs);
    smp_text_free(&outputs);
    smp_text_free(&weights);
}
