/* Names, operators and weights of the model file that is being written. */
#include "graph/import/importing.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/safetensors/safetensors_write.h"

enum { MOST_NAME = 180 /* room for what is put after it */ };

const char *smp__unique(smp_import *im, const char *name)
{
    char clean[MOST_NAME + 1];
    size_t n = 0;
    name += *name == '/';
    for (; *name && n < MOST_NAME; name++) {
        const unsigned char c = (unsigned char)*name;
        const bool fits = c < 128 && (isalnum(c) || c == '.' || c == '_' || c == '-');
        if (n == 0 && !isalpha(c) && c != '_')
            clean[n++] = 'x';
        if (n < MOST_NAME)
            clean[n++] = fits ? (char)c : c == '/' ? '.' : '_';
    }
    if (n == 0)
        clean[n++] = 'x';
    clean[n] = '\0';
    if (strcmp(clean, "null") == 0) /* nothing, in YAML */
        strcpy(clean, "null_");
    char numbered[MOST_NAME + 24];
    int64_t count, taken;
    const bool again = smp_map_get(im->names, clean, &count);
    smp_status status = SMP_OK;
    if (again) {
        /* The number of a name is the last one that was put after it. */
        do
            snprintf(numbered, sizeof(numbered), "%s_%lld", clean, (long long)++count);
        while (smp_map_get(im->names, numbered, &taken));
        status = smp_map_set(im->names, clean, count); /* which is there: its key stays */
    }
    const char *made = smp_arena_strdup(im->arena, again ? numbered : clean);
    if (status != SMP_OK || !made || smp_map_set(im->names, made, 1) != SMP_OK) {
        im->status = SMP_ERR_NO_MEMORY;
        return "x";
    }
    return made;
}

/* Did an exporter make the name up? */
static bool made_up(const char *name)
{
    return strstr(name, "::") || strncmp(name, "val_", 4) == 0 || !strchr(name, '.');
}

const char *smp__number(smp_import *im, double value)
{
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, value);
        if ((float)strtod(text, NULL) == (float)value)
            break;
    }
    const char *made = smp_arena_strdup(im->arena, text);
    return made ? made : "0";
}

const char *smp__op_name(smp_import *im, const smp_onnx_node *node, const smp_onnx_value *weight)
{
    if (weight && weight->stored >= 0)
        weight = &im->model->value[weight->stored];
    const smp__onnx_note module = smp__onnx_module(node);
    if (weight && module.length > 0 && smp__onnx_reads_another(node, weight->name))
        return smp__unique(
            im, smp_arena_printf(im->arena, "%.*s",
                                 (int)(module.length < MOST_NAME ? module.length : MOST_NAME),
                                 module.text));
    if (weight && !made_up(weight->name)) {
        const size_t n = (size_t)(strrchr(weight->name, '.') - weight->name);
        if (n > 0)
            return smp__unique(im, smp_arena_printf(im->arena, "%.*s",
                                                    (int)(n < MOST_NAME ? n : MOST_NAME),
                                                    weight->name));
    }
    const char *name = node->name[0] == '/' ? node->name + 1 : node->name;
    char *path = smp_arena_strdup(im->arena, name);
    if (!path)
        return "x";
    char *last = strrchr(path, '/');
    if (node->name[0] == '/' && last && weight)
        *last = '\0';
    for (char *c = path; *c; c++)
        *c = *c == '/' ? '.' : *c;
    return smp__unique(im, *path ? path : node->op);
}

static void write_op(smp_import *im, const char *kind, const char *name, const char *const *inputs,
                     int n, const char *rest)
{
    smp_text_append(&im->ops, "  - {op: %s, name: %s, in: %s", kind, name, n == 1 ? "" : "[");
    for (int i = 0; i < n; i++)
        smp_text_append(&im->ops, "%s%s", i > 0 ? ", " : "", inputs[i]);
    smp_text_append(&im->ops, "%s, out: %s%s\n", n == 1 ? "" : "]", name, rest);
    im->n_op++;
}

