/* relu: max(x, 0); NaN stays NaN. Backward tells the positive elements by the output, which the
 * next operator usually keeps anyway. */
#include "graph/ops/ops.h"

#include "graph/math/vector.h"

static const smp_attr_desc ATTRS[] = {{0}};

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    smp__work_elementwise(graph, op, batch, 1, 1, work);
}

SMP_VECTOR static void rectify(float *restrict y, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] <= 0 ? 0 : x[i];
}

SMP_VECTOR static void gradient(float *restrict dx, const float *restrict y,
                                const float *restrict dy, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dx[i] = dy[i] * (y[i] > 0 ? 1.0f : 0.0f);
}

static smp_status forward(const smp_op_call *call)
{
    rectify(call->out, call->in[0], smp__count(smp__in(call->graph, call->op, 0), call->batch));
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    if (call->din[0])
        gradient(call->din[0], call->out, call->dout,
                 smp__count(smp__in(call->graph, call->op, 0), call->batch));
    return SMP_OK;
}

const smp_op_kind smp__op_relu = {
    .name = "relu",
    .summary = "rectified linear unit",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [4, 6]}\n"
              "ops:\n"
              "  - {op: relu, name: op, in: x, out: y}\n",
    .min_in = 1,
    .max_in = 1,
    .attrs = ATTRS,
    .infer = smp__infer_like_input,
    .needs = smp__needs_output,
    .work = work,
    .split = smp__split_elementwise,
    .cpu = {.forward = forward, .backward_input = backward_input},
};
