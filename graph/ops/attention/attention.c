/* attention: multi-head scaled dot-product attention (Vaswani et al. 2017). Either one packed input
 * [T, 3 d], a row being q | k | v, or three inputs q [Tq, d], k [Tk, d], v [Tk, d]; heads lie side
 * by side in d. Output [Tq, d]. With kv_heads (Ainslie et al., "GQA", 2023) k and v have fewer
 * heads of the same width, [Tk, kv_heads * d / heads], and neighbouring heads of q share one. A
 * last input of int32 [Tk] is a key padding mask: 1 for a key that counts, 0 for one that nobody
 * sees (BERT's attention_mask; PyTorch's key_padding_mask is its opposite). Who sees no key at all
 * gets zeros.
 *
 * alibi adds a bias to the scores that falls with the distance between query and key, to either
 * side; buckets one that is learned, a weight [buckets, heads] (T5), which layers may share. window
 * hides keys that are further back (Beltagy et al., "Longformer", 2020; Mistral). softcap keeps
 * scores s between -c and c, as c tanh(s / c) (Gemma 2).
 *
 * Per sample and head, with w = d / heads and blocks of queries:
 *   P = softmax(Q K^T / sqrt(w)),  O = P V
 *   dP = dO V^T,  dS = P * (dP - rowsum(P * dP)),  dQ = dS K,  dK = dS^T Q,  dV = P^T dO
 * (Q, K scaled by 1 / sqrt(w); of capped scores S, made again, dS is times 1 - tanh^2(S / c)). The
 * GEMMs read q, k, v in place through their row strides. A causal
 * block only looks at the keys up to its last row, and from the window of its first row on; the
 * rest of P is never written or read. Forward saves P [heads, Tq, Tk], where hidden keys are 0, so
 * that backward need not know of masks. The learned bias gets the sums of dS over equal distances,
 * dS computed again in backward_weight. O(heads * Tq * Tk * w) time, one block of dP as
 * workspace. */
#include "graph/math/gemm_algorithms.h"
#include "graph/ops/attention/attention_rows.h"
#include "graph/ops/collective/collective.h"
#include "graph/ops/ops.h"

#include <math.h>
#include <string.h>

#include "graph/math/math.h"
#include "graph/math/vector.h"

const smp_attr_desc smp__attention_attrs[] = {
    [SMP__HEADS] = {"heads", SMP_ATTR_INT, true, 0, 1, INT32_MAX, NULL},
    [SMP__CAUSAL] = {"causal", SMP_ATTR_BOOL, false, 0, 0, 1, NULL},
    [SMP__KV_HEADS] = {"kv_heads", SMP_ATTR_INT, false, 0, 1, INT32_MAX,
                       NULL},                                               /* as many as heads */
    [SMP__WINDOW] = {"window", SMP_ATTR_INT, false, 0, 1, INT32_MAX, NULL}, /* everything */
    [SMP__ALIBI] = {"alibi", SMP_ATTR_BOOL, false, 0, 0, 1, NULL},
    [SMP__BUCKETS] = {"buckets", SMP_ATTR_INT, false, 0, 2, INT32_MAX, NULL},
    [SMP__MAX_DISTANCE] = {"max_distance", SMP_ATTR_INT, false, 128, 2, INT32_MAX, NULL},
    [SMP__WEIGHT] = {"weight", SMP_ATTR_STRING, false, 0, 0, 0, NULL},
    [SMP__INIT_STD] = {"init_std", SMP_ATTR_FLOAT, false, 0.02, 0, 1e6, NULL},
    [SMP__SCALE] = {"scale", SMP_ATTR_FLOAT, false, 0, 1e-6, 1e6, NULL}, /* 1 / sqrt(width) */
    [SMP__DEVICES] = {"devices", SMP_ATTR_INT, false, 1, 1, SMP__MOST_DEVICES, NULL},
    [SMP__AXIS] = {"axis", SMP_ATTR_INT, false, 0, 0, 1, NULL},
    [SMP__BLOCKS] = {"blocks", SMP_ATTR_INT, false, 1, 1, SMP_SPLIT_BLOCKS, NULL},
    [SMP__SOFTCAP] = {"softcap", SMP_ATTR_FLOAT, false, 0, 1e-3, 1e6, NULL}, /* 0: none */
    {0},
};

typedef smp__attention layout;

