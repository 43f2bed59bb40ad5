/* mul: a * b element by element, the same shape. da = dout * b, db = dout * a. */
#include "graph/ops/ops.h"

#include "graph/math/vector.h"

static const smp_attr_desc ATTRS[] = {{0}};

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    smp__work_elementwise(graph, op, batch, 1, 2, work);
}

static smp_status forward(const smp_op_call *call)
{
    smp__mul(call->out, call->in[0], call->in[1],
             smp__count(smp__out(call->graph, call->op), call->batch));
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    int64_t n = smp__count(smp__out(call->graph, call->op), call->batch);
    for (int i = 0; i < 2; i++)
        if (call->din[i])
            smp__mul(call->din[i], call->dout, call->in[1 - i], n);
    return SMP_OK;
}

const smp_op_kind smp__op_mul = {
    .name = "mul",
    .summary = "product of two tensors of one shape, element by element",
    .sample = "inputs:\n"
              "  a: {dtype: float32, shape: [4, 6]}\n"
              "  b: {dtype: float32, shape: [4, 6]}\n"
              "ops:\n"
              "  - {op: mul, name: op, in: [a, b], out: y}\n",
    .min_in = 2,
    .max_in = 2,
    .attrs = ATTRS,
    .infer = smp__infer_alike,
    .needs = smp__needs_pair,
    .work = work,
    .split = smp__split_elementwise,
    .cpu = {.forward = forward, .backward_input = backward_input},
};
