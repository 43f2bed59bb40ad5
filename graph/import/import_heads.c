/* Heads of attention: what exporters write as reshape, transpose, product, softmax, product becomes
 * one operator on [T, heads * width]. A tensor that is seen as heads is written out only if
 * something else than attention reads it. */
#include "graph/import/importing.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Size of the dimension that a letter stands for. */
static int64_t size_of(const smp_import *im, const smp__bound *b, char letter)
{
    const smp__heads *h = &b->q;
    const int64_t heads = strchr(b->axes, 'R') ? h->heads : h->heads * h->repeat;
    switch (letter) {
    case 'N':
        return im->model->batch;
    case 'B':
        return im->model->batch * heads;
    case 'T':
        return h->length;
    case 'H':
        return heads;
    case 'W':
        return h->width;
    case 'R':
        return h->repeat;
    default:
        return 1;
    }
}

static bool looks_like(const smp_import *im, const smp__bound *b, const smp_onnx_value *v)
{
    if (v->n_dim != (int)strlen(b->axes))
        return false;
    for (int d = 0; d < v->n_dim; d++)
        if (size_of(im, b, b->axes[d]) != v->dim[d])
            return false;
    return true;
}

/* A tensor [T, d] seen as one of `heads`. */
static bool as_heads(const smp__bound *x, int64_t heads, const char *axes, smp__bound *out)
{
    if (x->form != SMP__TENSOR || x->single || x->is_int || x->opaque || x->shape.n_dim != 2 ||
        heads < 1 || x->shape.dim[1] % heads != 0)
        return false;
    *out = (smp__bound){.form = SMP__HEADS,
                        .q = {x->tensor, x->shape.dim[0], heads, x->shape.dim[1] / heads, 1, 1}};
    memcpy(out->axes, axes, strlen(axes) + 1);
    return true;
}

bool smp__heads_reshape(smp_import *im, const smp_onnx_node *node)
{
    static const char *const WAYS[][2] = {{"NHTW", "BTW"},   {"NHWT", "BWT"},   {"BTW", "NHTW"},
                                          {"BWT", "NHWT"},   {"NHTW", "NH1TW"}, {"NTHW", "NTH1W"},
                                          {"NHRTW", "NHTW"}, {"NTHRW", "NTHW"}};
    const smp_onnx_value *out = smp__onnx_out(im->model, node, 0);
    const smp__bound *in = smp__peek(im, node, 0);
    smp__bound x;
    if (!in || !out)
        return false;
    if (in->form == SMP__TENSOR && out->n_dim == 4 && as_heads(in, out->dim[2], "NTHW", &x) &&
        looks_like(im, &x, out)) {
        smp__bind(im, node, 0, &x);
        return true;
    }
    if (in->form != SMP__HEADS || in->deferred >= SMP__MOST_DEFERRED)
        return false;
    const smp_shape rows = {2, {in->q.length, in->q.heads * in->q.width}};
    if (strcmp(in->axes, "NTHW") == 0 && in->q.repeat == 1 && in->q.factor == 1)
        for (int merged = 0; merged < 2; merged++)
            if (out->n_dim == 3 - merged && out->dim[2 - merged] == rows.dim[1] &&
                out->dim[0] == im->model->batch * (merged ? rows.dim[0] : 1)) {
                smp__bind_tensor(im, node, 0, in->q.tensor, &rows, merged);
                return true;
            }
    for (size_t k = 0; k < sizeof(WAYS) / sizeof(WAYS[0]); k++) {
        if (strcmp(in->axes, WAYS[k][0]) != 0)
            continue;
        x = *in;
        memcpy(x.axes, WAYS[k][1], strlen(WAYS[k][1]) + 1);
        x.deferred++;
        if (!looks_like(im, &x, out))
            continue;
        smp__bind(im, node, 0, &x);
        return true;
    }
    return false;
}

