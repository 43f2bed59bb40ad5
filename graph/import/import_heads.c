/* Heads of attention: what exporters write as reshape, transpose, product, softmax, product becomes
 * one operator on [T, heads * width]. A tensor that is seen as heads is written out only if
 * something else than attention reads it. */
#include "graph/import/importing.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* A tensor [T, d] seen as one of `heads`. */
static bool as_heads(const smp__bound *x, int64_t heads, const char *axes, smp__bound *out)
{
    if (x->form != SMP__TENSOR || x->single || x->is_int || x->opaque || x->shape.n_dim != 2 ||
        heads < 1 || x->shape.dim[1] % heads != 0)
        return false;
    *out = (smp__bound){.form = SMP__HEADS,
                        .q = {.tensor = x->tensor,
                              .length = x->shape.dim[0],
                              .parts = 1,
                              .heads = heads,
                              .width = x->shape.dim[1] / heads,
                              .repeat = 1,
                              .factor = 1}};
    memcpy(out->axes, axes, strlen(axes) + 1);
    return true;
}

void smp__heads_bind(smp_import *im, const smp_onnx_node *node, int k, const smp__bound *heads)
{
    smp__bound plain;
    smp__bind(im, node, k, smp__axes_plain(heads, &plain) ? &plain : heads);
}

bool smp__heads_reshape(smp_import *im, const smp_onnx_node *node)
{
    const smp_onnx_value *out = smp__onnx_out(im->model, node, 0);
    const smp__bound *in = smp__peek(im, node, 0);
    smp__bound x, plain;
    if (!in || !out)
        return false;
    if (in->form == SMP__TENSOR) {
        /* Heads begin where the width of each position is split. */
        if (out->n_dim < 4 || strcmp(node->op, "Reshape") != 0 || in->merged > 1 ||
            !as_heads(in, 1, in->merged ? "NT,W" : "N,T,W", &x) ||
            !smp__axes_reshape(im, &x, out) || strncmp(x.axes, "N,T,", 4) != 0)
            return false;
    } else if (in->form == SMP__HEADS && in->deferred < SMP__MOST_DEFERRED) {
        x = *in;
        x.deferred++;
        if (!smp__axes_reshape(im, &x, out))
            return false;
    } else {
        return false;
    }
    if (smp__axes_plain(&x, &plain) && in->form == SMP__TENSOR)
        return false;
    smp__heads_bind(im, node, 0, &x);
    return true;
}

bool smp__heads_transpose(smp_import *im, const smp_onnx_node *node)
{
    const smp__bound *in = smp__peek(im, node, 0);
    smp__bound x, one;
    size_t n;
    const int64_t *perm = smp__onnx_ints(node, "perm", &n);
    if (!in || !perm || n == 0)
        return false;
    if (in->form == SMP__TENSOR && in->merged == 0 && n == 3 && as_heads(in, 1, "N,T,W", &one))
        in = &one;
    if (in->form != SMP__HEADS || in->deferred >= SMP__MOST_DEFERRED)
        return false;
    x = *in;
    x.deferred++;
    if (!smp__axes_permute(&x, perm, (int)n) ||
        !smp__axes_fit(im, &x, smp__onnx_out(im->model, node, 0)))
        return false;
    smp__heads_bind(im, node, 0, &x);
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
    char *one = x.axes;
    int d = 0;
    for (; *one && !(*one == '1' && d < out->n_dim && out->dim[d] > 1); one++)
        d += *one == ',';
    if (!*one)
        return false;
    *one = 'R';
    x.q.repeat = out->dim[d];
    x.deferred++;
    if (!smp__axes_fit(im, &x, out))
        return false;
    smp__bind(im, node, 0, &x);
    return true;
}

enum { MOST_PARTS = 64 };

/* One of the parts that a projection packs, or of its heads: of all of them `split` makes tensors,
 * once. */
static const char *part_of(smp_import *im, const char *tensor, int64_t n, int64_t width, int64_t k)
{
    char key[64];
    int64_t found, size[MOST_PARTS];
    snprintf(key, sizeof(key), "%p/%lld", (const void *)tensor, (long long)n);
    if (smp_map_get(im->parts, key, &found))
        return ((const char **)(intptr_t)found)[k];
    const char **part = SMP_ARENA_NEW(im->arena, const char *, n);
    const char *kept = smp_arena_strdup(im->arena, key);
    if (!part || !kept || smp_map_set(im->parts, kept, (int64_t)(intptr_t)part) != SMP_OK) {
        im->status = SMP_ERR_NO_MEMORY;
        return tensor;
    }
    for (int64_t i = 0; i < n; i++)
        size[i] = width;
    smp__split(im, smp__unique(im, tensor), tensor, 1, (int)n, size, part);
    return part[k];
}