enum { Q = SMP__Q, K = SMP__K, V = SMP__V };

/* How many devices have a part of the queries each. */
static int64_t query_parts_of(const smp_attr_value *attr)
{
    return attr[SMP__AXIS].i == 0 ? attr[SMP__DEVICES].i : 1;
}

static int64_t kv_heads_of(const smp_attr_value *attr)
{
    return attr[SMP__KV_HEADS].i > 0 ? attr[SMP__KV_HEADS].i : attr[SMP__HEADS].i;
}

smp__attention smp__attention_of(const smp_graph *graph, const smp_op *op)
{
    const smp_tensor *first = smp__in(graph, op, 0);
    bool masked = op->n_in % 2 == 0, packed = op->n_in <= 2;
    layout at = {
        .queries = first->shape.dim[0],
        .keys = packed ? first->shape.dim[0] : smp__in(graph, op, K)->shape.dim[0],
        .d = packed ? first->shape.dim[1] / 3 : first->shape.dim[1],
        .heads = op->attr[SMP__HEADS].i,
        .kv_heads = kv_heads_of(op->attr),
        .mask = masked ? op->n_in - 1 : -1,
        .causal = op->attr[SMP__CAUSAL].i,
        .alibi = op->attr[SMP__ALIBI].i,
        .buckets = op->attr[SMP__BUCKETS].i,
        .max_distance = op->attr[SMP__MAX_DISTANCE].i,
        .softcap = (float)op->attr[SMP__SOFTCAP].f,
    };
    const int64_t parts = query_parts_of(op->attr),
                  all = parts > 1 ? parts * at.queries : at.queries;
    const int64_t window = op->attr[SMP__WINDOW].i, longest = all > at.keys ? all : at.keys;
    at.before = parts > 1 ? graph->device * at.queries : 0;
    at.window = window > 0 && window < longest ? window : longest;
    at.width = at.d / at.heads;
    for (int i = Q; i <= V; i++) {
        at.input[i] = packed ? 0 : i;
        at.offset[i] = packed ? i * at.d : 0;
        at.stride[i] = packed ? 3 * at.d : (i == Q ? at.heads : at.kv_heads) * at.width;
    }
    double scale = op->attr[SMP__SCALE].f;
    at.scale = (float)(scale > 0 ? scale : 1.0 / sqrt((double)at.width));
    return at;
}

/* query_parts, key_parts: devices that have a part of them each. */
static smp_status infer_separate(const smp_infer *infer, int64_t query_parts, int64_t key_parts)
{
    char text[3][128];
    const smp_shape *q = &infer->in[Q]->shape, *k = &infer->in[K]->shape, *v = &infer->in[V]->shape;
    int64_t heads = infer->attr[SMP__HEADS].i, kv_heads = kv_heads_of(infer->attr);
    if (heads % kv_heads != 0)
        return smp_infer_fail(infer, "kv_heads: %lld does not divide the %lld heads",
                              (long long)kv_heads, (long long)heads);
    if (!smp_shape_equal(k, v) || k->dim[1] != q->dim[1] / heads * kv_heads)
        return smp_infer_fail(infer,
                              "inputs q %s, k %s, v %s: expected [Tq, d], [Tk, d], [Tk, d], d of k "
                              "and v being %lld for %lld heads",
                              smp_shape_format(text[0], sizeof text[0], q),
                              smp_shape_format(text[1], sizeof text[1], k),
                              smp_shape_format(text[2], sizeof text[2], v),
                              (long long)(q->dim[1] / heads * kv_heads), (long long)kv_heads);
    const char *same = infer->attr[SMP__CAUSAL].i        ? "causal"
                       : infer->attr[SMP__ALIBI].i       ? "alibi"
                       : infer->attr[SMP__BUCKETS].i > 0 ? "buckets"
                                                         : NULL;
    if (same && q->dim[0] * query_parts != k->dim[0] * key_parts)
        return smp_infer_fail(infer, "%s with %lld queries and %lld keys: expected as many", same,
                              (long long)q->dim[0], (long long)k->dim[0]);
    return SMP_OK;
}

