/* linear_cross_entropy on a GPU, chunk after chunk as in linear_cross_entropy.c: products by
 * cuBLASLt, the rest by the kernels of cross_entropy.cu on the chunk's logits. All chunks but the
 * last are as long, so there are two plans of each product. The losses are added behind the last
 * chunk, out of the targets' logits, in the order of cross_entropy. */
#include "graph/ops/loss/cross_entropy.cuh"

#include <stdlib.h>

#include "graph/ops/matmul/linear.cuh"
extern "C" {
#include "graph/ops/loss/linear_cross_entropy.h"
}

/* The products of a chunk of so many rows. */
struct chunk_products {
    int64_t rows;
    smp__gemm *forward, *input;
    smp_linear_weight weight;
};

typedef struct loss_state {
    int64_t rows, in, classes;
    struct chunk_products whole, rest; /* the rest has no rows where chunks divide the rows */
} loss_state;

static smp_status make_products(const smp_cuda *cuda, smp_dtype type, const loss_state *s,
                                bool bias, bool training, struct chunk_products *out)
{
    smp__gemm_shape forward = {}, input = {};
    if (out->rows == 0)
        return SMP_OK;
    forward.trans_b = true;
    forward.m = out->rows, forward.n = s->classes, forward.k = s->in;
    forward.lda = s->in, forward.ldb = s->in, forward.ldc = s->classes;
    forward.in = forward.out = type;
    forward.epilogue = bias ? SMP__GEMM_BIAS : SMP__GEMM_PLAIN;
    SMP_TRY(smp__gemm_create(cuda, &forward, &out->forward));
    if (!training)
        return SMP_OK;
    input.m = out->rows, input.n = s->in, input.k = s->classes;
    input.lda = s->classes, input.ldb = s->in, input.ldc = s->in;
    input.in = input.out = type;
    SMP_TRY(smp__gemm_create(cuda, &input, &out->input));
    return smp_linear_weight_create(cuda, type, false, out->rows, s->in, s->classes, bias,
                                    &out->weight);
}

static void free_products(struct chunk_products *products)
{
    smp__gemm_destroy(products->forward);
    smp__gemm_destroy(products->input);
    smp__gemm_destroy(products->weight.product);
}

static void release(void *state)
{
    loss_state *s = static_cast<loss_state *>(state);
    if (!s)
        return;
    free_products(&s->whole);
    free_products(&s->rest);
    free(s);
}

static smp_status prepare(const smp_graph *graph, const smp_op *op, int64_t batch, void *device,
                          void **state)
{
    const smp_cuda *cuda = static_cast<const smp_cuda *>(device);
    const smp_dtype type = smp_precision_dtype(graph->target.precision);
    loss_state *s = static_cast<loss_state *>(calloc(1, sizeof *s));
    *state = NULL;
    if (!s)
        return smp_fail_memory(sizeof *s);
    s->in = smp__columns(smp__in(graph, op, SMP__HIDDEN));
    s->rows = smp__count(smp__in(graph, op, SMP__TARGETS), batch);
    s->classes = op->attr[SMP__LINEAR_FEATURES].i;
    s->whole.rows = smp__chunk_place_of(graph, op, batch, SMP_BACKEND_CUDA).chunk;
    s->rest.rows = s->rows % s->whole.rows;
    smp_status status = make_products(cuda, type, s, op->n_param > 1, graph->training, &s->whole);
    if (status == SMP_OK)
        status = make_products(cuda, type, s, op->n_param > 1, graph->training, &s->rest);
    if (status == SMP_OK)
        *state = s;
    else
        release(s);
    return smp_fail_context(status, "op '%s' (linear_cross_entropy)", op->name);
}

/* All rows of the micro-batch, without logits. */
static smp_class_rows rows_of(const smp_op_call *call)
{
    const loss_state *s = static_cast<const loss_state *>(call->state);
    const smp__chunk_place p =
        smp__chunk_place_of(call->graph, call->op, call->batch, SMP_BACKEND_CUDA);
    char *workspace = static_cast<char *>(call->workspace);
    smp_class_rows r = {};
    r.rows = s->rows;
    r.counted =
        smp__count(smp__in(call->graph, call->op, SMP__TARGETS), call->batch - call->padding);
    r.classes = s->classes;
    r.devices = call->op->attr[SMP__LINEAR_CROSS_ENTROPY_DEVICES].i;
    r.first = r.devices > 1 ? call->graph->device * r.classes : 0;
    r.target = static_cast<const int32_t *>(call->in[SMP__TARGETS]);
    r.stats = static_cast<smp_row_stats *>(call->aux);
    r.count = reinterpret_cast<double *>(r.stats + r.rows);
    r.parts = (int)(smp__cross_entropy_parts_bytes(r.rows) / (int64_t)sizeof(smp_loss_part));
    r.part = reinterpret_cast<smp_loss_part *>(workspace + p.parts);
    r.smoothing = (float)call->op->attr[SMP__LINEAR_CROSS_ENTROPY_SMOOTHING].f;
    r.mean = r.smoothing > 0 ? reinterpret_cast<float *>(workspace + p.mean) : NULL;
    r.own = reinterpret_cast<smp_row_share *>(workspace + p.own);
    r.shares = reinterpret_cast<smp_row_share *>(workspace + p.shares);
    r.target_logit = reinterpret_cast<float *>(workspace + p.target_logit);
    r.before = reinterpret_cast<float *>(workspace + p.before);
    return r;
}

