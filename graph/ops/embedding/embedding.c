/* embedding: row lookup. int32 [T...] -> [T..., features], weight [rows, features].
 *
 * The weight gradient adds rows of dout into the accumulator in the order of positions, so a row
 * that occurs twice has one order of summation. O(T * features).
 *
 * Row `padding_idx` of the whole table takes no gradient here, as in PyTorch; other uses of a tied
 * weight may give it one.
 *
 * Of several devices that each have a part of the rows (split by `rows`), each makes zeroes of the
 * rows of others. */
#include "graph/ops/embedding/embedding.h"

#include <string.h>

#include "graph/math/vector.h"
#include "graph/cuda/cuda_order.h"

static const smp_attr_desc ATTRS[] = {
    [SMP__EMBEDDING_ROWS] = {"rows", SMP_ATTR_INT, true, 0, 1, INT32_MAX, NULL},
    [SMP__EMBEDDING_FEATURES] = {"features", SMP_ATTR_INT, true, 0, 1, INT32_MAX, NULL},
    [SMP__EMBEDDING_INIT_STD] = {"init_std", SMP_ATTR_FLOAT, false, 0.02, 0, 1e6, NULL},
    [SMP__EMBEDDING_PADDING] = {"padding_idx", SMP_ATTR_INT, false, -1, -1, INT32_MAX, NULL},
    {0},
};

static smp_status infer(smp_infer *infer)
{
    const smp_tensor *in = infer->in[0];
    if (in->dtype != SMP_I32)
        return smp_infer_fail(infer, "input '%s' is float, expected int32 row numbers", in->name);
    SMP_TRY(smp_infer_dims(infer, 0, 0, SMP_MAX_DIMS - 1));
    const int64_t rows = infer->attr[SMP__EMBEDDING_ROWS].i;
    const int64_t padding = infer->attr[SMP__EMBEDDING_PADDING].i;
    if (padding >= rows)
        return smp_infer_fail(infer, "padding_idx: got %lld, expected a row from 0 to %lld",
                              (long long)padding, (long long)rows - 1);
    infer->out_dtype = SMP_F32;
    infer->out_shape = in->shape;
    infer->out_shape.dim[infer->out_shape.n_dim++] = infer->attr[SMP__EMBEDDING_FEATURES].i;
    infer->n_param = 1;
    infer->param[0] = (smp_param_decl){
        .role = "weight",
        .shape = {2, {rows, infer->attr[SMP__EMBEDDING_FEATURES].i}},
        .init = SMP_INIT_NORMAL,
        .init_scale = (float)infer->attr[SMP__EMBEDDING_INIT_STD].f,
    };
    return SMP_OK;
}

static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    (void)graph, (void)op, (void)batch;
    *needs = (smp_op_needs){.weight_grad_in = 1};
}

static void cuda_needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    int64_t count = smp__count(smp__in(graph, op, 0), batch);
    *needs = (smp_op_needs){.weight_grad_in = 1, .workspace_bytes = smp__order_bytes(count)};
}

smp__own_rows smp__embedding_rows(const smp_graph *graph, const smp_op *op)
{
    const smp_part *part = &graph->param[op->param[0]].part;
    const int64_t rows = op->attr[SMP__EMBEDDING_ROWS].i;
    if (part->spread.way != SMP_SPLIT || part->spread.dim != 0)
        return (smp__own_rows){0, rows, rows};
    return (smp__own_rows){part->index * rows, rows, part->count * rows};
}

/* Only the rows that occur are touched, not the whole table. */
static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    double in = (double)smp_tensor_bytes(graph, op->in[0], batch);
    double out = (double)smp_tensor_bytes(graph, op->out, batch);
    *work = (smp_op_work){
        .forward_bytes = in + 2 * out,
        .backward_weight_bytes = in + 3 * out,
        .backward_weight_flops = out / 4,
    };
}

static bool index_range(const smp_graph *graph, const smp_op *op, int slot, int64_t *min,
                        int64_t *max)
{
    (void)slot;
    *min = 0;
    *max = smp__embedding_rows(graph, op).all - 1;
    return true;
}

static smp_status forward(const smp_op_call *call)
{
    const smp_op *op = call->op;
    const int32_t *index = call->in[0];   /* (B, T) */
    const float *weight = call->param[0]; /* (rows, features) */
    float *out = call->out[0];            /* (B, T, features) */
    int64_t count = smp__count(smp__in(call->graph, op, 0), call->batch);
    int64_t features = op->attr[SMP__EMBEDDING_FEATURES].i;
    const smp__own_rows rows = smp__embedding_rows(call->graph, op);
    for (int64_t i = 0; i < count; i++) {
        const int64_t row = index[i] - rows.first;
        if (index[i] < 0 || index[i] >= rows.all)
            return smp_fail(SMP_ERR_INPUT,
                            "op '%s' (embedding): index %d at position %lld of the micro-batch, "
                            "expected 0 to %lld",
                            op->name, (int)index[i], (long long)i, (long long)rows.all - 1);
        if (row >= 0 && row < rows.count)
            memcpy(out + i * features, weight + row * features, (size_t)features * 4);
        else
            memset(out + i * features, 0, (size_t)features * 4);
    }
    return SMP_OK;
}

/* The indices were checked by the forward call on the same micro-batch. */
static smp_status backward_weight(const smp_op_call *call)
{
    const int32_t *index = call->in[0];
    int64_t count = smp__count(smp__in(call->graph, call->op, 0), call->batch);
    int64_t features = call->op->attr[SMP__EMBEDDING_FEATURES].i;
    const int64_t padding = call->op->attr[SMP__EMBEDDING_PADDING].i;
    const smp__own_rows rows = smp__embedding_rows(call->graph, call->op);
    for (int64_t i = 0; i < count; i++) {
        const int64_t row = index[i] - rows.first;
        if (row >= 0 && row < rows.count && index[i] != padding)
            smp__accumulate(call->dparam[0] + row * features, call->dout[0] + i * features,
                            features);
    }
    return SMP_OK;
}

static const smp_split_rule SPLITS[] = {
    {"rows", .in = {SMP_CELL_WHOLE}, .out = SMP_CELL_PARTS, .param = {SMP_CELL_DIM0},
     .divided = 1u << SMP__EMBEDDING_ROWS},
    {"features", .in = {SMP_CELL_WHOLE}, .out = SMP_CELL_LAST, .param = {SMP_CELL_DIM1},
     .divided = 1u << SMP__EMBEDDING_FEATURES},
    {0},
};

const smp_op_kind smp__op_embedding = {
    .name = "embedding",
    .summary = "rows of a weight table chosen by int32 indices",
    .sample = "inputs:\n"
              "  tokens: {dtype: int32, shape: [4]}\n"
              "ops:\n"
              "  - {op: embedding, name: op, in: tokens, out: x, rows: 9, features: 6}\n",
    .min_in = 1,
    .max_in = 1,
    .attrs = ATTRS,
    .infer = infer,
    .needs = {[SMP_BACKEND_CPU] = needs, [SMP_BACKEND_CUDA] = cuda_needs},
    .work = work,
    .split = SPLITS,
    .cpu = {.forward = forward, .backward_weight = backward_weight},
    .index_range = index_range,
};
