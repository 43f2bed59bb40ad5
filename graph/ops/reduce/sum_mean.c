/* sum and mean over one dimension of the sample (negative: counted from the end), which the output
 * lacks. */
#include "graph/ops/reduce/sum_mean.h"

static const smp_attr_desc ATTRS[] = {
    [SMP__SUM_AXIS] = {"axis", SMP_ATTR_INT, false, -1, -SMP_MAX_DIMS, SMP_MAX_DIMS - 1, NULL},
    {0},
};

static smp_status infer(smp_infer *infer)
{
    return smp__infer_without_axis(infer, infer->attr[SMP__SUM_AXIS].i);
}

static void sum_work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    double size =
        (double)smp__axis_of(smp__in(graph, op, 0), op->attr[SMP__SUM_AXIS].i, batch).size;
    smp__work_elementwise(graph, op, batch, size, 0, work);
}

static void mean_work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    double size =
        (double)smp__axis_of(smp__in(graph, op, 0), op->attr[SMP__SUM_AXIS].i, batch).size;
    smp__work_elementwise(graph, op, batch, size + 1, size, work);
}

static smp_status forward(const smp_op_call *call)
{
    const smp__axis along = smp__sum_axis(call);
    smp__axis_sum(call->out[0], call->in[0], along, smp__sum_factor(call, along));
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    const smp__axis along = smp__sum_axis(call);
    if (call->din[0])
        smp__axis_spread(call->din[0], call->dout[0], along, smp__sum_factor(call, along));
    return SMP_OK;
}

#define OPERATOR(name_)                                                                            \
    const smp_op_kind smp__op_##name_ = {                                                          \
        .name = #name_,                                                                            \
        .summary = #name_ " along one dimension",                                                  \
        .sample = "inputs:\n"                                                                      \
                  "  x: {dtype: float32, shape: [4, 6]}\n"                                         \
                  "ops:\n"                                                                         \
                  "  - {op: " #name_ ", name: op, in: x, out: y, axis: 0}\n",                      \
        .min_in = 1,                                                                               \
        .max_in = 1,                                                                               \
        .attrs = ATTRS,                                                                            \
        .infer = infer,                                                                            \
        .work = name_##_work,                                                                      \
        .cpu = {.forward = forward, .backward_input = backward_input},                             \
    };

OPERATOR(sum)
OPERATOR(mean)
