/* split on a GPU: one strided copy for each output, as concat has one for each input. */
#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/ops/shape/shape.h"

/* `joined`: the input or its gradient, `parts`: the outputs or theirs. */
static smp_status move(const smp_op_call *call, const void *joined, const void *const *parts,
                       bool join)
{
    const smp_op *op = call->op;
    const int64_t rows =
        smp__axis_of(smp__in(call->graph, op, 0), op->attr[SMP__SPLIT_AXIS].i, call->batch).outer;
    const int64_t row = smp_tensor_bytes(call->graph, op->in[0], call->batch) / rows;
    char *place = (char *)joined;
    for (int32_t k = 0; k < op->n_out; k++) {
        const int64_t width = smp_tensor_bytes(call->graph, op->out + k, call->batch) / rows;
        char *part = (char *)parts[k];
        smp_strided c = {part, place, width, row, width, rows};
        if (join)
            c = {place, part, row, width, width, rows};
        SMP_TRY(smp_copy_strided(call, c));
        place += width;
    }
    return SMP_OK;
}

static smp_status forward(const smp_op_call *call)
{
    return move(call, call->in[0], call->out, false);
}

static smp_status backward_input(const smp_op_call *call)
{
    return call->din[0] ? move(call, call->din[0], (const void *const *)call->dout, true) : SMP_OK;
}

SMP_CUDA_KERNELS(split) = {.forward = forward, .backward_input = backward_input};
