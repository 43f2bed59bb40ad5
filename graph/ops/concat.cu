/* concat on a GPU: one strided copy for each input, between its chunks, one after the other, and
 * their places in the rows of the output. Bytes are moved, whatever the type: 16 at a time where
 * chunks, rows and offsets are multiples of 16. */
#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/ops/ops.h"

enum { AXIS }; /* attribute, as in concat.c */

/* to[r * to_stride + i] = from[r * from_stride + i] for i < width, r < rows; all in units of U */
template <typename U>
__global__ void __launch_bounds__(SMP_BLOCK)
    concat_copy(U *to, int64_t to_stride, const U *from, int64_t from_stride, int64_t width,
                int64_t rows)
{
    for (int64_t i = smp_thread(); i < width * rows; i += smp_threads()) {
        const int64_t row = i / width, column = i - row * width;
        to[row * to_stride + column] = from[row * from_stride + column];
    }
}

/* Where the chunks of one input lie, in bytes. */
typedef struct strided_copy {
    char *to;
    const char *from;
    int64_t to_stride, from_stride, width, rows;
} strided_copy;

template <typename U> static void copy_as(const smp_cuda *cuda, const strided_copy &c)
{
    const int64_t size = (int64_t)sizeof(U);
    SMP_LAUNCH(concat_copy<U>, smp_grid(cuda, c.width / size * c.rows), SMP_BLOCK, 0, cuda->stream,
               (U *)c.to, c.to_stride / size, (const U *)c.from, c.from_stride / size,
               c.width / size, c.rows);
}

/* `joined`: the output or its gradient, `parts`: the inputs or theirs. */
static smp_status move(const smp_op_call *call, const void *joined, const void *const *parts,
                       bool join)
{
    const smp_op *op = call->op;
    const smp_tensor *out = smp__out(call->graph, op);
    const int64_t axis = op->attr[AXIS].i + (op->attr[AXIS].i < 0 ? out->shape.n_dim : 0);
    int64_t rows = call->batch;
    for (int64_t d = 0; d < axis; d++)
        rows *= out->shape.dim[d];
    const int64_t row = smp_tensor_bytes(call->graph, op->out, call->batch) / rows;
    char *place = (char *)joined;
    for (int32_t k = 0; k < op->n_in; k++) {
        const int64_t width = smp_tensor_bytes(call->graph, op->in[k], call->batch) / rows;
        char *part = (char *)parts[k];
        strided_copy c = {place, part, row, width, width, rows};
        if (!join)
            c = {part, place, width, row, width, rows};
        const int unit = smp_access_bytes(row | width | (place - (char *)joined));
        place += width;
        if (!part)
            continue;
        if (unit == 16)
            copy_as<uint4>(smp_cuda_of(call), c);
        else if (unit == 4)
            copy_as<uint32_t>(smp_cuda_of(call), c);
        else
            copy_as<uint16_t>(smp_cuda_of(call), c);
        SMP_TRY(smp__cuda_launched("concat"));
    }
    return SMP_OK;
}

static smp_status forward(const smp_op_call *call)
{
    return move(call, call->out, call->in, true);
}

static smp_status backward_input(const smp_op_call *call)
{
    return move(call, call->dout, (const void *const *)call->din, false);
}

SMP_CUDA_KERNELS(concat) = {NULL, NULL, forward, backward_input, NULL, NULL};
