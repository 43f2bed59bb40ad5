/* scale: factor * x. The gradient is factor * dout. */
#include "graph/ops/elementwise/elementwise.h"

#include <float.h>

#include "graph/math/vector.h"

static const smp_attr_desc ATTRS[] = {
    [SMP__SCALE_FACTOR] = {"factor", SMP_ATTR_FLOAT, true, 0, -FLT_MAX, FLT_MAX, NULL},
    {0},
};

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    smp__work_elementwise(graph, op, batch, 1, 1, work);
}

SMP_VECTOR static void product(float *restrict y, const float *restrict x, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = factor * x[i];
}

static smp_status forward(const smp_op_call *call)
{
    product(call->out[0], call->in[0], (float)call->op->attr[SMP__SCALE_FACTOR].f,
            smp__count(smp__out(call->graph, call->op), call->batch));
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    if (call->din[0])
        product(call->din[0], call->dout[0], (float)call->op->attr[SMP__SCALE_FACTOR].f,
                smp__count(smp__out(call->graph, call->op), call->batch));
    return SMP_OK;
}

const smp_op_kind smp__op_scale = {
    .name = "scale",
    .summary = "product with a number",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [4, 6]}\n"
              "ops:\n"
              "  - {op: scale, name: op, in: x, out: y, factor: 0.5}\n",
    .min_in = 1,
    .max_in = 1,
    .attrs = ATTRS,
    .infer = smp__infer_like_input,
    .work = work,
    .layout = smp__layout_alike,
    .split = smp__split_elementwise,
    .cpu = {.forward = forward, .backward_input = backward_input},
};