static smp_status infer_mask(const smp_infer *infer, int64_t keys)
{
    char text[128];
    const smp_tensor *mask = infer->in[infer->n_in - 1];
    if (mask->dtype != SMP_I32)
        return smp_infer_fail(infer,
                              "got %d inputs, expected 1 (q, k, v packed) or 3, and an int32 "
                              "mask of the keys after them",
                              infer->n_in);
    if (mask->shape.n_dim != 1 || mask->shape.dim[0] != keys)
        return smp_infer_fail(infer, "mask '%s' %s, expected [%lld], one for each key", mask->name,
                              smp_shape_format(text, sizeof text, &mask->shape), (long long)keys);
    return SMP_OK;
}

/* The learned bias. */
static smp_status infer_buckets(smp_infer *infer)
{
    const smp_attr_value *attr = infer->attr;
    int64_t buckets = attr[SMP__BUCKETS].i, least = attr[SMP__CAUSAL].i ? 2 : 4;
    int64_t single = attr[SMP__CAUSAL].i ? buckets / 2 : buckets / 4;
    if (buckets == 0)
        return attr[SMP__WEIGHT].s.text ? smp_infer_fail(infer, "weight: expected buckets besides")
                                        : SMP_OK;
    if (attr[SMP__ALIBI].i)
        return smp_infer_fail(infer, "alibi and buckets: expected one of them");
    if (buckets < least)
        return smp_infer_fail(infer, "buckets: %lld, expected at least %lld%s", (long long)buckets,
                              (long long)least, attr[SMP__CAUSAL].i ? "" : " without causal: true");
    if (attr[SMP__MAX_DISTANCE].i <= single)
        return smp_infer_fail(infer,
                              "max_distance: %lld, expected more than the %lld that have a "
                              "bucket each",
                              (long long)attr[SMP__MAX_DISTANCE].i, (long long)single);
    infer->n_param = 1;
    infer->param[0] = (smp_param_decl){
        .role = "relative_bias",
        .shape = {2, {buckets, attr[SMP__HEADS].i}},
        .init = SMP_INIT_NORMAL,
        .init_scale = (float)attr[SMP__INIT_STD].f,
        .tied_to = attr[SMP__WEIGHT].s.text,
    };
    return SMP_OK;
}

smp_status smp__infer_attention(smp_infer *infer, int64_t query_parts, int64_t key_parts)
{
    bool masked = infer->n_in % 2 == 0, packed = infer->n_in <= 2;
    for (int i = 0; i < infer->n_in - masked; i++) {
        SMP_TRY(smp_infer_float(infer, i));
        SMP_TRY(smp_infer_dims(infer, i, 2, 2));
    }
    int64_t queries = infer->in[0]->shape.dim[0], keys = queries;
    int64_t d = infer->in[0]->shape.dim[1], heads = infer->attr[SMP__HEADS].i;
    if (infer->attr[SMP__WINDOW].i > 0 && !infer->attr[SMP__CAUSAL].i)
        return smp_infer_fail(infer, "window: %lld, expected causal: true besides",
                              (long long)infer->attr[SMP__WINDOW].i);
    if (infer->attr[SMP__SOFTCAP].f > 0 &&
        (infer->attr[SMP__ALIBI].i || infer->attr[SMP__BUCKETS].i > 0))
        return smp_infer_fail(infer, "softcap: %g, expected neither alibi nor buckets besides",
                              infer->attr[SMP__SOFTCAP].f);
    if (packed && d % 3 != 0)
        return smp_infer_fail(infer,
                              "input '%s' has %lld columns, expected a multiple of 3 (q, k and v "
                              "side by side)",
                              infer->in[0]->name, (long long)d);
    if (packed && kv_heads_of(infer->attr) != heads)
        return smp_infer_fail(infer, "kv_heads: %lld of %lld heads, expected q, k and v apart",
                              (long long)kv_heads_of(infer->attr), (long long)heads);
    d = packed ? d / 3 : d;
    if (d % heads != 0)
        return smp_infer_fail(infer, "heads: %lld does not divide the %lld features",
                              (long long)heads, (long long)d);
    if (!packed) {
        SMP_TRY(infer_separate(infer, query_parts, key_parts));
        keys = infer->in[K]->shape.dim[0];
    }
    if (masked)
        SMP_TRY(infer_mask(infer, keys * key_parts));
    if (smp_shape_elements(&(smp_shape){3, {heads, queries, keys}}) < 0)
        return smp_infer_fail(infer, "%lld heads of %lld x %lld probabilities are too many",
                              (long long)heads, (long long)queries, (long long)keys);
    infer->out_dtype = SMP_F32;
    infer->out_shape = (smp_shape){2, {queries, d}};
    return infer_buckets(infer);
}

