/* position_embedding: y = x + weight, weight [T, d] the same for every sample. x [T, d].
 *
 * The weight gradient is the sum of dout over the samples, in order. O(B * T * d). */
#include "graph/ops/ops.h"

#include <string.h>

#include "graph/math/vector.h"

enum { INIT_STD };

static const smp_attr_desc ATTRS[] = {
    [INIT_STD] = {"init_std", SMP_ATTR_FLOAT, false, 0.02, 0, 1e6, NULL},
    {0},
};

static smp_status infer(smp_infer *infer)
{
    SMP_TRY(smp_infer_dims(infer, 0, 2, 2));
    SMP_TRY(smp__infer_like_input(infer));
    infer->n_param = 1;
    infer->param[0] = (smp_param_decl){
        .role = "weight",
        .shape = infer->in[0]->shape,
        .init = SMP_INIT_NORMAL,
        .init_scale = (float)infer->attr[INIT_STD].f,
    };
    return SMP_OK;
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    smp__work_elementwise(graph, op, batch, 1, 0, work);
    work->backward_weight_flops = work->forward_flops;
}

static smp_status forward(const smp_op_call *call)
{
    const float *x = call->in[0]; /* (B, T, d) */
    float *out = call->out[0];
    int64_t n = smp__in(call->graph, call->op, 0)->elements;
    for (int64_t b = 0; b < call->batch; b++)
        smp__add(out + b * n, x + b * n, call->param[0], n);
    return SMP_OK;
}

static smp_status backward_weight(const smp_op_call *call)
{
    int64_t n = smp__in(call->graph, call->op, 0)->elements;
    smp__column_sums(call->dparam[0], call->dout[0], call->batch, n, n);
    return SMP_OK;
}

static const smp_split_rule SPLITS[] = {
    {"positions", .in = {SMP_CELL_DIM0}, .out = SMP_CELL_DIM0, .param = {SMP_CELL_DIM0}},
    {"features", .in = {SMP_CELL_DIM1}, .out = SMP_CELL_DIM1, .param = {SMP_CELL_DIM1}},
    {0},
};

const smp_op_kind smp__op_position_embedding = {
    .name = "position_embedding",
    .summary = "adds a learned vector to every position",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [4, 6]}\n"
              "ops:\n"
              "  - {op: position_embedding, name: op, in: x, out: y}\n",
    .min_in = 1,
    .max_in = 1,
    .passes_dout = true,
    .attrs = ATTRS,
    .infer = infer,
    .work = work,
    .split = SPLITS,
    .cpu = {.forward = forward, .backward_weight = backward_weight},
};
