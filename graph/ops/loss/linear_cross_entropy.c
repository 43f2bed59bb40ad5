/* linear_cross_entropy: x [.., in] and int32 targets [..] -> the cross_entropy of the logits
 * x W^T + b [.., features], which are never in memory as a whole: a chunk of rows is made, and what
 * the loss needs of it taken, before the next. A row is always whole, so its softmax is one; rows
 * of a chunk follow from sizes (chunk_rows).
 *
 * Backward makes the logits of a chunk again, one product more, and their gradient in place; of
 * that dx = dlogits W, dW += dlogits^T x, db += column sums of dlogits, chunk after chunk in order.
 * Both gradients at once make them once. (Chunks of rows as in Hsu et al., "Liger Kernel", 2024,
 * logits made again as in Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models",
 * 2024; gradients of weights are made in backward, which may be put off.)
 *
 * Memory besides x and the weights: a chunk of logits, two floats a row. */
#include "graph/ops/collective/collective.h"
#include "graph/ops/loss/linear_cross_entropy.h"

#include <string.h>

#include "graph/math/math.h"
#include "graph/math/vector.h"

enum {
    BIAS = SMP__LINEAR_BIAS,
    FEATURES = SMP__LINEAR_FEATURES,
    SMOOTHING = SMP__LINEAR_CROSS_ENTROPY_SMOOTHING,
    CHUNK = SMP__LINEAR_CROSS_ENTROPY_CHUNK,
    DEVICES = SMP__LINEAR_CROSS_ENTROPY_DEVICES,
    ROWS_STEP = 64 /* so that chunks of x start at multiples of 64 bytes whatever its width */
};

static const smp_attr_desc ATTRS[] = {
    SMP__LINEAR_ATTRS,
    [SMOOTHING] = {"label_smoothing", SMP_ATTR_FLOAT, false, 0, 0, 1, NULL},
    [CHUNK] = {"chunk", SMP_ATTR_INT, false, 0, 0, INT32_MAX, NULL},
    [DEVICES] = {"devices", SMP_ATTR_INT, false, 1, 1, SMP__MOST_DEVICES, NULL},
    {0},
};

/* Rows of a chunk: as many as the file says, or as fit; all of them where these are fewer. */
static int64_t chunk_rows(const smp_op *op, int64_t rows)
{
    const int64_t fit = SMP__CHUNK_LOGITS / op->attr[FEATURES].i / ROWS_STEP * ROWS_STEP;
    const int64_t most = op->attr[CHUNK].i > 0 ? op->attr[CHUNK].i : fit;
    return rows <= most ? rows : most > 0 ? most : ROWS_STEP;
}

static smp_status infer(smp_infer *infer)
{
    SMP_TRY(smp__infer_linear(infer));
    if (infer->attr[CHUNK].i % ROWS_STEP != 0)
        return smp_infer_fail(infer, "chunk: got %lld rows, expected a multiple of %d",
                              (long long)infer->attr[CHUNK].i, (int)ROWS_STEP);
    const smp_shape logits = infer->out_shape;
    return smp__infer_cross_entropy(infer, &logits, infer->attr[DEVICES].i);
}

static int64_t take_bytes(int64_t *end, int64_t bytes)
{
    const int64_t at = *end;
    *end += (bytes + 63) / 64 * 64;
    return at;
}

smp__chunk_place smp__chunk_place_of(const smp_graph *graph, const smp_op *op, int64_t batch,
                                     smp_backend backend)
{
    const bool gpu = backend == SMP_BACKEND_CUDA;
    const smp_dtype type = gpu ? smp_precision_dtype(graph->target.precision) : SMP_F32;
    const int64_t rows = smp__count(smp__in(graph, op, SMP__TARGETS), batch);
    const int64_t chunk = chunk_rows(op, rows), devices = op->attr[DEVICES].i;
    const int64_t share = chunk * (int64_t)sizeof(smp__row_share);
    const int64_t value = rows * (int64_t)sizeof(float);
    const int64_t in = smp__columns(smp__in(graph, op, SMP__HIDDEN));
    smp__chunk_place p = {.chunk = chunk};
    p.logits = take_bytes(&p.end, chunk * op->attr[FEATURES].i * smp_dtype_bytes(type));
    p.own = take_bytes(&p.end, devices > 1 || gpu ? share : 0);
    p.shares = take_bytes(&p.end, devices > 1 ? devices * share : 0);
    if (!gpu)
        return p;
    p.parts = take_bytes(&p.end, smp__cross_entropy_parts_bytes(rows));
    p.target_logit = take_bytes(&p.end, value);
    p.mean = take_bytes(&p.end, op->attr[SMOOTHING].f > 0 ? value : 0);
    p.before = take_bytes(&p.end, value);
    p.hidden = take_bytes(&p.end, graph->training ? chunk * in * smp_dtype_bytes(type) : 0);
    p.sums = take_bytes(&p.end, op->attr[BIAS].i && graph->training
                                    ? smp__column_sum_bytes(chunk, op->attr[FEATURES].i)
                                    : 0);
    return p;
}