static smp_status infer(smp_infer *infer)
{
    return smp__infer_attention(infer, query_parts_of(infer->attr), 1);
}

/* Biases of a head or their gradients lie after the block of dP; forward, which has none, makes
 * them in its place. So do, of capped scores, those of the block. */
static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    layout at = smp__attention_of(graph, op);
    int64_t rows = smp__attention_block(&at, 0);
    int64_t distances = at.buckets > 0 ? at.queries + at.keys - 1 : 0;
    const int64_t blocks = at.softcap > 0 ? 2 : 1;
    *needs = (smp_op_needs){
        .input_grad_in = op->n_in <= 2 ? 1u : 7u,
        .input_grad_aux = true,
        .weight_grad_in = at.buckets > 0 ? 1u << at.input[V] : 0,
        .weight_grad_aux = at.buckets > 0,
        .aux_bytes = at.heads * at.queries * at.keys * (int64_t)sizeof(float),
        .workspace_bytes = (blocks * rows * at.keys + distances) * (int64_t)sizeof(float),
    };
    if (smp__in(graph, op, 0)->dtype == SMP_BF16)
        smp__attention_half_needs(&at, batch, needs);
}

int64_t smp__attention_library_bytes(const smp_graph *graph, const smp_op *op,
                                     const smp__attention *at, int64_t batch)
{
    if (!graph->training || !smp_precision_is_half(graph->target.precision))
        return 0;
    for (int i = SMP__Q; i <= SMP__V; i++)
        if (!smp__in(graph, op, at->input[i])->needs_grad)
            return 0;
    return smp__attention_dnn_bytes(at, batch);
}

bool smp__attention_asks_dnn(const smp_graph *graph, const smp_op *op, const smp__attention *at,
                             int64_t batch)
{
    char about[SMP__CHOICE_ABOUT];
    if (smp__attention_library_bytes(graph, op, at, batch) == 0)
        return false;
    smp__attention_about(about, SMP__ATTENTION_BACKWARD, graph->target.precision, at, batch);
    const smp_gemm_choice *chosen = smp_gemm_choices_find(graph->products, about);
    return chosen && strcmp(chosen->algorithm, SMP__ATTENTION_TILED) != 0;
}

static bool product(const smp_graph *graph, const smp_op *op, int64_t batch, char *name,
                    size_t size)
{
    const smp__attention at = smp__attention_of(graph, op);
    char about[SMP__CHOICE_ABOUT] = "";
    if (smp_precision_is_half(graph->target.precision) && smp__attention_dnn_bytes(&at, batch) > 0)
        smp__attention_about(about, SMP__ATTENTION_BACKWARD, graph->target.precision, &at, batch);
    snprintf(name, size, "%s", about);
    return smp__attention_asks_dnn(graph, op, &at, batch);
}

/* A GPU saves the logarithm of each row's sum of exponentials, (heads, Tq), and recomputes P; the
 * workspace takes the row sums of dO * O, which are those of P * dP, and after them the biases of
 * all heads, (heads, Tq + Tk - 1), and what smp__attention_bias_parts says; or, in 16 bits, from a
 * multiple of 16 bytes on, the sums and turns of dQ. Where cuDNN is asked for backward, it has all
 * of the workspace. */
static void cuda_needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    layout at = smp__attention_of(graph, op);
    int64_t rows_bytes = at.heads * at.queries * (int64_t)sizeof(float);
    int64_t bias_bytes = at.heads * (at.queries + at.keys - 1) * (int64_t)sizeof(float);
    int64_t part_bytes = smp__attention_bias_parts(&at) * (int64_t)sizeof(float);
    const int64_t dnn_bytes = smp__attention_library_bytes(graph, op, &at, batch);
    int64_t sum_bytes = 0;
    if (smp_dtype_is_half(smp__in(graph, op, 0)->dtype) && smp__attention_dq_floats(&at, batch) > 0)
        sum_bytes =
            (4 + smp__attention_dq_floats(&at, batch) + smp__attention_dq_turns(&at, batch)) *
            (int64_t)sizeof(float);
    uint32_t in = (op->n_in <= 2 ? 1u : 7u) | (at.mask >= 0 ? 1u << at.mask : 0);
    *needs = (smp_op_needs){
        .input_grad_in = in,
        .weight_grad_in = at.buckets > 0 ? in : 0,
        .weight_grad_aux = at.buckets > 0,
        .input_grad_out = true,
        .input_grad_aux = true,
        .aux_bytes = rows_bytes,
        .workspace_bytes = batch * rows_bytes + (smp__attention_is_biased(&at) ? bias_bytes : 0) +
                           part_bytes + sum_bytes,
    };
    if (dnn_bytes <= needs->workspace_bytes)
        return;
    if (smp__attention_asks_dnn(graph, op, &at, batch))
        needs->workspace_bytes = dnn_bytes;
    needs->measured_workspace_bytes = dnn_bytes;
}