const char *smp__emit(smp_import *im, const char *kind, const char *name, const char *const *inputs,
                      int n, const char *format, ...)
{
    char rest[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(rest, sizeof(rest), format, args);
    va_end(args);
    write_op(im, kind, name, inputs, n, rest);
    return name;
}

const char *smp__emit_one(smp_import *im, const char *kind, const char *name, const char *input,
                          const char *format, ...)
{
    char rest[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(rest, sizeof(rest), format, args);
    va_end(args);
    write_op(im, kind, name, &input, 1, rest);
    return name;
}

void smp__split(smp_import *im, const char *name, const char *tensor, int axis, int n,
                const int64_t *size, const char **part)
{
    smp_text_append(&im->ops, "  - {op: split, name: %s, in: %s, out: [", name, tensor);
    for (int k = 0; k < n; k++) {
        part[k] = smp__unique(im, smp_arena_printf(im->arena, "%s.%d", name, k));
        smp_text_append(&im->ops, "%s%s", k > 0 ? ", " : "", part[k]);
    }
    smp_text_append(&im->ops, "], axis: %d, sizes: [", axis);
    for (int k = 0; k < n; k++)
        smp_text_append(&im->ops, "%s%lld", k > 0 ? ", " : "", (long long)size[k]);
    smp_text_append(&im->ops, "]}\n");
    im->n_op++;
}

/* The exporter's name for what it computed, "embedding_1", without the number. */
static bool is_named(const smp_onnx_value *v, const char *op)
{
    const size_t n = strlen(op);
    return strncmp(v->name, op, n) == 0 &&
           (!v->name[n] || (v->name[n] == '_' &&
                            strspn(v->name + n + 1, "0123456789") == strlen(v->name + n + 1)));
}

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Of the first sample. */
static bool rows_differ(smp_import *im, const smp_onnx_value *v)
{
    const int64_t d = v->n_dim > 1 ? v->dim[v->n_dim - 1] : 0;
    const int64_t rows = v->n_dim > 1 ? v->dim[v->n_dim - 2] : 0;
    if (!v->floats || d < 1 || !smp__onnx_work(im->model, rows * d))
        return false;
    uint64_t *hash = smp__onnx_take(im->model, rows, sizeof(*hash));
    for (int64_t r = 0; hash && r < rows; r++)
        hash[r] = smp_hash(0, v->floats + r * d, sizeof(float) * (size_t)d);
    if (hash)
        qsort(hash, (size_t)rows, sizeof(*hash), by_value);
    bool differ = hash;
    for (int64_t r = 1; r < rows && differ; r++)
        differ = hash[r] != hash[r - 1];
    return differ;
}

/* Does a node say what it was made of, and none that reads the initializer of a parameter? */
static bool is_computed(const smp_import *im, const smp_onnx_value *v)
{
    const smp_onnx_model *m = im->model;
    bool says = false;
    for (int32_t i = 0; i < m->n_node; i++)
        for (int k = 0; k < m->node[i].n_in; k++) {
            if (m->node[i].in[k] < 0 || &m->value[m->node[i].in[k]] != v)
                continue;
            if (smp__onnx_parameters(&m->node[i]) != 0 || smp__onnx_reads_buffer(&m->node[i]))
                return false;
            says = true;
        }
    return says;
}

/* An initializer that is no parameter: PyTorch's exporter computed it, of weights or of none. As a
 * weight of its own it trains alike where its values are those of a weight, each once. */
static bool computed_alike(smp_import *im, const smp_onnx_value *v)
{
    static const char *const MOVES[] = {"slice",   "select",    "view",    "reshape",
                                        "permute", "transpose", "t",       "unsqueeze",
                                        "squeeze", "clone",     "detach_", "alias"};
    if (!is_computed(im, v))
        return true;
    for (size_t k = 0; k < sizeof(MOVES) / sizeof(MOVES[0]); k++)
        if (is_named(v, MOVES[k]))
            return true;
    if (is_named(v, "embedding") && rows_differ(im, v))
        return true;
    if (is_named(v, "expand") && v->n_dim > 1 && v->dim[0] == im->model->batch)
        return true; /* to all samples */
    if (is_named(v, "add")) {
        smp_text_append(&im->notes, "# ");
        smp__comment(&im->notes, v->name);
        smp_text_append(&im->notes, ": the exporter computed it, and it is trained as a weight\n");
        return true;
    }
    return smp__refuse(im, "'%.60s' is computed by the exporter: not a weight to be trained",
                       v->name);
}

bool smp__trainable(smp_import *im, const smp_onnx_value *value)
{
    if (!im->options->loss)
        return true;
    if (value->stored < 0 || value->repeats)
        return smp__refuse(im,
                           "'%.60s' is computed from other constants: not a weight to be trained",
                           value->name);
    return computed_alike(im, &im->model->value[value->stored]);
}

/* What PyTorch does not train, or may not: a buffer by its own word, or by no word. */
static void note_buffer(smp_import *im, const smp__weight *w)
{
    const char *stored = w->stored >= 0 ? im->model->value[w->stored].name : "";
    const char *role = strrchr(stored, '.');
    if (!im->options->loss || !im->node || !*stored)
        return;
    if (smp__onnx_reads_buffer(im->node))
        smp_text_append(&im->notes,
                        "# %s: a buffer, which PyTorch does not train: smp-partition --freeze "
                        "'%s'\n",
                        w->name, w->name);
    else if (smp__onnx_parameters(im->node) < 0 && strncmp(stored, "onnx::MatMul", 12) != 0 &&
             !(role && (strcmp(role, ".weight") == 0 || strcmp(role, ".bias") == 0)))
        smp_text_append(&im->notes,
                        "# %s: trained here; if it is a buffer in PyTorch, or computed of other "
                        "weights: smp-partition --freeze '%s'\n",
                        w->name, w->name);
}

static float value_at(const smp__weight *w, int64_t i)
{
    if (!w->values)
        return w->fill;
    if (w->columns == 0)
        return w->values[i];
    const int64_t in = w->shape.dim[1];
    return w->values[i % in * w->columns + i / in];
}

static bool same_weight(smp_import *im, const smp__weight *a, const smp__weight *b)
{
    int64_t n = 0;
    if (!smp_stored_shape_equal(&a->shape, &b->shape) || !smp_stored_elements(&a->shape, &n))
        return false;
    if (a->values == b->values && a->columns == b->columns)
        return true;
    if (!smp__onnx_work(im->model, n))
        return false;
    for (int64_t i = 0; i < n; i++)
        if (value_at(a, i) != value_at(b, i))
            return false;
    return true;
}

static void add(smp_import *im, const smp__weight *w)
{
    smp_status status = smp_array_reserve(&im->weight, &im->weight_capacity, sizeof(*im->weight),
                                          (size_t)im->n_weight + 1);
    if (status == SMP_OK)
        im->weight[im->n_weight++] = *w;
    else
        im->status = status;
}

/* A hash of matrices whose values are not all the same: exporters write a transposed copy of a
 * weight that two layers share. */
static uint64_t hash_of(smp_import *im, const smp__weight *w)
{
    int64_t n = 0;
    uint64_t hash = (uint64_t)w->shape.n_dim;
    bool differ = false;
    if (w->shape.n_dim < 2 || w->stored < 0 || !smp_stored_elements(&w->shape, &n) ||
        !smp__onnx_work(im->model, n))
        return 0;
    for (int64_t i = 0; i < n; i++) {
        const float value = value_at(w, i);
        differ |= value != value_at(w, 0);
        hash = smp_hash(hash, &value, sizeof(value));
    }
    return differ ? hash | 1 : 0;
}

/* An earlier matrix of the same values of which this is the transposed copy, or NULL; the next one
 * finds this. Equal ones that lie alike are layers that begin alike. */
static const smp__weight *same_matrix(smp_import *im, const smp__weight *w)
{
    const uint64_t hash = hash_of(im, w);
    int64_t at;
    if (hash == 0)
        return NULL;
    const char *key = smp_arena_printf(im->arena, "%llx", (unsigned long long)hash);
    if (key && smp_map_get(im->matrices, key, &at) &&
        (im->weight[at].columns > 0) != (w->columns > 0) && same_weight(im, &im->weight[at], w))
        return &im->weight[at];
    if (!key || smp_map_set(im->matrices, key, im->n_weight) != SMP_OK)
        im->status = SMP_ERR_NO_MEMORY;
    return NULL;
}

static bool all_equal(const smp__weight *w)
{
    int64_t n = 0;
    if (!smp_stored_elements(&w->shape, &n))
        return false;
    for (int64_t i = 1; i < n; i++)
        if (value_at(w, i) != value_at(w, 0))
            return false;
    return true;
}

/* The node if the weight's initializer is one of its inputs. */
static const smp_onnx_node *reader_of(smp_import *im, const smp__weight *w)
{
    for (int k = 0; im->node && k < im->node->n_in; k++) {
        const smp_onnx_value *v = smp__onnx_in(im->model, im->node, k);
        if (v && v->stored == w->stored)
            return im->node;
    }
    return NULL;
}

/* Is node "/h.0/fc/Add" of the module whose weight "h.0.fc.bias" is? So is "/h.0/fc_1/Add", where
 * it is called again. */
static bool in_module(const smp_onnx_node *node, const char *weight)
{
    const char *role = strrchr(weight, '.'), *op = strrchr(node->name, '/');
    if (node->name[0] != '/' || !role || op - node->name <= role - weight)
        return false;
    const char *c = node->name + 1;
    for (; weight < role; c++, weight++)
        if (*c != *weight && !(*c == '/' && *weight == '.'))
            return false;
    return c == op || (*c == '_' && c + 1 + strspn(c + 1, "0123456789") == op);
}

/* Exporters store equal weights once. Are these one parameter of several layers, or several that
 * began alike? Where neither notes nor names say, ones and zeroes are taken for several. */
static bool is_shared(smp_import *im, const smp__weight *a, const smp__weight *b)
{
    const bool noted = a->reader && b->reader && smp__onnx_parameters(a->reader) > 0 &&
                       smp__onnx_parameters(b->reader) > 0;
    if (a->stored != b->stored || (b->reader && noted))
        return noted && smp__onnx_share_parameter(a->reader, b->reader);
    return !b->reader || !all_equal(b) || in_module(b->reader, im->model->value[b->stored].name);
}

bool smp__lost_bias(smp_import *im, const char *name, int64_t n)
{
    if (smp__onnx_parameters(im->node) != 2)
        return false;
    smp__fill_weight(im, name, "bias", n, 0);
    return true;
}

const char *smp__add_weight(smp_import *im, const char *name, const char *role, smp_shape shape,
                            const smp_onnx_value *value, const float *values, bool transposed)
{
    smp__weight w = {.name = smp_arena_printf(im->arena, "%s.%s", name, role),
                     .values = values,
                     .columns = transposed ? shape.dim[0] : 0,
                     .stored = value->stored};
    w.shape.n_dim = shape.n_dim;
    memcpy(w.shape.dim, shape.dim, sizeof(int64_t) * (size_t)shape.n_dim);
    w.reader = reader_of(im, &w);
    const smp__weight *like = NULL;
    for (int32_t i = 0; i < im->n_weight && w.stored >= 0; i++) {
        const smp__weight *other = &im->weight[i];
        if (!smp_stored_shape_equal(&other->shape, &w.shape))
            continue;
        const size_t length = strlen(name); /* an operator cannot be tied to itself */
        const bool own = strncmp(other->name, name, length) == 0 && other->name[length] == '.' &&
                         !strchr(other->name + length + 1, '.');
        const bool shared = !own && is_shared(im, other, &w);
        if (own || (!shared && (like || other->stored != w.stored)) || !same_weight(im, other, &w))
            continue;
        if (shared) {
            smp_text_append(&im->notes, "# %s: tied to %s\n", w.name, other->name);
            return other->name;
        }
        like = other;
    }
    if (like)
        smp_text_append(&im->notes, "# %s: a weight of its own, stored as %s\n", w.name,
                        like->name);
    const smp__weight *same = like ? NULL : same_matrix(im, &w);
    if (same)
        return same->name;
    add(im, &w);
    note_buffer(im, &w);
    return NULL;
}

void smp__fill_weight(smp_import *im, const char *name, const char *role, int64_t n, float fill)
{
    add(im, &(smp__weight){.name = smp_arena_printf(im->arena, "%s.%s", name, role),
                           .shape = {1, {n}},
                           .fill = fill,
                           .stored = -1});
}

const char *smp__ties(smp_import *im, const char *const *role, const char *const *tied, int n)
{
    smp_text text = {0};
    for (int i = 0; i < n; i++)
        if (tied[i])
            smp_text_append(&text, "%s%s: %s", text.data ? ", " : ", tie: {", role[i], tied[i]);
    const char *made = text.data ? smp_arena_printf(im->arena, "%s}", text.data) : "";
    smp_text_free(&text);
    return made;
}

int32_t smp_import_weights(const smp_import *import)
{
    return import->n_weight;
}

bool smp_import_weight(const smp_import *import, const char *name, float *values, int64_t elements)
{
    for (int32_t i = 0; i < import->n_weight; i++) {
        const smp__weight *w = &import->weight[i];
        int64_t n = 0;
        if (strcmp(w->name, name) != 0)
            continue;
        if (!smp_stored_elements(&w->shape, &n) || n != elements)
            return false;
        for (int64_t k = 0; k < n; k++)
            values[k] = value_at(w, k);
        return true;
    }
    return false;
}

/* A block of values at a time. */
static smp_status write_values(smp_writer *out, const smp__weight *w)
{
    enum { BLOCK = 1 << 16 };
    int64_t n = 0;
    smp_stored_elements(&w->shape, &n);
    if (w->values && w->columns == 0)
        return smp_writer_add(out, w->values, (size_t)n * sizeof(float));
    float *block = malloc(BLOCK * sizeof(*block));
    if (!block)
        return smp_fail_memory(BLOCK * sizeof(*block));
    smp_status status = SMP_OK;
    for (int64_t begin = 0; begin < n && status == SMP_OK; begin += BLOCK) {
        const int64_t count = n - begin < BLOCK ? n - begin : BLOCK;
        for (int64_t k = 0; k < count; k++)
            block[k] = value_at(w, begin + k);
        status = smp_writer_add(out, block, (size_t)count * sizeof(*block));
    }
    free(block);
    return status;
}

smp_status smp_import_write_weights(const smp_import *import, const char *path)
{
    smp_written_tensor *tensor = calloc((size_t)import->n_weight + 1, sizeof(*tensor));
    smp_text head = {0};
    if (!tensor)
        return smp_fail_memory((size_t)import->n_weight * sizeof(*tensor));
    for (int32_t i = 0; i < import->n_weight; i++)
        tensor[i] = (smp_written_tensor){import->weight[i].name, import->weight[i].shape, NULL};
    smp_writer *out = NULL;
    smp_status status = smp_safetensors_head(path, tensor, import->n_weight, &head);
    if (status == SMP_OK)
        status = smp_writer_open(path, &out);
    if (status == SMP_OK) {
        status = smp_writer_add(out, head.data, head.length);
        for (int32_t i = 0; i < import->n_weight && status == SMP_OK; i++)
            status = write_values(out, &import->weight[i]);
        status = smp_writer_close(out, status);
    }
    smp_text_free(&head);
    free(tensor);
    return status;
}
