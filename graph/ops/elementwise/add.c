/* add: a + b + .., from left to right, of one shape. All gradients are dout. */
#include "graph/ops/ops.h"

#include "graph/math/vector.h"

static const smp_attr_desc ATTRS[] = {{0}};

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    smp__work_elementwise(graph, op, batch, op->n_in - 1, 0, work);
}

static smp_status forward(const smp_op_call *call)
{
    int64_t n = smp__count(smp__out(call->graph, call->op), call->batch);
    smp__add(call->out[0], call->in[0], call->in[1], n);
    for (int32_t i = 2; i < call->op->n_in; i++)
        smp__accumulate(call->out[0], call->in[i], n);
    return SMP_OK;
}

/* The sum of a residual stream and the norm or the activation that reads it. */
static bool fuses(const smp_graph *graph, const smp_op *op, const smp_op *next)
{
    return (next->kind == &smp__op_layernorm || next->kind == &smp__op_rmsnorm ||
            next->kind == &smp__op_relu) &&
           next->in[0] == op->out && op->n_in == 2 && op->out != graph->loss;
}

/* Sums of parts are parts: layers side by side need one sum over the devices. */
static const smp_split_rule SPLITS[] = {
    {"elements", .in = {SMP_CELL_ANY, SMP_CELL_ANY, SMP_CELL_ANY, SMP_CELL_ANY},
     .out = SMP_CELL_ANY},
    {"parts", .in = {SMP_CELL_PARTS, SMP_CELL_PARTS, SMP_CELL_PARTS, SMP_CELL_PARTS},
     .out = SMP_CELL_PARTS},
    {0},
};

const smp_op_kind smp__op_add = {
    .name = "add",
    .summary = "sum of tensors of one shape",
    .sample = "inputs:\n"
              "  a: {dtype: float32, shape: [4, 6]}\n"
              "  b: {dtype: float32, shape: [4, 6]}\n"
              "ops:\n"
              "  - {op: add, name: op, in: [a, b], out: y}\n",
    .min_in = 2,
    .max_in = SMP_OP_MAX_IN,
    .passes_dout = true,
    .attrs = ATTRS,
    .infer = smp__infer_alike,
    .work = work,
    .layout = smp__layout_alike,
    .split = SPLITS,
    .fuses = fuses,
    .pairs_alike = true,
    .cpu = {.forward = forward},
};