static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    const uint32_t both = 1u << SMP__HIDDEN | 1u << SMP__TARGETS;
    *needs = (smp_op_needs){
        .input_grad_in = both,
        .weight_grad_in = both,
        .input_grad_aux = true,
        .weight_grad_aux = true,
        .aux_bytes = smp__in(graph, op, SMP__TARGETS)->elements * (int64_t)sizeof(smp__row_stats),
        .workspace_bytes = smp__chunk_place_of(graph, op, batch, SMP_BACKEND_CPU).end,
    };
}

static void cuda_needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *out)
{
    needs(graph, op, batch, out);
    out->aux_bytes += (int64_t)sizeof(double); /* of the targets that count, as cross_entropy */
    out->workspace_bytes = smp__chunk_place_of(graph, op, batch, SMP_BACKEND_CUDA).end;
}

/* As arithmetic the products alone count: of the loss itself memory decides. With both gradients
 * made at once, logits are made again for that of the weights; without trained weights for the
 * other. */
static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    const int64_t rows = smp__count(smp__in(graph, op, SMP__TARGETS), batch);
    const int64_t in = smp__columns(smp__in(graph, op, SMP__HIDDEN)), devices = op->attr[DEVICES].i;
    const int64_t chunks = (rows + chunk_rows(op, rows) - 1) / chunk_rows(op, rows);
    const double logits = (double)rows * (double)op->attr[FEATURES].i;
    const double bytes =
        logits * (double)smp_dtype_bytes(smp_precision_dtype(graph->target.precision));
    const double product = 2.0 * logits * (double)in, bias = op->attr[BIAS].i ? logits : 0;
    const bool trained = smp_op_has_trained(graph, op);
    smp__work_bytes(graph, op, batch, work);
    work->forward_flops = product + bias;
    work->backward_input_flops = product + (trained ? 0 : product + bias);
    work->backward_weight_flops = product + bias + (trained ? product + bias : 0);
    work->forward_bytes += 2 * bytes;
    work->backward_input_bytes += trained ? bytes : 4 * bytes;
    work->backward_weight_bytes += trained ? 4 * bytes : bytes;
    work->kind = SMP_OP_PRODUCT;
    work->product = (smp_op_product){1, rows, op->attr[FEATURES].i, in};
    work->forward_exchange =
        smp_op_exchange_each(devices, rows * (int64_t)(sizeof(smp__row_share) / sizeof(float)));
    work->forward_exchange.messages *= chunks; /* the last one's are shorter: the mean */
    work->forward_exchange.bytes /= chunks;
}

static bool index_range(const smp_graph *graph, const smp_op *op, int slot, int64_t *min,
                        int64_t *max)
{
    (void)graph;
    if (slot != SMP__TARGETS)
        return false;
    *min = SMP__IGNORED_TARGET;
    *max = op->attr[FEATURES].i * op->attr[DEVICES].i - 1;
    return true;
}

/* What the calls walk over: chunk after chunk of the samples' rows. Padding may hold anything, so
 * no product reads it. */
typedef struct walk {
    int64_t all, counted, chunk; /* rows of the micro-batch, of its samples, of a chunk */
    int64_t in, features;
    float *logits;        /* (chunk, features) */
    int64_t row, n;       /* of the chunk at hand */
    smp__class_rows rows; /* likewise */
} walk;

static walk walk_of(const smp_op_call *call)
{
    const smp_tensor *target = smp__in(call->graph, call->op, SMP__TARGETS);
    const smp__chunk_place place =
        smp__chunk_place_of(call->graph, call->op, call->batch, SMP_BACKEND_CPU);
    char *workspace = call->workspace;
    walk w = {
        .all = smp__count(target, call->batch),
        .counted = smp__count(target, call->batch - call->padding),
        .in = smp__columns(smp__in(call->graph, call->op, SMP__HIDDEN)),
        .features = call->op->attr[FEATURES].i,
        .chunk = place.chunk,
        .logits = (float *)(void *)(workspace + place.logits),
    };
    w.rows = (smp__class_rows){
        .call = call,
        .logits = w.logits,
        .classes = w.features,
        .devices = call->op->attr[DEVICES].i,
        .smoothing = call->op->attr[SMOOTHING].f,
        .own = (smp__row_share *)(void *)(workspace + place.own),
        .shares = (smp__row_share *)(void *)(workspace + place.shares),
    };
    return w;
}

