/* sub: a - b, the same shape. The gradients are dout and -dout. */
#include "graph/ops/ops.h"

#include <string.h>

#include "graph/math/vector.h"

static const smp_attr_desc ATTRS[] = {{0}};

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    smp__work_elementwise(graph, op, batch, 1, 1, work);
}

SMP_VECTOR static void difference(float *restrict y, const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = a[i] - b[i];
}

SMP_VECTOR static void negative(float *restrict y, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = -x[i];
}

static smp_status forward(const smp_op_call *call)
{
    difference(call->out, call->in[0], call->in[1],
               smp__count(smp__out(call->graph, call->op), call->batch));
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    int64_t n = smp__count(smp__out(call->graph, call->op), call->batch);
    if (call->din[0])
        memcpy(call->din[0], call->dout, (size_t)n * sizeof(float));
    if (call->din[1])
        negative(call->din[1], call->dout, n);
    return SMP_OK;
}

const smp_op_kind smp__op_sub = {
    .name = "sub",
    .summary = "difference of two tensors of one shape",
    .sample = "inputs:\n"
              "  a: {dtype: float32, shape: [4, 6]}\n"
              "  b: {dtype: float32, shape: [4, 6]}\n"
              "ops:\n"
              "  - {op: sub, name: op, in: [a, b], out: y}\n",
    .min_in = 2,
    .max_in = 2,
    .attrs = ATTRS,
    .infer = smp__infer_alike,
    .work = work,
    .split = smp__split_elementwise,
    .cpu = {.forward = forward, .backward_input = backward_input},
};
