/* embedding: row lookup. int32 [T...] -> [T..., features], weight [rows, features].
 *
 * The weight gradient adds rows of dout into the accumulator in the order of positions, so a row
 * that occurs twice has one order of summation. O(T * features). */
#include "graph/ops/ops.h"

#include <string.h>

#include "graph/math/vector.h"
#include "graph/cuda/cuda_order.h"

enum { ROWS, FEATURES, INIT_STD };

static const smp_attr_desc ATTRS[] = {
    [ROWS] = {"rows", SMP_ATTR_INT, true, 0, 1, INT32_MAX, NULL},
    [FEATURES] = {"features", SMP_ATTR_INT, true, 0, 1, INT32_MAX, NULL},
    [INIT_STD] = {"init_std", SMP_ATTR_FLOAT, false, 0.02, 0, 1e6, NULL},
    {0},
};

static smp_status infer(smp_infer *infer)
{
    const smp_tensor *in = infer->in[0];
    if (in->dtype != SMP_I32)
        return smp_infer_fail(infer, "input '%s' is float, expected int32 row numbers", in->name);
    SMP_TRY(smp_infer_dims(infer, 0, 0, SMP_MAX_DIMS - 1));
    infer->out_dtype = SMP_F32;
    infer->out_shape = in->shape;
    infer->out_shape.dim[infer->out_shape.n_dim++] = infer->attr[FEATURES].i;
    infer->n_param = 1;
    infer->param[0] = (smp_param_decl){
        .role = "weight",
        .shape = {2, {infer->attr[ROWS].i, infer->attr[FEATURES].i}},
        .init = SMP_INIT_NORMAL,
        .init_scale = (float)infer->attr[INIT_STD].f,
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
    (void)graph, (void)slot;
    *min = 0;
    *max = op->attr[ROWS].i - 1;
    return true;
}

static smp_status forward(const smp_op_call *call)
{
    const smp_op *op = call->op;
    const int32_t *index = call->in[0];   /* (B, T) */
    const float *weight = call->param[0]; /* (rows, features) */
    float *out = call->out;               /* (B, T, features) */
    int64_t count = smp__count(smp__in(call->graph, op, 0), call->batch);
    int64_t rows = op->attr[ROWS].i, features = op->attr[FEATURES].i;
    for (int64_t i = 0; i < count; i++) {
        if (index[i] < 0 || index[i] >= rows)
            return smp_fail(SMP_ERR_INPUT,
                            "op '%s' (embedding): index %d at position %lld of the micro-batch, "
                            "expected 0 to %lld",
                            op->name, (int)index[i], (long long)i, (long long)rows - 1);
        memcpy(out + i * features, weight + index[i] * features, (size_t)features * 4);
    }
    return SMP_OK;
}

/* The indices were checked by the forward call on the same micro-batch. */
static smp_status backward_weight(const smp_op_call *call)
{
    const int32_t *index = call->in[0];
    int64_t count = smp__count(smp__in(call->graph, call->op, 0), call->batch);
    int64_t features = call->op->attr[FEATURES].i;
    for (int64_t i = 0; i < count; i++)
        smp__accumulate(call->dparam[0] + index[i] * features, call->dout + i * features, features);
    return SMP_OK;
}

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
    .needs = needs,
    .cuda_needs = cuda_needs,
    .work = work,
    .cpu = {.forward = forward, .backward_weight = backward_weight},
    .index_range = index_range,
};
