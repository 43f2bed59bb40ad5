/* softmax over the last dimension. Backward from the output: dx = y * (dy - sum(dy * y)). */
#include "graph/ops/ops.h"

#include "graph/math/math.h"

static const smp_attr_desc ATTRS[] = {{0}};

static smp_status infer(smp_infer *infer)
{
    SMP_TRY(smp_infer_dims(infer, 0, 1, SMP_MAX_DIMS));
    return smp__infer_like_input(infer);
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    smp__work_elementwise(graph, op, batch, 20, 4, work);
}

static smp_status prepare(const smp_graph *graph, const smp_op *op, int64_t batch, void *device,
                          void **state)
{
    (void)device;
    const smp_tensor *in = smp__in(graph, op, 0);
    int64_t columns = smp__columns(in);
    smp_math_primitive *primitive = NULL;
    SMP_TRY(smp_math_softmax_create(smp__count(in, batch) / columns, columns, graph->training,
                                    &primitive));
    *state = primitive;
    return SMP_OK;
}

static smp_status forward(const smp_op_call *call)
{
    return smp_math_softmax_forward(call->state, call->in[0], call->out[0]);
}

static smp_status backward_input(const smp_op_call *call)
{
    if (!call->din[0])
        return SMP_OK;
    return smp_math_softmax_backward(call->state, call->out[0], call->dout[0], call->din[0]);
}

const smp_op_kind smp__op_softmax = {
    .name = "softmax",
    .summary = "softmax over the last dimension",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [4, 6]}\n"
              "ops:\n"
              "  - {op: softmax, name: op, in: x, out: y}\n",
    .min_in = 1,
    .max_in = 1,
    .attrs = ATTRS,
    .infer = infer,
    .needs = {smp__needs_output},
    .work = work,
    .split = smp__split_rows,
    .cpu = {.prepare = prepare,
            .release = smp__release_primitive,
            .forward = forward,
            .backward_input = backward_input},
};