/* Makes the logits of the chunk that begins at w->row. */
static smp_status make_logits(const smp_op_call *call, walk *w)
{
    const float *x = (const float *)call->in[SMP__HIDDEN] + w->row * w->in;
    const bool bias = call->op->attr[BIAS].i;
    w->n = w->counted - w->row < w->chunk ? w->counted - w->row : w->chunk;
    w->rows.first = w->row;
    w->rows.counted = w->n;
    w->rows.target = (const int32_t *)call->in[SMP__TARGETS] + w->row;
    w->rows.stats = (smp__row_stats *)call->aux + w->row;
    for (int64_t r = 0; bias && r < w->n; r++)
        memcpy(w->logits + r * w->features, call->param[1],
               (size_t)w->features * sizeof *w->logits);
    return smp_math_gemm(false, true, w->n, w->features, w->in, 1, x, w->in, call->param[0], w->in,
                         bias ? 1 : 0, w->logits, w->features);
}

static smp_status forward(const smp_op_call *call)
{
    walk w = walk_of(call);
    for (; w.row < w.counted; w.row += w.chunk) {
        SMP_TRY(make_logits(call, &w));
        SMP_TRY(smp__class_rows_add(&w.rows));
    }
    smp__class_rows_end(&w.rows);
    return SMP_OK;
}

static smp_status add_input(const smp_op_call *call, const walk *w)
{
    return smp_math_gemm(false, false, w->n, w->in, w->features, 1, w->logits, w->features,
                         call->param[0], w->in, 0, call->din[SMP__HIDDEN] + w->row * w->in, w->in);
}

static smp_status add_weight(const smp_op_call *call, const walk *w)
{
    const float *x = (const float *)call->in[SMP__HIDDEN] + w->row * w->in;
    if (call->op->attr[BIAS].i)
        smp__column_sums(call->dparam[1], w->logits, w->n, w->features, w->features);
    return smp_math_gemm(true, false, w->features, w->in, w->n, 1, w->logits, w->features, x, w->in,
                         call->fresh && w->row == 0 ? 0 : 1, call->dparam[0], w->in);
}

/* What holds nothing yet and is added to, or not even that. */
static void clear_fresh(const smp_op_call *call, const walk *w)
{
    if (call->op->attr[BIAS].i)
        memset(call->dparam[1], 0, (size_t)w->features * sizeof(float));
    if (w->counted == 0)
        memset(call->dparam[0], 0, (size_t)(w->features * w->in) * sizeof(float));
}

static smp_status walk_back(const smp_op_call *call, bool input, bool weight)
{
    walk w = walk_of(call);
    const int64_t count = smp__cross_entropy_counted(call->in[SMP__TARGETS], w.counted);
    const float scale = *call->dout[0] / (float)(count > 0 ? count : 1);
    if (weight && call->fresh)
        clear_fresh(call, &w);
    if (input)
        memset(call->din[SMP__HIDDEN] + w.counted * w.in, 0,
               (size_t)((w.all - w.counted) * w.in) * sizeof(float));
    for (; w.row < w.counted; w.row += w.chunk) {
        SMP_TRY(make_logits(call, &w));
        smp__class_rows_gradient(&w.rows, 0, scale, w.logits);
        if (input)
            SMP_TRY(add_input(call, &w));
        if (weight)
            SMP_TRY(add_weight(call, &w));
        if (call->group && call->group->look)
            SMP_TRY(call->group->look(call->group->context));
    }
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    return call->din[SMP__HIDDEN] ? walk_back(call, true, false) : SMP_OK;
}

static smp_status backward_weight(const smp_op_call *call)
{
    return walk_back(call, false, true);
}

static smp_status backward(const smp_op_call *call)
{
    return walk_back(call, call->din[SMP__HIDDEN], true);
}

/* The classes of a device follow each other. */
static const smp_split_rule SPLITS[] = {
    {"classes", .in = {SMP_CELL_SHARED, SMP_CELL_WHOLE}, .out = SMP_CELL_WHOLE,
     .param = {SMP_CELL_DIM0, SMP_CELL_DIM0}, .divided = 1u << FEATURES},
    {0},
};

const smp_op_kind smp__op_linear_cross_entropy = {
    .name = "linear_cross_entropy",
    .summary = "cross_entropy of a linear's output, of which memory holds a chunk of rows",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [70, 6]}\n"
              "  targets: {dtype: int32, shape: [70]}\n"
              "ops:\n"
              "  - {op: linear_cross_entropy, name: op, in: [x, targets], out: loss, features: 5, "
              "chunk: 64}\n",
    .min_in = 2,
    .max_in = 2,
    .attrs = ATTRS,
    .infer = infer,
    .needs = {[SMP_BACKEND_CPU] = needs, [SMP_BACKEND_CUDA] = cuda_needs},
    .work = work,
    .split = SPLITS,
    .cpu = {.forward = forward,
            .backward_input = backward_input,
            .backward_weight = backward_weight,
            .writes_fresh = true,
            .backward = backward},
    .rounded = SMP_ROUNDED_ON_GPU(3),
    .index_range = index_range,
    .rows_counted = smp__cross_entropy_counted,
    .rows_in = SMP__TARGETS,
    .counts_hits = true,
};
