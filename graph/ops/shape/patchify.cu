/* patchify on a GPU: lines of patches are moved in the order of the rows, in units of up to 16
 * bytes that divide a line. Forward reads the image in pieces and writes rows in order; backward
 * the other way round. A handful of divisions a unit, which fast 32-bit paths keep below the
 * memory traffic. */
#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/ops/shape/shape.h"

struct patchify_image { /* [batch][channels][height][width], width and line in units */
    int64_t channels, height, width;
    int64_t patch; /* lines of a patch */
    int64_t line;  /* of a patch: patch * sizeof(value) / sizeof(unit) */
    int64_t units; /* of the micro-batch */
};

/* Place in the image of unit i of the rows: [batch][py][px][channel][y][x]. */
__device__ __forceinline__ int64_t patchify_place(const patchify_image &of, int64_t i)
{
    const int64_t x = i % of.line;
    i /= of.line;
    const int64_t y = i % of.patch;
    i /= of.patch;
    const int64_t channel = i % of.channels;
    i /= of.channels;
    const int64_t across = of.width / of.line, down = of.height / of.patch;
    const int64_t px = i % across;
    i /= across;
    const int64_t py = i % down, sample = i / down;
    const int64_t height = (sample * of.channels + channel) * of.height + py * of.patch + y;
    return height * of.width + px * of.line + x;
}

template <typename U>
__global__ void __launch_bounds__(SMP_BLOCK)
    patchify_move(U *to, const U *from, patchify_image of, bool to_rows)
{
    for (int64_t i = smp_thread(); i < of.units; i += smp_threads()) {
        const int64_t place = patchify_place(of, i);
        if (to_rows)
            to[i] = from[place];
        else
            to[place] = from[i];
    }
}

template <typename U>
static smp_status move_as(const smp_op_call *call, void *to, const void *from, bool to_rows)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const smp_tensor *in = smp__in(call->graph, call->op, 0);
    const smp_shape *shape = &in->shape;
    const int64_t value = smp_dtype_bytes(in->dtype), unit = (int64_t)sizeof(U);
    patchify_image of;
    of.channels = shape->n_dim == 3 ? shape->dim[0] : 1;
    of.height = shape->dim[shape->n_dim - 2];
    of.width = shape->dim[shape->n_dim - 1] * value / unit;
    of.patch = call->op->attr[SMP__PATCHIFY_PATCH].i;
    of.line = of.patch * value / unit;
    of.units = smp_tensor_bytes(call->graph, call->op->in[0], call->batch) / unit;
    SMP_LAUNCH(patchify_move<U>, smp_grid(cuda, of.units), SMP_BLOCK, 0, cuda->stream,
               static_cast<U *>(to), static_cast<const U *>(from), of, to_rows);
    return smp__cuda_launched("patchify");
}

/* The patch divides the width, so every line of a patch starts at a multiple of its length. */
static smp_status move(const smp_op_call *call, void *to, const void *from, bool to_rows)
{
    const smp_tensor *in = smp__in(call->graph, call->op, 0);
    const int unit =
        smp_access_bytes(call->op->attr[SMP__PATCHIFY_PATCH].i * smp_dtype_bytes(in->dtype));
    if (unit == 16)
        return move_as<uint4>(call, to, from, to_rows);
    return unit == 4 ? move_as<uint32_t>(call, to, from, to_rows)
                     : move_as<uint16_t>(call, to, from, to_rows);
}

static smp_status forward(const smp_op_call *call)
{
    return move(call, call->out[0], call->in[0], true);
}

static smp_status backward_input(const smp_op_call *call)
{
    return call->din[0] ? move(call, call->din[0], call->dout[0], false) : SMP_OK;
}

SMP_CUDA_KERNELS(patchify) = {.forward = forward, .backward_input = backward_input};