bool smp__heads_select(smp_import *im, const smp_onnx_node *node, int output, int d, int64_t k,
                       bool keeps)
{
    const smp__bound *in = smp__peek(im, node, 0);
    if (!in || in->form != SMP__HEADS || in->q.repeat != 1 || in->q.factor != 1 ||
        in->deferred >= SMP__MOST_DEFERRED)
        return false;
    const bool parts = smp__axis_is(in, d, 'P');
    if (!parts && (in->q.parts != 1 || !smp__axis_is(in, d, 'H')))
        return false;
    smp__bound x = *in;
    int64_t *const n = parts ? &x.q.parts : &x.q.heads;
    const int64_t width = parts ? x.q.heads * x.q.width : x.q.width;
    k += k < 0 ? *n : 0;
    if (k < 0 || k >= *n || *n > MOST_PARTS)
        return false;
    x.q.tensor = part_of(im, x.q.tensor, *n, width, k);
    x.deferred++;
    *n = 1;
    smp__axes_without(&x, d, keeps);
    smp__heads_bind(im, node, output, &x);
    return true;
}

bool smp__heads_scaled(smp_import *im, const smp_onnx_node *node, int input, double factor)
{
    const smp__bound *in = smp__peek(im, node, input);
    if (!in || (in->form != SMP__HEADS && in->form != SMP__SCORES) || !isfinite(factor) ||
        in->deferred >= SMP__MOST_DEFERRED || (in->form == SMP__SCORES && in->scores_closed) ||
        (in->cap > 0 && !in->tanh) || (in->tanh && !(factor > 0)))
        return false;
    smp__bound x = *in;
    if (x.form == SMP__HEADS)
        x.q.factor *= factor;
    else
        x.scale *= factor;
    if (x.tanh)
        x.cap = factor;
    x.tanh = false;
    x.deferred++;
    smp__bind(im, node, 0, &x);
    return true;
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
                   const smp__bound *values, const char *axes)
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
    if (probs->open.causal)
        smp_text_append(&rest, ", causal: true");
    if (probs->open.window > 0)
        smp_text_append(&rest, ", window: %lld", (long long)probs->open.window);
    if (fabs(probs->scale * sqrt((double)q->width) - 1) > 1e-6) {
        smp_text_append(&rest, ", scale: ");
        smp_text_append_double(&rest, probs->scale);
    }
    if (probs->cap > 0) {
        smp_text_append(&rest, ", softcap: ");
        smp_text_append_double(&rest, probs->cap);
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
    out.q = (smp__heads){.tensor = smp__emit(im, "attention", name, in, probs->mask ? 4 : 3, "%s}",
                                             rest.data ? rest.data : ""),
                         .length = q->length,
                         .parts = 1,
                         .heads = q->heads,
                         .width = q->width,
                         .repeat = 1,
                         .factor = 1};
    memcpy(out.axes, axes, strlen(axes) + 1);
    smp_text_free(&rest);
    out.deferred = 0;
    smp__bind(im, node, 0, &out);
    return true;
}

bool smp__heads_matmul(smp_import *im, const smp_onnx_node *node)
{
    static const char *const PAIRS[][2] = {
        {"N,H,T,W", "N,H,W,T"}, {"NH,T,W", "NH,W,T"}, {"N,T,W", "N,W,T"}};
    const smp__bound *a = smp__peek(im, node, 0), *b = smp__peek(im, node, 1);
    smp__bound left, right;
    if (!a || !b)
        return false;
    if (a->form == SMP__TENSOR && a->merged == 0 && as_heads(a, 1, "N,T,W", &left))
        a = &left;
    if (b->form == SMP__TENSOR && b->merged == 0 && as_heads(b, 1, "N,T,W", &right))
        b = &right;
    if (b->form != SMP__HEADS || (a->form != SMP__HEADS && a->form != SMP__PROBS))
        return false;
    for (size_t k = 0; k < sizeof(PAIRS) / sizeof(PAIRS[0]); k++) {
        if (!smp__axes_are(a, PAIRS[k][0]) || a->q.parts != 1 || b->q.parts != 1)
            continue;
        if (a->form == SMP__PROBS)
            return smp__axes_are(b, PAIRS[k][0]) && attend(im, node, a, b, PAIRS[k][0]);
        if (!smp__axes_are(b, PAIRS[k][1]) || a->q.repeat != 1 || a->q.width != b->q.width ||
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
