/* split: cuts one dimension of the sample (negative: counted from the end) into as many parts as
 * the op has outputs, of the lengths that `sizes` gives, or all alike. The dimensions before it are
 * `outer`, each output's chunk is its length times those after it. Any type. */
#include "graph/ops/shape/shape.h"

#include <string.h>

static const smp_attr_desc ATTRS[] = {
    [SMP__SPLIT_AXIS] = {"axis", SMP_ATTR_INT, false, -1, -SMP_MAX_DIMS, SMP_MAX_DIMS - 1, NULL},
    [SMP__SPLIT_SIZES] = {"sizes", SMP_ATTR_INT_LIST, false, 0, 1, 0x1p40, NULL},
    {0},
};

/* Lengths of the outputs along the dimension, which has `length`. */
static smp_status find_sizes(const smp_infer *infer, int axis, int64_t length, int64_t *sizes)
{
    const int64_t *given = infer->attr[SMP__SPLIT_SIZES].list.items,
                  count = infer->attr[SMP__SPLIT_SIZES].list.count;
    int64_t left = length;
    if (count == 0 && length % infer->n_out != 0)
        return smp_infer_fail(infer,
                              "%d outputs do not divide dimension %d, which has %lld elements: "
                              "expected as many as do, or `sizes`",
                              infer->n_out, axis, (long long)length);
    if (count > 0 && count != infer->n_out)
        return smp_infer_fail(infer, "sizes: got %lld, expected %d, one for each output",
                              (long long)count, infer->n_out);
    for (int k = 0; k < infer->n_out; k++) {
        sizes[k] = count > 0 ? given[k] : length / infer->n_out;
        left -= sizes[k];
    }
    if (left == 0)
        return SMP_OK;
    return smp_infer_fail(infer, "sizes: got %lld in all, expected %lld, as dimension %d has",
                          (long long)(length - left), (long long)length, axis);
}

static smp_status infer(smp_infer *infer)
{
    const smp_tensor *in = infer->in[0];
    int64_t sizes[SMP_OP_MAX_OUT];
    int axis = 0;
    SMP_TRY(smp__infer_axis(infer, infer->attr[SMP__SPLIT_AXIS].i, &axis));
    SMP_TRY(find_sizes(infer, axis, in->shape.dim[axis], sizes));
    for (int k = 0; k < infer->n_out; k++) {
        infer->out[k].dtype = in->dtype;
        infer->out[k].shape = in->shape;
        infer->out[k].shape.dim[axis] = sizes[k];
    }
    return SMP_OK;
}

/* Chunks of the input, over the whole micro-batch. */
static int64_t outer_count(const smp_op_call *call)
{
    const smp_tensor *in = smp__in(call->graph, call->op, 0);
    return smp__axis_of(in, call->op->attr[SMP__SPLIT_AXIS].i, call->batch).outer;
}

/* Bytes of a tensor, of elements of four bytes, in each of the `outer` rows. */
static size_t row_bytes(const smp_op_call *call, int32_t tensor, int64_t outer)
{
    return (size_t)(smp__count(&call->graph->tensor[tensor], call->batch) / outer * 4);
}

static smp_status forward(const smp_op_call *call)
{
    const smp_op *op = call->op;
    int64_t outer = outer_count(call);
    size_t row = row_bytes(call, op->in[0], outer);
    const char *place = call->in[0];
    for (int32_t k = 0; k < op->n_out; k++) {
        size_t chunk = row_bytes(call, op->out + k, outer);
        char *out = call->out[k];
        for (int64_t o = 0; o < outer; o++)
            memcpy(out + (size_t)o * chunk, place + (size_t)o * row, chunk);
        place += chunk;
    }
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    const smp_op *op = call->op;
    int64_t outer = outer_count(call);
    size_t row = row_bytes(call, op->in[0], outer);
    char *place = (char *)call->din[0];
    for (int32_t k = 0; k < op->n_out && place; k++) {
        size_t chunk = row_bytes(call, op->out + k, outer);
        const char *dout = (const char *)call->dout[k];
        for (int64_t o = 0; o < outer; o++)
            memcpy(place + (size_t)o * row, dout + (size_t)o * chunk, chunk);
        place += chunk;
    }
    return SMP_OK;
}

const smp_op_kind smp__op_split = {
    .name = "split",
    .summary = "cuts one dimension into parts",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [4, 7]}\n"
              "ops:\n"
              "  - {op: split, name: op, in: x, out: [y, z], sizes: [2, 5]}\n",
    .min_in = 1,
    .max_in = 1,
    .max_out = SMP_OP_MAX_OUT,
    .attrs = ATTRS,
    .infer = infer,
    .work = smp__work_copy,
    .layout = smp__layout_alike,
    .cpu = {.forward = forward, .backward_input = backward_input},
};
