/* concat on a GPU: one strided copy for each input, between its chunks, one after the other, and
 * their places in the rows of the output. Bytes are moved, whatever the type: 16 at a time where
 * chunks, rows and offsets are multiples of 16. */
#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/ops/shape/shape.h"

/* `joined`: the output or its gradient, `parts`: the inputs or theirs. */
static smp_status move(const smp_op_call *call, const void *joined, const void *const *parts,
                       bool join)
{
    const smp_op *op = call->op;
    const int64_t rows =
        smp__axis_of(smp__out(call->graph, op), op->attr[SMP__CONCAT_AXIS].i, call->batch).outer;
    const int64_t row = smp_tensor_bytes(call->graph, op->out, call->batch) / rows;
    char *place = (char *)joined;
    for (int32_t k = 0; k < op->n_in; k++) {
        const int64_t width = smp_tensor_bytes(call->graph, op->in[k], call->batch) / rows;
        char *part = (char *)parts[k];
        smp_strided c = {place, part, row, width, width, rows};
        if (!join)
            c = {part, place, width, row, width, rows};
        if (part)
            SMP_TRY(smp_copy_strided(call, c));
        place += width;
    }
    return SMP_OK;
}

static smp_status forward(const smp_op_call *call)
{
    return move(call, call->out[0], call->in, true);
}

static smp_status backward_input(const smp_op_call *call)
{
    return move(call, call->dout[0], (const void *const *)call->din, false);
}

SMP_CUDA_KERNELS(concat) = {.forward = forward, .backward_input = backward_input};