static bool index_range(const smp_graph *graph, const smp_op *op, int slot, int64_t *min,
                        int64_t *max)
{
    (void)graph, (void)op, (void)slot;
    *min = 0;
    *max = 1;
    return true;
}

/* The work of the last device, which has most of a causal model's, and for which the others wait.
 */
static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    layout at = smp__attention_of(graph, op);
    double scores = 0, blocks = 0;
    at.before = (query_parts_of(op->attr) - 1) * at.queries;
    for (int64_t begin = 0; begin < at.queries; begin += SMP__ATTENTION_ROWS) {
        int64_t rows = smp__attention_block(&at, begin);
        scores += (double)rows * (double)(smp__attention_end(&at, begin + rows) -
                                          smp__attention_first(&at, begin));
        blocks++;
    }
    scores *= (double)batch * (double)at.heads;
    smp__work_bytes(graph, op, batch, work);
    smp__work_blocks(graph, blocks * (double)batch * (double)at.heads, work);
    int terms = (at.mask >= 0) + smp__attention_is_biased(&at);
    const double capped = at.softcap > 0;
    work->forward_flops = scores * (4.0 * (double)at.width + 20 + terms + capped * 22);
    work->backward_input_flops =
        scores * (8.0 * (double)at.width + 5 + capped * (2.0 * (double)at.width + 26));
    work->backward_weight_flops = at.buckets > 0 ? scores * (2.0 * (double)at.width + 6) : 0;
    work->kind = SMP_OP_ATTENTION;
    work->product = (smp_op_product){batch * at.heads, at.queries, at.keys, at.width};
}

/* Rows begin .. begin+rows-1 of P: probabilities from scores, in place. */
static void softmax_block(const layout *at, const smp__attention_terms *terms, float *p,
                          int64_t begin, int64_t rows)
{
    int64_t low = smp__attention_first(at, begin), high = smp__attention_end(at, begin + rows);
    for (int64_t t = begin; t < begin + rows; t++, p += at->keys)
        smp__attention_softmax(at, terms, p + low, t, low, high);
}

/* One head of one sample. `part`: its first q, k, v; p: (Tq, Tk); out: its columns of (Tq, d). */
static smp_status head_forward(const layout *at, const smp__attention_terms *terms,
                               const float *const part[3], float *p, float *out)
{
    for (int64_t begin = 0; begin < at->queries; begin += SMP__ATTENTION_ROWS) {
        int64_t rows = smp__attention_block(at, begin);
        int64_t low = smp__attention_first(at, begin),
                keys = smp__attention_end(at, begin + rows) - low;
        float *block = p + begin * at->keys;
        SMP_TRY(smp_math_gemm(
            false, true, rows, keys, at->width, at->scale, part[Q] + begin * at->stride[Q],
            at->stride[Q], part[K] + low * at->stride[K], at->stride[K], 0, block + low, at->keys));
        softmax_block(at, terms, block, begin, rows);
        SMP_TRY(smp_math_gemm(false, false, rows, at->width, keys, 1, block + low, at->keys,
                              part[V] + low * at->stride[V], at->stride[V], 0, out + begin * at->d,
                              at->d));
    }
    return SMP_OK;
}

