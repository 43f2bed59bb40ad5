/* tanh. Backward from the output: dx = dy * (1 - y^2). */
#include "graph/ops/ops.h"

#include "graph/math/math.h"
#include "graph/math/vector.h"

static const smp_attr_desc ATTRS[] = {{0}};

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    smp__work_elementwise(graph, op, batch, 20, 3, work);
}

static smp_status prepare(const smp_graph *graph, const smp_op *op, int64_t batch, void *device,
                          void **state)
{
    (void)device;
    smp_math_primitive *primitive = NULL;
    SMP_TRY(smp_math_eltwise_create(SMP_ELTWISE_TANH, smp__count(smp__in(graph, op, 0), batch),
                                    false, false, &primitive));
    *state = primitive;
    return SMP_OK;
}

SMP_VECTOR static void gradient(float *restrict dx, const float *restrict y,
                                const float *restrict dy, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dx[i] = dy[i] * (1.0f - y[i] * y[i]);
}

static smp_status forward(const smp_op_call *call)
{
    return smp_math_eltwise_forward(call->state, call->in[0], call->out);
}

static smp_status backward_input(const smp_op_call *call)
{
    if (call->din[0])
        gradient(call->din[0], call->out, call->dout,
                 smp__count(smp__in(call->graph, call->op, 0), call->batch));
    return SMP_OK;
}

const smp_op_kind smp__op_tanh = {
    .name = "tanh",
    .summary = "hyperbolic tangent",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [4, 6]}\n"
              "ops:\n"
              "  - {op: tanh, name: op, in: x, out: y}\n",
    .min_in = 1,
    .max_in = 1,
    .attrs = ATTRS,
    .infer = smp__infer_like_input,
    .needs = smp__needs_output,
    .work = work,
    .split = smp__split_elementwise,
    .cpu = {.prepare = prepare,
            .release = smp__release_primitive,
            .forward = forward,
            .backward_input = backward_input},
};