/* n rows of `all` from `row` on, whose logits lie at the start of the workspace. */
static smp_class_rows chunk_of(const smp_op_call *call, const smp_class_rows &all, int64_t row,
                               int64_t n)
{
    const int64_t samples = all.counted - row;
    smp_class_rows r = all;
    r.rows = n;
    r.counted = samples < 0 ? 0 : samples < n ? samples : n;
    r.logits = call->workspace;
    r.target += row;
    r.stats += row;
    r.mean = r.mean ? r.mean + row : NULL;
    r.target_logit += row;
    r.before += row;
    return r;
}

static const struct chunk_products *products_of(const loss_state *s, int64_t row)
{
    return s->rows - row < s->whole.rows ? &s->rest : &s->whole;
}

/* Where the rows of x, or of its gradient, begin that belong to a chunk. */
static int64_t hidden_bytes(const smp_op_call *call, const loss_state *s, int64_t row)
{
    return row * s->in * smp_dtype_bytes(smp_dtype_of_call(call));
}

static smp_status make_logits(const smp_op_call *call, int64_t row)
{
    const loss_state *s = static_cast<const loss_state *>(call->state);
    const char *x = static_cast<const char *>(call->in[SMP__HIDDEN]) + hidden_bytes(call, s, row);
    return smp__gemm_run(smp_cuda_of(call), products_of(s, row)->forward, 1, x, smp_factor(call, 0),
                         0, call->workspace, call->op->n_param > 1 ? smp_factor(call, 1) : NULL,
                         NULL);
}

static smp_status forward(const smp_op_call *call)
{
    const loss_state *s = static_cast<const loss_state *>(call->state);
    const smp_class_rows all = rows_of(call);
    for (int64_t row = 0; row < s->rows; row += s->whole.rows) {
        const smp_class_rows chunk = chunk_of(call, all, row, products_of(s, row)->rows);
        SMP_TRY(make_logits(call, row));
        SMP_TRY(smp_class_rows_make(call, &chunk));
    }
    return smp_class_rows_add(call, &all);
}

static smp_status add_input(const smp_op_call *call, int64_t row)
{
    const loss_state *s = static_cast<const loss_state *>(call->state);
    char *dx = reinterpret_cast<char *>(call->din[SMP__HIDDEN]) + hidden_bytes(call, s, row);
    return smp__gemm_run(smp_cuda_of(call), products_of(s, row)->input, 1, call->workspace,
                         smp_factor(call, 0), 0, dx, NULL, NULL);
}

/* x of a chunk, as the weight's gradient reads it: padding may hold anything, so zeroes stand for
 * it. */
static smp_status find_hidden(const smp_op_call *call, const smp_class_rows *chunk, int64_t row,
                              const void **out)
{
    const loss_state *s = static_cast<const loss_state *>(call->state);
    const smp__chunk_place p =
        smp__chunk_place_of(call->graph, call->op, call->batch, SMP_BACKEND_CUDA);
    cudaStream_t stream = smp_cuda_of(call)->stream;
    const char *x = static_cast<const char *>(call->in[SMP__HIDDEN]) + hidden_bytes(call, s, row);
    char *copy = static_cast<char *>(call->workspace) + p.hidden;
    const size_t samples = (size_t)hidden_bytes(call, s, chunk->counted);
    const size_t padding = (size_t)hidden_bytes(call, s, chunk->rows) - samples;
    *out = padding > 0 ? copy : x;
    if (padding == 0)
        return SMP_OK;
    if (samples > 0)
        SMP_TRY(SMP_CUDA(cudaMemcpyAsync, copy, x, samples, cudaMemcpyDeviceToDevice, stream));
    return SMP_CUDA(cudaMemsetAsync, copy + samples, 0, padding, stream);
}

/* The chunk's logits are dy of a linear, sums of its columns are made after them. */
static smp_status add_weight(const smp_op_call *call, const smp_class_rows *chunk, int64_t row)
{
    const loss_state *s = static_cast<const loss_state *>(call->state);
    const float *dlogits = static_cast<const float *>(call->workspace);
    const int64_t sums =
        smp__chunk_place_of(call->graph, call->op, call->batch, SMP_BACKEND_CUDA).sums;
    const void *x;
    smp_op_call linear = *call;
    linear.dout = &dlogits;
    linear.workspace = static_cast<char *>(call->workspace) + sums;
    linear.fresh = call->fresh && row == 0;
    SMP_TRY(find_hidden(call, chunk, row, &x));
    return smp_linear_weigh(&linear, &products_of(s, row)->weight, dlogits, x);
}

static smp_status walk_back(const smp_op_call *call, bool input, bool weight)
{
    const loss_state *s = static_cast<const loss_state *>(call->state);
    const smp_class_rows all = rows_of(call);
    for (int64_t row = 0; row < s->rows; row += s->whole.rows) {
        const smp_class_rows chunk = chunk_of(call, all, row, products_of(s, row)->rows);
        SMP_TRY(make_logits(call, row));
        SMP_TRY(smp_class_rows_gradient(call, &chunk, call->workspace));
        if (input)
            SMP_TRY(add_input(call, row));
        if (weight)
            SMP_TRY(add_weight(call, &chunk, row));
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

SMP_CUDA_KERNELS(linear_cross_entropy) = {
    .prepare = prepare,
    .release = release,
    .forward = forward,
    .backward_input = backward_input,
    .backward_weight = backward_weight,
    .writes_fresh = true,
    .backward = backward,
};