static smp_status forward(const smp_op_call *call)
{
    layout at = smp__attention_of(call->graph, call->op);
    float *p = call->aux; /* (B, heads, Tq, Tk) */
    float *out = call->out[0];
    const int32_t *mask = at.mask >= 0 ? call->in[at.mask] : NULL; /* (B, Tk) */
    if (mask)
        SMP_TRY(smp__attention_check_mask(call, &at));
    for (int64_t h = 0; h < at.heads; h++) {
        smp__attention_terms terms = {0};
        if (smp__attention_is_biased(&at)) {
            smp__attention_fill_bias(call, &at, h, call->workspace);
            terms.bias = call->workspace;
        }
        for (int64_t b = 0; b < call->batch; b++) {
            const float *part[3];
            for (int i = Q; i <= V; i++)
                part[i] =
                    (const float *)call->in[at.input[i]] + smp__attention_place(call, &at, i, b, h);
            terms.mask = mask ? mask + b * at.keys : NULL;
            SMP_TRY(head_forward(&at, &terms, part, p + (b * at.heads + h) * at.queries * at.keys,
                                 out + b * at.queries * at.d + h * at.width));
        }
    }
    return SMP_OK;
}

static void score_block(const layout *at, float *ds, const float *p, int64_t begin, int64_t rows)
{
    int64_t low = smp__attention_first(at, begin), high = smp__attention_end(at, begin + rows);
    for (int64_t t = begin; t < begin + rows; t++, p += at->keys, ds += at->keys)
        smp__attention_gradient(at, ds + low, p + low, t, low, high);
}

/* dS of the block of rows from `begin` on. v, p, dout: of the head. */
static smp_status score_gradient(const layout *at, const float *v, const float *p,
                                 const float *dout, int64_t begin, int64_t rows, float *ds)
{
    int64_t low = smp__attention_first(at, begin),
            keys = smp__attention_end(at, begin + rows) - low;
    SMP_TRY(smp_math_gemm(false, true, rows, keys, at->width, 1, dout + begin * at->d, at->d,
                          v + low * at->stride[V], at->stride[V], 0, ds + low, at->keys));
    score_block(at, ds, p + begin * at->keys, begin, rows);
    return SMP_OK;
}

/* dS of capped scores, of the block, becomes that of the products: with the scores made again. */
static smp_status uncap_block(const layout *at, const float *const part[3], int64_t begin,
                              int64_t rows, float *ds)
{
    const int64_t low = smp__attention_first(at, begin);
    const int64_t keys = smp__attention_end(at, begin + rows) - low;
    float *scores = ds + smp__attention_block(at, 0) * at->keys;
    SMP_TRY(smp_math_gemm(false, true, rows, keys, at->width, at->scale,
                          part[Q] + begin * at->stride[Q], at->stride[Q],
                          part[K] + low * at->stride[K], at->stride[K], 0, scores, keys));
    for (int64_t row = 0; row < rows; row++)
        smp__attention_cap_gradient(ds + row * at->keys + low, scores + row * keys, at->softcap,
                                    keys);
    return SMP_OK;
}

static void clear_rows(float *rows, int64_t n, int64_t width, int64_t stride)
{
    for (int64_t i = 0; rows && i < n; i++)
        memset(rows + i * stride, 0, (size_t)width * sizeof *rows);
}

/* One head of one sample. Blocks go from the last to the first: a causal model's last block covers
 * every key but those before its window, and those after it that other devices' queries see, so
 * that of the first head that reads them overwrites dK and dV and the others add to them. grad[i]
 * NULL: not wanted. */
