/* rope on a GPU: a thread takes one pair of a row in all of its heads, so that an angle, whose sine
 * is taken in double, serves them all. Neighbours in a warp take neighbouring pairs. */
#include "graph/cuda/cuda_kernel.cuh"
#include "graph/ops/attention/rope.h"

/* n positions: a run of neighbours from `first` on, then from `second`. */
struct rope_positions {
    int64_t n, run, first, second;
};

template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    rope_turn(const T *x, T *y, int64_t rows, rope_positions of, int64_t pairs, int64_t heads,
              int64_t rotated, bool interleaved, double base,
              const __grid_constant__ smp__rope_scaling scaling, double direction)
// x, y (rows, heads, 2, pairs) or, interleaved, (rows, heads, pairs, 2); row r is
// r % n of the positions
{
    for (int64_t i = smp_thread(); i < rows * pairs; i += smp_threads()) {
        const int64_t row = i / pairs, pair = i - row * pairs;
        const int64_t t = row % of.n;
        const double position = (double)(t < of.run ? of.first + t : of.second + t - of.run);
        const double plain = pow(base, -(double)pair / (double)pairs);
        const double angle = position * smp__rope_frequency(&scaling, plain, pair) * direction;
        const float cosine = (float)(cos(angle) * scaling.magnitude);
        const float sine = (float)(sin(angle) * scaling.magnitude);
        const int64_t apart = interleaved ? 1 : pairs;
        int64_t at = row * heads * 2 * pairs + (interleaved ? 2 * pair : pair);
        for (int64_t h = 0; h < heads; h++, at += 2 * pairs) {
            const T a = x[at], b = x[at + apart];
            const float u = smp_float(a), v = smp_float(b);
            y[at] = h < rotated ? smp_from<T>(u * cosine - v * sine) : a;
            y[at + apart] = h < rotated ? smp_from<T>(v * cosine + u * sine) : b;
        }
    }
}

template <typename T>
static smp_status turn(const smp_op_call *call, const void *x, void *y, double direction)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const smp_tensor *in = smp__in(call->graph, call->op, 0);
    const smp_attr_value *attr = call->op->attr;
    const int64_t positions = in->shape.dim[0], rows = call->batch * positions;
    const int64_t heads = attr[SMP__ROPE_HEADS].i, pairs = in->shape.dim[1] / heads / 2;
    const bool part = attr[SMP__ROPE_DEVICES].i > 1 && attr[SMP__ROPE_AXIS].i == 0;
    const int64_t blocks = part ? attr[SMP__ROPE_BLOCKS].i : 1,
                  devices = part ? attr[SMP__ROPE_DEVICES].i : 1;
    const int64_t device = part ? call->graph->device : 0;
    rope_positions of;
    of.n = positions;
    of.run = positions / blocks;
    of.first = smp_split_part(blocks, devices, 0, device) * of.run;
    of.second = smp_split_part(blocks, devices, 1, device) * of.run;
    SMP_LAUNCH(rope_turn<T>, smp_grid(cuda, rows * pairs), SMP_BLOCK, 0, cuda->stream,
               static_cast<const T *>(x), static_cast<T *>(y), rows, of, pairs, heads,
               attr[SMP__ROPE_ROTATED].i > 0 ? attr[SMP__ROPE_ROTATED].i : heads,
               attr[SMP__ROPE_INTERLEAVED].i, attr[SMP__ROPE_BASE].f,
               smp__rope_scaling_of(attr, 2 * pairs), direction);
    return smp__cuda_launched("rope");
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    return turn<T>(call, call->in[0], call->out[0], 1);
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    return call->din[0] ? turn<T>(call, call->dout[0], call->din[0], -1) : SMP_OK;
}

SMP_CUDA_KERNELS(rope) = {.forward = SMP_TYPED(forward),
                          .backward_input = SMP_TYPED(backward_input)};
