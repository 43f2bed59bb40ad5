/* expert_linear: for each expert its own y = x W^T, [experts, places, in] -> [experts, places,
 * features], W [experts, features, in]. Three products of 2 * rows * in * features flops, each in
 * one GEMM per sample and expert. */
#include "graph/ops/ops.h"

#include <math.h>

#include "graph/math/math.h"

enum { FEATURES, INIT_STD };

static const smp_attr_desc ATTRS[] = {
    [FEATURES] = {"features", SMP_ATTR_INT, true, 0, 1, INT32_MAX, NULL},
    [INIT_STD] = {"init_std", SMP_ATTR_FLOAT, false, 0, 0, 1e6, NULL},
    {0},
};

static smp_status infer(smp_infer *infer)
{
    SMP_TRY(smp_infer_dims(infer, 0, 3, 3));
    SMP_TRY(smp__infer_like_input(infer));
    const int64_t *in = infer->in[0]->shape.dim, features = infer->attr[FEATURES].i;
    float std = (float)infer->attr[INIT_STD].f;
    infer->out_shape.dim[2] = features;
    infer->n_param = 1;
    infer->param[0] = (smp_param_decl){
        .role = "weight",
        .shape = {3, {in[0], features, in[2]}},
        .init = std > 0 ? SMP_INIT_NORMAL : SMP_INIT_UNIFORM,
        .init_scale = std > 0 ? std : (float)(1.0 / sqrt((double)in[2])),
    };
    return SMP_OK;
}

static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    (void)graph, (void)op, (void)batch;
    *needs = (smp_op_needs){.weight_grad_in = 1};
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    double flops = 2.0 * (double)smp__count(smp__out(graph, op), batch) *
                   (double)smp__columns(smp__in(graph, op, 0));
    smp__work_bytes(graph, op, batch, work);
    work->forward_flops = work->backward_input_flops = work->backward_weight_flops = flops;
    work->kind = SMP_OP_PRODUCT;
    const int64_t *x = smp__in(graph, op, 0)->shape.dim; /* (experts, places, in) */
    work->product = (smp_op_product){batch * x[0], x[1], op->attr[FEATURES].i, x[2]};
}

/* One sample's places of one expert. */
typedef struct sizes {
    int64_t blocks, experts, places, in, features;
} sizes;

static sizes sizes_of(const smp_op_call *call)
{
    const int64_t *x = smp__in(call->graph, call->op, 0)->shape.dim;
    return (sizes){call->batch * x[0], x[0], x[1], x[2], call->op->attr[FEATURES].i};
}

static smp_status forward(const smp_op_call *call)
{
    const sizes s = sizes_of(call);
    const float *x = call->in[0];
    float *y = call->out[0];
    for (int64_t i = 0; i < s.blocks; i++)
        SMP_TRY(smp_math_gemm(false, true, s.places, s.features, s.in, 1, x + i * s.places * s.in,
                              s.in, call->param[0] + i % s.experts * s.features * s.in, s.in, 0,
                              y + i * s.places * s.features, s.features));
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    const sizes s = sizes_of(call);
    for (int64_t i = 0; call->din[0] && i < s.blocks; i++)
        SMP_TRY(smp_math_gemm(false, false, s.places, s.in, s.features, 1,
                              call->dout[0] + i * s.places * s.features, s.features,
                              call->param[0] + i % s.experts * s.features * s.in, s.in, 0,
                              call->din[0] + i * s.places * s.in, s.in));
    return SMP_OK;
}

static smp_status backward_weight(const smp_op_call *call)
{
    const sizes s = sizes_of(call);
    const float *x = call->in[0];
    for (int64_t i = 0; i < s.blocks; i++)
        SMP_TRY(smp_math_gemm(true, false, s.features, s.in, s.places, 1,
                              call->dout[0] + i * s.places * s.features, s.features,
                              x + i * s.places * s.in, s.in, 1,
                              call->dparam[0] + i % s.experts * s.features * s.in, s.in));
    return SMP_OK;
}

static const smp_split_rule SPLITS[] = {
    {"experts", .in = {SMP_CELL_DIM0}, .out = SMP_CELL_DIM0, .param = {SMP_CELL_DIM0}},
    {"places", .in = {SMP_CELL_DIM1}, .out = SMP_CELL_DIM1, .param = {SMP_CELL_SHARED}},
    {"columns", .in = {SMP_CELL_SHARED}, .out = SMP_CELL_DIM2, .param = {SMP_CELL_DIM1},
     .divided = 1u << FEATURES},
    {"rows", .in = {SMP_CELL_DIM2}, .out = SMP_CELL_PARTS, .param = {SMP_CELL_DIM2}},
    {0},
};

const smp_op_kind smp__op_expert_linear = {
    .name = "expert_linear",
    .summary = "a linear layer of its own for each expert of a mixture",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [3, 2, 6]}\n"
              "ops:\n"
              "  - {op: expert_linear, name: op, in: x, out: y, features: 5}\n",
    .min_in = 1,
    .max_in = 1,
    .attrs = ATTRS,
    .infer = infer,
    .needs = {needs},
    .work = work,
    .split = SPLITS,
    .cpu = {.forward = forward,
            .backward_input = backward_input,
            .backward_weight = backward_weight},
    .rounded = SMP_ROUNDED_ON_GPU(1),
};