static smp_status head_backward(const layout *at, const float *const part[3], bool first,
                                const float *p, const float *dout, float *ds, float *const grad[3])
{
    int64_t last = (at->queries - 1) / SMP__ATTENTION_ROWS * SMP__ATTENTION_ROWS;
    const int64_t low_end = smp__attention_first(at, last);
    const int64_t high = smp__attention_end(at, at->queries);
    for (int i = K; first && i <= V; i++) {
        clear_rows(grad[i], low_end, at->width, at->stride[i]);
        if (grad[i] && high < at->keys)
            clear_rows(grad[i] + high * at->stride[i], at->keys - high, at->width, at->stride[i]);
    }
    for (int64_t begin = last; begin >= 0; begin -= SMP__ATTENTION_ROWS) {
        int64_t rows = smp__attention_block(at, begin);
        int64_t low = smp__attention_first(at, begin),
                keys = smp__attention_end(at, begin + rows) - low;
        float beta = first && begin == last ? 0 : 1;
        const float *block = p + begin * at->keys, *dblock = dout + begin * at->d;
        if (grad[V])
            SMP_TRY(smp_math_gemm(true, false, keys, at->width, rows, 1, block + low, at->keys,
                                  dblock, at->d, beta, grad[V] + low * at->stride[V],
                                  at->stride[V]));
        if (!grad[Q] && !grad[K])
            continue;
        SMP_TRY(score_gradient(at, part[V], p, dout, begin, rows, ds));
        if (at->softcap > 0)
            SMP_TRY(uncap_block(at, part, begin, rows, ds));
        if (grad[Q])
            SMP_TRY(smp_math_gemm(false, false, rows, at->width, keys, at->scale, ds + low,
                                  at->keys, part[K] + low * at->stride[K], at->stride[K], 0,
                                  grad[Q] + begin * at->stride[Q], at->stride[Q]));
        if (grad[K])
            SMP_TRY(smp_math_gemm(true, false, keys, at->width, rows, at->scale, ds + low, at->keys,
                                  part[Q] + begin * at->stride[Q], at->stride[Q], beta,
                                  grad[K] + low * at->stride[K], at->stride[K]));
    }
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    layout at = smp__attention_of(call->graph, call->op);
    const float *p = call->aux;
    for (int64_t b = 0; b < call->batch; b++)
        for (int64_t h = 0; h < at.heads; h++, p += at.queries * at.keys) {
            const float *part[3];
            float *grad[3];
            for (int i = Q; i <= V; i++) {
                int64_t place = smp__attention_place(call, &at, i, b, h);
                float *din = call->din[at.input[i]];
                part[i] = (const float *)call->in[at.input[i]] + place;
                grad[i] = din ? din + place : NULL;
            }
            const float *dout = call->dout[0] + b * at.queries * at.d + h * at.width;
            bool first = h % (at.heads / at.kv_heads) == 0;
            SMP_TRY(head_backward(&at, part, first, p, dout, call->workspace, grad));
        }
    return SMP_OK;
}

/* sums[key - query + Tq - 1] += dS, over the scores of one head of one sample. */
static smp_status sum_distances(const layout *at, const float *v, const float *p, const float *dout,
                                float *ds, float *sums)
{
    for (int64_t begin = 0; begin < at->queries; begin += SMP__ATTENTION_ROWS) {
        int64_t rows = smp__attention_block(at, begin);
        SMP_TRY(score_gradient(at, v, p, dout, begin, rows, ds));
        for (int64_t t = begin; t < begin + rows; t++) {
            int64_t from = smp__attention_first(at, t), n = smp__attention_end(at, t + 1) - from;
            smp__accumulate(sums + at->queries - 1 - t + from, ds + (t - begin) * at->keys + from,
                            n);
        }
    }
    return SMP_OK;
}

/* The gradient of the learned bias: a head's sums over all samples, then by bucket. */
static smp_status backward_weight(const smp_op_call *call)
{
    layout at = smp__attention_of(call->graph, call->op);
    int64_t rows = smp__attention_block(&at, 0);
    int64_t distances = at.queries + at.keys - 1;
    float *ds = call->workspace, *sums = ds + rows * at.keys;
    const float *p = call->aux, *in = call->in[at.input[V]];
    for (int64_t h = 0; h < at.heads; h++) {
        memset(sums, 0, (size_t)distances * sizeof *sums);
        for (int64_t b = 0; b < call->batch; b++)
            SMP_TRY(sum_distances(&at, in + smp__attention_place(call, &at, V, b, h),
                                  p + (b * at.heads + h) * at.queries * at.keys,
                                  call->dout[0] + b * at.queries * at.d + h * at.width, ds, sums));
        for (int64_t i = 0; i < distances; i++)
            call->dparam[0][smp__attention_bucket(&at, i + 1 - at.queries - at.before) * at.heads +
                            h] += sums[i];
    }
    return SMP_OK;
}

/* Whole heads on each device. ALiBi's slopes go by the number of the head among all. */
static bool allows_heads(const smp_graph *graph, const smp_op *op, smp_split_choice choice,
                         int devices)
{
    (void)graph, (void)choice;
    return op->n_in > 2 && !op->attr[SMP__ALIBI].i && kv_heads_of(op->attr) % devices == 0;
}

static bool allows_queries(const smp_graph *graph, const smp_op *op, smp_split_choice choice,
                           int devices)
{
    (void)graph, (void)choice, (void)devices;
    return op->n_in > 2;
}

/* In backward_weight, which may be put off, nothing travels; the learned bias would need that. */
static bool has_ring(const smp_op *op)
{
    return op->attr[SMP__BUCKETS].i == 0 && !(op->attr[SMP__SOFTCAP].f > 0);
}

