/* concat: joins tensors along one dimension of the sample (negative: counted from the end). The
 * dimensions before it are `outer`, each input's chunk is its dimension times those after it. */
#include "graph/ops/shape/shape.h"

#include <string.h>

static const smp_attr_desc ATTRS[] = {
    [SMP__CONCAT_AXIS] = {"axis", SMP_ATTR_INT, false, -1, -SMP_MAX_DIMS, SMP_MAX_DIMS - 1, NULL},
    {0},
};

static smp_status infer(smp_infer *infer)
{
    const smp_tensor *first = infer->in[0];
    smp_shape out = first->shape;
    int axis = 0;
    SMP_TRY(smp__infer_axis(infer, infer->attr[SMP__CONCAT_AXIS].i, &axis));
    for (int i = 1; i < infer->n_in; i++) {
        const smp_tensor *in = infer->in[i];
        smp_shape shape = in->shape;
        char expected[128], got[128];
        if (in->dtype != first->dtype)
            return smp_infer_fail(infer, "inputs '%s' and '%s' have different types", first->name,
                                  in->name);
        if (shape.n_dim == out.n_dim)
            shape.dim[axis] = first->shape.dim[axis];
        if (!smp_shape_equal(&shape, &first->shape))
            return smp_infer_fail(infer, "input '%s' is %s, expected %s but for dimension %d",
                                  in->name, smp_shape_format(got, sizeof got, &in->shape),
                                  smp_shape_format(expected, sizeof expected, &first->shape), axis);
        out.dim[axis] += in->shape.dim[axis];
    }
    infer->out_dtype = first->dtype;
    infer->out_shape = out;
    return SMP_OK;
}

/* Chunks of the output, over the whole micro-batch. */
static int64_t outer_count(const smp_op_call *call)
{
    const smp_tensor *out = smp__out(call->graph, call->op);
    return smp__axis_of(out, call->op->attr[SMP__CONCAT_AXIS].i, call->batch).outer;
}

static smp_status forward(const smp_op_call *call)
{
    const smp_op *op = call->op;
    int64_t outer = outer_count(call);
    size_t row = (size_t)(smp__count(smp__out(call->graph, op), call->batch) / outer) * 4;
    char *place = call->out[0];
    for (int32_t i = 0; i < op->n_in; i++) {
        size_t chunk = (size_t)(smp__count(smp__in(call->graph, op, i), call->batch) / outer) * 4;
        const char *in = call->in[i];
        for (int64_t o = 0; o < outer; o++)
            memcpy(place + (size_t)o * row, in + (size_t)o * chunk, chunk);
        place += chunk;
    }
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    const smp_op *op = call->op;
    int64_t outer = outer_count(call);
    int64_t row = smp__count(smp__out(call->graph, op), call->batch) / outer;
    const float *place = call->dout[0];
    for (int32_t i = 0; i < op->n_in; i++) {
        int64_t chunk = smp__count(smp__in(call->graph, op, i), call->batch) / outer;
        for (int64_t o = 0; call->din[i] && o < outer; o++)
            memcpy(call->din[i] + o * chunk, place + o * row, (size_t)chunk * sizeof(float));
        place += chunk;
    }
    return SMP_OK;
}

const smp_op_kind smp__op_concat = {
    .name = "concat",
    .summary = "joins tensors along one dimension",
    .sample = "inputs:\n"
              "  a: {dtype: float32, shape: [4, 2]}\n"
              "  b: {dtype: float32, shape: [4, 5]}\n"
              "ops:\n"
              "  - {op: concat, name: op, in: [a, b], out: y, axis: 1}\n",
    .min_in = 2,
    .max_in = SMP_OP_MAX_IN,
    .attrs = ATTRS,
    .infer = infer,
    .work = smp__work_copy,
    .layout = smp__layout_alike,
    .cpu = {.forward = forward, .backward_input = backward_input},
};
