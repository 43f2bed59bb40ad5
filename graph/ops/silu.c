/* silu (Elfwing et al. 2017), also called swish: x * sigmoid(x). Backward needs the input. */
#include "graph/ops/ops.h"

#include "graph/math/math.h"

static const smp_attr_desc ATTRS[] = {{0}};

static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    (void)graph, (void)op, (void)batch;
    *needs = (smp_op_needs){.input_grad_in = 1};
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    smp__work_elementwise(graph, op, batch, 23, 27, work);
}

static smp_status prepare(const smp_graph *graph, const smp_op *op, int64_t batch, void *device,
                          void **state)
{
    (void)device;
    smp_math_primitive *primitive = NULL;
    SMP_TRY(smp_math_eltwise_create(SMP_ELTWISE_SILU, smp__count(smp__in(graph, op, 0), batch),
                                    graph->training, &primitive));
    *state = primitive;
    return SMP_OK;
}

static smp_status forward(const smp_op_call *call)
{
    return smp_math_eltwise_forward(call->state, call->in[0], call->out);
}

static smp_status backward_input(const smp_op_call *call)
{
    if (!call->din[0])
        return SMP_OK;
    return smp_math_eltwise_backward(call->state, call->in[0], call->dout, call->din[0]);
}

const smp_op_kind smp__op_silu = {
    .name = "silu",
    .summary = "sigmoid linear unit, x * sigmoid(x)",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [4, 6]}\n"
              "ops:\n"
              "  - {op: silu, name: op, in: x, out: y}\n",
    .min_in = 1,
    .max_in = 1,
    .attrs = ATTRS,
    .infer = smp__infer_like_input,
    .needs = needs,
    .work = work,
    .cpu = {.prepare = prepare,
            .release = smp__release_primitive,
            .forward = forward,
            .backward_input = backward_input},
};