static bool allows_ring(const smp_graph *graph, const smp_op *op, smp_split_choice choice,
                        int devices)
{
    (void)graph, (void)choice, (void)devices;
    return op->n_in > 2 && has_ring(op);
}

static bool allows_packed_ring(const smp_graph *graph, const smp_op *op, smp_split_choice choice,
                               int devices)
{
    (void)graph, (void)choice, (void)devices;
    return op->n_in <= 2 && has_ring(op);
}

/* Where all positions see as many keys it has nothing to even out. */
static bool allows_zigzag(const smp_graph *graph, const smp_op *op, smp_split_choice choice,
                          int devices)
{
    return op->attr[SMP__CAUSAL].i && allows_ring(graph, op, choice, devices);
}

static bool allows_packed_zigzag(const smp_graph *graph, const smp_op *op, smp_split_choice choice,
                                 int devices)
{
    return op->attr[SMP__CAUSAL].i && allows_packed_ring(graph, op, choice, devices);
}

static bool allows_packed(const smp_graph *graph, const smp_op *op, smp_split_choice choice,
                          int devices)
{
    (void)graph, (void)choice, (void)devices;
    return op->n_in <= 2 && !op->attr[SMP__ALIBI].i;
}

static const smp_split_rule SPLITS[] = {
    {"heads", .in = {SMP_CELL_DIM1, SMP_CELL_DIM1, SMP_CELL_DIM1, SMP_CELL_WHOLE},
     .out = SMP_CELL_DIM1, .param = {SMP_CELL_DIM1},
     .divided = 1u << SMP__HEADS | 1u << SMP__KV_HEADS, .allows = allows_heads},
    {"queries", .in = {SMP_CELL_DIM0, SMP_CELL_SHARED, SMP_CELL_SHARED, SMP_CELL_WHOLE},
     .out = SMP_CELL_DIM0, .param = {SMP_CELL_SHARED}, .allows = allows_queries},
    {"packed heads", .in = {SMP_CELL_QKV, SMP_CELL_WHOLE}, .out = SMP_CELL_DIM1,
     .param = {SMP_CELL_DIM1}, .divided = 1u << SMP__HEADS | 1u << SMP__KV_HEADS,
     .allows = allows_packed},
    {"ring", .in = {SMP_CELL_DIM0, SMP_CELL_DIM0, SMP_CELL_DIM0, SMP_CELL_WHOLE},
     .out = SMP_CELL_DIM0, .allows = allows_ring, .kind = "ring_attention"},
    {"packed ring", .in = {SMP_CELL_DIM0, SMP_CELL_WHOLE}, .out = SMP_CELL_DIM0,
     .allows = allows_packed_ring, .kind = "ring_attention"},
    {"zigzag ring", .in = {SMP_CELL_ZIGZAG, SMP_CELL_ZIGZAG, SMP_CELL_ZIGZAG, SMP_CELL_WHOLE},
     .out = SMP_CELL_ZIGZAG, .allows = allows_zigzag, .kind = "ring_attention"},
    {"packed zigzag ring", .in = {SMP_CELL_ZIGZAG, SMP_CELL_WHOLE}, .out = SMP_CELL_ZIGZAG,
     .allows = allows_packed_zigzag, .kind = "ring_attention"},
    {0},
};

const smp_op_kind smp__op_attention = {
    .name = "attention",
    .summary = "multi-head attention on packed q|k|v or on three inputs, causal or not, with "
               "fewer heads of keys and values, masks, windows, ALiBi, T5's bias, capped scores",
    .sample = "inputs:\n"
              "  qkv: {dtype: float32, shape: [4, 12]}\n"
              "ops:\n"
              "  - {op: attention, name: op, in: qkv, out: y, heads: 2, causal: true}\n",
    .min_in = 1,
    .max_in = 4,
    .attrs = smp__attention_attrs,
    .infer = infer,
    .needs = {[SMP_BACKEND_CPU] = needs, [SMP_BACKEND_CUDA] = cuda_needs},
    .product = product,
    .work = work,
    .split = SPLITS,
    .cpu = {.forward = forward,
            .backward_input = backward_input,
            .backward_weight = backward_weight},
    .cpu16 = &smp__attention_half,
    .index_range = index_range,
};
