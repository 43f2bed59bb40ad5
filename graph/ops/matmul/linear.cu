/* linear on a GPU: three products in cuBLASLt, each one call that reads its factors where they lie.
 *
 *   y[rows, features]   = x[rows, in] W^T + b     bias (and GELU, for a pair) in the epilogue
 *   dx[rows, in]        = dy[rows, features] W    times GELU's slope, for a pair, in the epilogue
 *   dW[features, in]   += dy^T x                  fp32 whatever the factors, beta 1 (0 if fresh)
 *   db[features]       += column sums of dy       in the epilogue of dW: out of what that reads
 *
 * In fp8 (smp__linear_is_fp8) both factors of each are rounded before it, in the workspace. Hopper
 * multiplies rows by rows: of W there is a transposed copy for dx, of dy and x for dW, whose rows
 * are then as many as there are places, rounded up to 16. Sums of dy are those of its bf16.
 */
#include "graph/ops/matmul/linear.cuh"

#include "graph/ops/matmul/linear_fp8.h"
extern "C" {
#include "graph/ops/matmul/linear.h"
}

#include <stdlib.h>
#include <string.h>

typedef struct linear_state {
    smp__gemm *forward, *input;
    /* With the GELU that follows, and of the input with that before; NULL: as two calls. */
    smp__gemm *pair, *input_pair;
    smp_linear_weight weight;
    int64_t rows, in, features;
    bool fp8;
} linear_state;

static smp_dtype activation_type(const smp_graph *graph)
{
    return smp_precision_dtype(graph->target.precision);
}

static smp__gemm_shape forward_shape(const smp_graph *graph, const smp_op *op,
                                     const linear_state *s)
{
    smp__gemm_shape shape = {};
    shape.trans_b = true;
    shape.m = s->rows, shape.n = s->features, shape.k = s->in;
    shape.lda = s->in, shape.ldb = s->in, shape.ldc = s->features;
    shape.in = shape.out = activation_type(graph);
    shape.epilogue = op->n_param > 1 ? SMP__GEMM_BIAS : SMP__GEMM_PLAIN;
    shape.fp8 = s->fp8 ? SMP__GEMM_FP8 : SMP__GEMM_NO_FP8;
    return shape;
}

/* Before Hopper the library's product with GELU and a second output takes longer than a product and
 * a pass over its result (karpathy/llm.c, pull request 338); the product with GELU's gradient is
 * assumed to. */
enum { FUSES_FROM = 90 };

static smp_status make_input_pair(const smp_graph *graph, const smp_op *op, const smp_cuda *cuda,
                                  const smp__gemm_shape *input, linear_state *s)
{
    const int32_t index = (int32_t)(op - graph->op);
    if (index == 0 || !smp_op_fused_backward(graph, index - 1) || cuda->capability < FUSES_FROM)
        return SMP_OK;
    smp__gemm_shape pair = *input;
    pair.epilogue = SMP__GEMM_GELU_GRADIENT;
    return smp__gemm_create(cuda, &pair, &s->input_pair);
}

static smp_status make_backward(const smp_graph *graph, const smp_op *op, const smp_cuda *cuda,
                                linear_state *s)
{
    smp__gemm_shape input = {};
    input.m = s->rows, input.n = s->in, input.k = s->features;
    input.lda = s->features, input.ldb = s->in, input.ldc = s->in;
    input.in = input.out = activation_type(graph);
    if (s->fp8) {
        input.fp8 = SMP__GEMM_FP8_GRADIENT;
        input.trans_b = true; /* of the copy */
        input.ldb = s->features;
    }
    SMP_TRY(smp__gemm_create(cuda, &input, &s->input));
    SMP_TRY(make_input_pair(graph, op, cuda, &input, s));
    return smp_linear_weight_create(cuda, input.in, s->fp8, s->rows, s->in, s->features,
                                    op->n_param > 1, &s->weight);
}

static smp_status make_pair(const smp_graph *graph, const smp_op *op, const smp_cuda *cuda,
                            linear_state *s)
{
    if (!smp_op_fused(graph, (int32_t)(op - graph->op)) || cuda->capability < FUSES_FROM)
        return SMP_OK;
    smp__gemm_shape pair = forward_shape(graph, op, s);
    pair.epilogue = op->n_param > 1 ? SMP__GEMM_GELU_BIAS : SMP__GEMM_GELU;
    return smp__gemm_create(cuda, &pair, &s->pair);
}

static smp_status make_plans(const smp_graph *graph, const smp_op *op, const smp_cuda *cuda,
                             linear_state *s)
{
    const smp__gemm_shape shape = forward_shape(graph, op, s);
    SMP_TRY(smp__gemm_create(cuda, &shape, &s->forward));
    SMP_TRY(make_pair(graph, op, cuda, s));
    return graph->training ? make_backward(graph, op, cuda, s) : SMP_OK;
}

static void release(void *state)
{
    linear_state *s = static_cast<linear_state *>(state);
    if (!s)
        return;
    smp__gemm_destroy(s->forward);
    smp__gemm_destroy(s->pair);
    smp__gemm_destroy(s->input);
    smp__gemm_destroy(s->input_pair);
    smp__gemm_destroy(s->weight.product);
    free(s);
}

static smp_status prepare(const smp_graph *graph, const smp_op *op, int64_t batch, void *device,
                          void **state)
{
    const smp_tensor *in = smp__in(graph, op, 0);
    linear_state *s = static_cast<linear_state *>(calloc(1, sizeof *s));
    *state = NULL;
    if (!s)
        return smp_fail_memory(sizeof *s);
    s->in = smp__columns(in);
    s->rows = smp__count(in, batch) / s->in;
    s->features = smp__columns(smp__out(graph, op));
    s->fp8 = smp__linear_is_fp8(graph, op);
    smp_status status = make_plans(graph, op, static_cast<const smp_cuda *>(device), s);
    if (status == SMP_OK)
        *state = s;
    else
        release(s);
    return smp_fail_context(status, "op '%s' (linear)", op->name);
}