bool smp__heads_transpose(smp_import *im, const smp_onnx_node *node)
{
    const smp__bound *in = smp__peek(im, node, 0);
    smp__bound x, one;
    size_t n;
    const int64_t *perm = smp__onnx_ints(node, "perm", &n);
    if (!in || !perm || n == 0 || perm[0] != 0)
        return false;
    if (in->form == SMP__TENSOR && in->merged == 0 && n == 3 && as_heads(in, 1, "NTW", &one))
        in = &one;
    if (in->form != SMP__HEADS || n != strlen(in->axes) || in->deferred >= SMP__MOST_DEFERRED)
        return false;
    x = *in;
    for (size_t d = 0; d < n; d++)
        x.axes[d] = in->axes[perm[d]];
    x.deferred++;
    if (!looks_like(im, &x, smp__onnx_out(im->model, node, 0)))
        return false;
    smp__bind(im, node, 0, &x);
    return true;
}

/* Heads of keys and values that several heads of queries share, once for each of these. */
bool smp__heads_expand(smp_import *im, const smp_onnx_node *node)
{
    const smp__bound *in = smp__peek(im, node, 0);
    const smp_onnx_value *out = smp__onnx_out(im->model, node, 0);
    if (!in || in->form != SMP__HEADS || in->q.repeat != 1 || in->deferred >= SMP__MOST_DEFERRED)
        return false;
    smp__bound x = *in;
    char *one = strchr(x.axes, '1');
    if (!one || out->n_dim != (int)strlen(x.axes))
        return false;
    *one = 'R';
    x.q.repeat = out->dim[one - x.axes];
    x.deferred++;
    if (!looks_like(im, &x, out))
        return false;
    smp__bind(im, node, 0, &x);
    return true;
}

bool smp__heads_scaled(smp_import *im, const smp_onnx_node *node, int input, double factor)
{
    const smp__bound *in = smp__peek(im, node, input);
    if (!in || (in->form != SMP__HEADS && in->form != SMP__SCORES) || !isfinite(factor) ||
        in->deferred >= SMP__MOST_DEFERRED || (in->form == SMP__SCORES && in->scores_closed))
        return false;
    smp__bound x = *in;
    if (x.form == SMP__HEADS)
        x.q.factor *= factor;
    else
        x.scale *= factor;
    x.deferred++;
    smp__bind(im, node, 0, &x);
    return true;
}

const char *smp__heads_tensor(smp_import *im, const char *near, const smp__bound *b,
                              smp_shape *shape)
{
    static const char BASE[] = "THW";
    const char *tensor = b->q.tensor;
    char axes[64] = "";
    if (b->q.repeat != 1) {
        smp__refuse(im, "heads that are repeated");
        return NULL;
    }
    near = near ? near : tensor;
    if (b->q.factor != 1) {
        smp_text number = {0};
        smp_text_append_double(&number, b->q.factor);
        tensor = smp__emit_one(im, "scale", smp__unique(im, near), tensor, ", factor: %s}",
                               number.data ? number.data : "1");
        smp_text_free(&number);
    }
    const smp_shape rows = {2, {b->q.length, b->q.heads * b->q.width}};
    smp_shape split = {3, {b->q.length, b->q.heads, b->q.width}}, moved = {0};
    bool moves = false;
    *shape = (smp_shape){0};
    const char *letters =
        b->axes[0] == 'B' ? (strcmp(b->axes, "BTW") == 0 ? "HTW" : "HWT") : b->axes + 1;
    const bool single_head = !strchr(letters, 'H');
    for (const char *c = letters; *c; c++) {
        shape->dim[shape->n_dim++] = size_of(im, b, *c);
        const char *at = strchr(BASE, *c);
        if (!at)
            continue;
        /* Without a letter for heads there is one of them, and two dimensions. */
        const int from = (int)(at - BASE) - (single_head && *c == 'W');
        moves |= from != moved.n_dim;
        snprintf(axes + strlen(axes), sizeof(axes) - strlen(axes), "%s%d", *axes ? ", " : "", from);
        moved.dim[moved.n_dim++] = size_of(im, b, *c);
    }
    if (single_head)
        split = rows;
    tensor = smp__reshaped(im, near, tensor, &rows, &split);
    if (moves)
        tensor =
            smp__emit_one(im, "transpose", smp__unique(im, near), tensor, ", axes: [%s]}", axes);
    return smp__reshaped(im, near, tensor, &moved, shape);
}

