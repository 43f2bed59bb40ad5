/* transpose on a GPU: one thread for each unit of the output, in its order, so one side of the copy
 * is in order. Units are up to 16 bytes where the last dimension stays the last, else one value. */
#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/ops/shape/shape.h"

template <typename U>
__global__ void __launch_bounds__(SMP_BLOCK)
    transpose_move(U *to, const U *from, smp__permutation p, int64_t sample, int64_t units,
                   bool to_rows) // sizes and strides in units
{
    for (int64_t i = smp_thread(); i < units; i += smp_threads()) {
        int64_t rest = i % sample, place = i - rest;
        for (int d = p.n_dim - 1; d >= 0; d--) {
            place += rest % p.dim[d] * p.stride[d];
            rest /= p.dim[d];
        }
        if (to_rows)
            to[i] = from[place];
        else
            to[place] = from[i];
    }
}

/* width: values of a unit; if it is more than one, the last stride is 1 and the width divides the
 * last dimension, and so every other stride. */
template <typename U>
static smp_status move_as(const smp_op_call *call, void *to, const void *from, bool to_rows,
                          int64_t width)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const int64_t sample = smp__out(call->graph, call->op)->elements / width;
    smp__permutation p = smp__permutation_of(call->graph, call->op);
    if (width > 1) {
        p.dim[p.n_dim - 1] /= width;
        for (int d = 0; d < p.n_dim - 1; d++)
            p.stride[d] /= width;
    }
    SMP_LAUNCH(transpose_move<U>, smp_grid(cuda, sample * call->batch), SMP_BLOCK, 0, cuda->stream,
               static_cast<U *>(to), static_cast<const U *>(from), p, sample, sample * call->batch,
               to_rows);
    return smp__cuda_launched("transpose");
}

static smp_status move(const smp_op_call *call, void *to, const void *from, bool to_rows)
{
    const smp_tensor *out = smp__out(call->graph, call->op);
    const smp__permutation p = smp__permutation_of(call->graph, call->op);
    const int value = (int)smp_dtype_bytes(out->dtype);
    const bool in_rows = p.n_dim > 0 && p.stride[p.n_dim - 1] == 1;
    const int unit = in_rows ? smp_access_bytes(p.dim[p.n_dim - 1] * value) : value;
    if (unit == 16)
        return move_as<uint4>(call, to, from, to_rows, 16 / value);
    return unit == 4 ? move_as<uint32_t>(call, to, from, to_rows, 4 / value)
                     : move_as<uint16_t>(call, to, from, to_rows, 1);
}

static smp_status forward(const smp_op_call *call)
{
    return move(call, call->out[0], call->in[0], true);
}

static smp_status backward_input(const smp_op_call *call)
{
    return call->din[0] ? move(call, call->din[0], call->dout[0], false) : SMP_OK;
}

SMP_CUDA_KERNELS(transpose) = {.forward = forward, .backward_input = backward_input};