/* The weight or bias in the type of the activations. */
static const void *factor(const smp_op_call *call, int slot)
{
    return slot < call->op->n_param ? smp_factor(call, slot) : NULL;
}

/* An activation or its gradient, of whose rows padding has no say in the scale. */
static smp__fp8_factor activation(const smp_op_call *call, const smp_tensor *of, const void *value,
                                  smp_fp8 format)
{
    smp__fp8_factor f = {};
    f.value = value;
    f.columns = smp__columns(of);
    f.rows = smp__count(of, call->batch) / f.columns;
    f.counted = smp__count(of, call->batch - call->padding) / f.columns;
    f.format = format;
    return f;
}

static smp__fp8_factor input(const smp_op_call *call)
{
    return activation(call, smp__in(call->graph, call->op, 0), call->in[0], SMP_E4M3);
}

static smp__fp8_factor gradient(const smp_op_call *call)
{
    return activation(call, smp__out(call->graph, call->op), call->dout[0], SMP_E5M2);
}

static smp__fp8_factor weight(const smp_op_call *call, const linear_state *s)
{
    smp__fp8_factor f = {};
    f.value = factor(call, 0);
    f.rows = f.counted = s->features;
    f.columns = s->in;
    f.format = SMP_E4M3;
    return f;
}

/* C = A B + beta C, of A and B as they are, or as fp8 has them. */
static smp_status multiply(const smp_op_call *call, const linear_state *s, smp__gemm *product,
                           const smp__fp8_factor factors[2], float beta, void *c, const void *bias,
                           void *aux)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    smp__fp8_pair pair = {{}, {factors[0].value, factors[1].value}};
    if (s->fp8) {
        SMP_TRY(smp__fp8_round_pair(cuda, factors, call->workspace, &pair));
        SMP_TRY(smp__gemm_scale(product, pair.scale[0], pair.scale[1]));
    }
    return smp__gemm_run(cuda, product, 1, pair.rounded[0], pair.rounded[1], beta, c, bias, aux);
}

static smp_status multiply_forward(const smp_op_call *call, smp__gemm *product, void *out,
                                   void *aux)
{
    const linear_state *s = static_cast<const linear_state *>(call->state);
    const smp__fp8_factor factors[2] = {input(call), weight(call, s)};
    return multiply(call, s, product, factors, 0, out, factor(call, 1), aux);
}

static smp_status multiply_input(const smp_op_call *call, smp__gemm *product, void *din, void *aux)
{
    const linear_state *s = static_cast<const linear_state *>(call->state);
    smp__fp8_factor factors[2] = {gradient(call), weight(call, s)};
    factors[1].transposed = true;
    return multiply(call, s, product, factors, 0, din, NULL, aux);
}

static smp_status forward(const smp_op_call *call)
{
    const linear_state *s = static_cast<const linear_state *>(call->state);
    return multiply_forward(call, s->forward, call->out[0], NULL);
}

static smp_status backward_input(const smp_op_call *call)
{
    const linear_state *s = static_cast<const linear_state *>(call->state);
    if (!call->din[0])
        return SMP_OK;
    return multiply_input(call, s->input, call->din[0], NULL);
}

/* Without the epilogue the product lies where the gradient will, which is made of it in place. */
static smp_status backward_input_fused(const smp_op_call *call, const smp_op_call *before)
{
    const linear_state *s = static_cast<const linear_state *>(call->state);
    const smp_op_kernels *kernels = smp_op_cuda_kernels(before->op->kind);
    smp_op_call rest = *before;
    rest.dout = before->din;
    SMP_TRY(multiply_input(call, s->input_pair ? s->input_pair : s->input, before->din[0],
                           s->input_pair ? const_cast<void *>(before->in[0]) : NULL));
    if (s->input_pair && !smp__gemm_is_apart(s->input_pair))
        return SMP_OK;
    return kernels->backward_input(&rest);
}

static smp_status backward_weight(const smp_op_call *call)
{
    const linear_state *s = static_cast<const linear_state *>(call->state);
    if (!s->fp8)
        return smp_linear_weigh(call, &s->weight, call->dout[0], call->in[0]);
    smp__fp8_factor factors[2] = {gradient(call), input(call)};
    factors[0].transposed = factors[1].transposed = true;
    SMP_TRY(multiply(call, s, s->weight.product, factors, call->fresh ? 0 : 1, call->dparam[0],
                     NULL, NULL));
    return smp_linear_sum_columns(call, &s->weight);
}

static smp_status forward_fused(const smp_op_call *call, const smp_op_call *next)
{
    const linear_state *s = static_cast<const linear_state *>(call->state);
    if (!s->pair)
        SMP_TRY(forward(call));
    else
        SMP_TRY(multiply_forward(call, s->pair, next->out[0], call->out[0]));
    if (s->pair && !smp__gemm_is_apart(s->pair))
        return SMP_OK;
    return smp_op_cuda_kernels(next->op->kind)->forward(next);
}

SMP_CUDA_KERNELS(linear) = {
    .prepare = prepare,
    .release = release,
    .forward = forward,
    .backward_input = backward_input,
    .backward_weight = backward_weight,
    .forward_fused = forward_fused,
    .writes_fresh = true,
    .backward_input_fused = backward_input_fused,
};