static const char *attention_name(smp_import *im, const smp_onnx_node *node)
{
    const char *slash = strrchr(node->name, '/');
    if (node->name[0] != '/' || !slash || slash == node->name)
        return smp__op_name(im, node, NULL);
    char *path = smp_arena_printf(
        im->arena, "%.*s.attention",
        (int)(slash - node->name - 1 < 150 ? slash - node->name - 1 : 150), node->name + 1);
    for (char *c = path; c && *c; c++)
        *c = *c == '/' ? '.' : *c;
    return smp__unique(im, path ? path : "attention");
}

/* Softmax of the scores times values: attention. */
static bool attend(smp_import *im, const smp_onnx_node *node, const smp__bound *probs,
                   const smp__bound *values)
{
    const smp__heads *q = &probs->q, *k = &probs->k, *v = &values->q;
    if (v->heads != k->heads || v->repeat != k->repeat || v->width != k->width ||
        v->length != k->length || v->factor != 1)
        return false;
    const char *name = attention_name(im, node);
    const char *in[4] = {q->tensor, k->tensor, v->tensor, probs->mask};
    smp_text rest = {0};
    smp_text_append(&rest, ", heads: %lld", (long long)q->heads);
    if (k->heads != q->heads)
        smp_text_append(&rest, ", kv_heads: %lld", (long long)k->heads);
    if (probs->causal)
        smp_text_append(&rest, ", causal: true");
    if (fabs(probs->scale * sqrt((double)q->width) - 1) > 1e-6) {
        smp_text_append(&rest, ", scale: ");
        smp_text_append_double(&rest, probs->scale);
    }
    if (probs->bias_table) {
        const smp_onnx_value *table = &im->model->value[probs->bias_stored];
        const char *role = "relative_bias";
        const char *tied =
            smp__add_weight(im, name, role, (smp_shape){2, {probs->buckets, q->heads}}, table,
                            probs->bias_table, false);
        smp_text_append(&rest, ", buckets: %lld, max_distance: %lld%s", (long long)probs->buckets,
                        (long long)probs->max_distance, smp__ties(im, &role, &tied, 1));
    }
    smp__bound out = *values;
    out.q = (smp__heads){smp__emit(im, "attention", name, in, probs->mask ? 4 : 3, "%s}",
                                   rest.data ? rest.data : ""),
                         q->length,
                         q->heads,
                         q->width,
                         1,
                         1};
    smp_text_free(&rest);
    out.deferred = 0;
    smp__bind(im, node, 0, &out);
    return true;
}

bool smp__heads_matmul(smp_import *im, const smp_onnx_node *node)
{
    static const char *const PAIRS[][2] = {{"NHTW", "NHWT"}, {"BTW", "BWT"}, {"NTW", "NWT"}};
    const smp__bound *a = smp__peek(im, node, 0), *b = smp__peek(im, node, 1);
    smp__bound left, right;
    if (!a || !b)
        return false;
    if (a->form == SMP__TENSOR && a->merged == 0 && as_heads(a, 1, "NTW", &left))
        a = &left;
    if (b->form == SMP__TENSOR && b->merged == 0 && as_heads(b, 1, "NTW", &right))
        b = &right;
    if (b->form != SMP__HEADS || (a->form != SMP__HEADS && a->form != SMP__PROBS))
        return false;
    for (size_t k = 0; k < sizeof(PAIRS) / sizeof(PAIRS[0]); k++) {
        if (strcmp(a->axes, PAIRS[k][0]) != 0)
            continue;
        if (a->form == SMP__PROBS)
            return strcmp(b->axes, PAIRS[k][0]) == 0 && attend(im, node, a, b);
        if (strcmp(b->axes, PAIRS[k][1]) != 0 || a->q.repeat != 1 || a->q.width != b->q.width ||
            a->q.heads != b->q.heads * b->q.repeat)
            return false;
        const double scale = a->q.factor * b->q.factor;
        if (!(scale >= 1e-6 && scale <= 1e6))
            return false;
        smp__bound scores = {.form = SMP__SCORES, .scale = scale, .q = a->q, .k = b->q};
        memcpy(scores.axes, a->axes, sizeof(scores.axes));
        scores.q.factor = scores.k.factor = 1;
        /* What is written out instead reads the factors from the tensors that have them. */
        scores.deferred = 1 + (a->deferred > b->deferred ? a->deferred : b->deferred);
        if (scores.deferred >= SMP__MOST_DEFERRED)
            return false;
        smp__bind(im, node, 0, &scores);
        return true;
    }
    return false;
}
