/* dropout on a GPU, with the mask of dropout.c: position 64 g + 16 w + l takes word w of Philox
 * block 16 g + l.
 *
 * A thread makes the blocks of one 16-byte access, say l to l + 3 of a group, and uses all four
 * words of each: four accesses, 16 positions apart. No word is drawn twice, and every line of
 * memory is used whole. Of several devices that each have a part of x, runs of neighbouring
 * positions, each goes through the groups that its runs touch. */
#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/cuda/cuda_philox.cuh"

extern "C" {
#include "graph/ops/collective/collective.h"
#include "graph/ops/elementwise/elementwise.h"
}

enum { WORDS = 4, LANES = 16, GROUP = WORDS * LANES };

/* Element i * run + e of a device's part stands at (i * devices + device) * run + e of the whole;
 * in a zigzag every second run counted from the last device. groups: that a run may touch. */
struct dropout_part {
    int64_t runs, run, devices, device, groups;
    bool zigzag;
};

template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    dropout_apply(const T *x, T *y, smp__dropout_mask m, dropout_part of) // each [runs * run]
{
    constexpr int W = smp_pack<T>::N, PARTS = LANES / W;
    const int64_t items = of.runs * of.groups * PARTS;
    for (int64_t item = smp_thread(); item < items; item += smp_threads()) {
        const int64_t i = item / (of.groups * PARTS);
        const int64_t part = of.zigzag && i % 2 == 1 ? of.devices - 1 - of.device : of.device;
        const int64_t start = (i * of.devices + part) * of.run, end = start + of.run;
        const int64_t group = start / GROUP + item / PARTS % of.groups;
        const int64_t own = i * of.run - start; /* from a place of the whole to one of the part */
        const int lane = (int)(item % PARTS) * W;
        float factor[WORDS][W];
        for (int k = 0; k < W; k++) {
            const smp_words r =
                smp_philox(m.key, (uint64_t)(group * LANES + lane + k), m.counter_high);
            for (int w = 0; w < WORDS; w++)
                factor[w][k] = r.v[w] >> 8 < m.threshold ? 0 : m.scale;
        }
        for (int w = 0; w < WORDS; w++) {
            const int64_t place = group * GROUP + w * LANES + lane, at = own + place;
            float value[W];
            if (place >= start && place + W <= end && at % W == 0) {
                smp_read<W>(value, x + at);
                for (int k = 0; k < W; k++)
                    value[k] *= factor[w][k];
                smp_write<W>(y + at, value);
                continue;
            }
            for (int k = 0; k < W; k++)
                if (place + k >= start && place + k < end)
                    y[at + k] = smp_from<T>(smp_float(x[at + k]) * factor[w][k]);
        }
    }
}

static dropout_part part_of(const smp_op_call *call)
{
    const smp_attr_value *attr = call->op->attr;
    const smp_tensor *in = smp__in(call->graph, call->op, 0);
    const int64_t n = smp__count(in, call->batch);
    dropout_part of = {1, n, 1, 0, (n + GROUP - 1) / GROUP, false};
    if (attr[SMP__DROPOUT_DEVICES].i > 1) {
        of.run = smp__parts_of(in, attr[SMP__DROPOUT_AXIS].i, 1, attr[SMP__DROPOUT_BLOCKS].i,
                               call->batch)
                     .run;
        of.runs = n / of.run;
        of.devices = attr[SMP__DROPOUT_DEVICES].i;
        of.device = call->graph->device;
        of.zigzag = attr[SMP__DROPOUT_BLOCKS].i == 2;
        of.groups = (of.run + GROUP - 2) / GROUP + 1;
    }
    return of;
}

template <typename T> static smp_status apply(const smp_op_call *call, void *y, const void *x)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const dropout_part of = part_of(call);
    const int64_t items = of.runs * of.groups * (LANES / smp_pack<T>::N);
    if (!call->step.training || !(call->op->attr[SMP__DROPOUT_P].f > 0))
        return smp_copy_tensor(call, call->op->out, y, x);
    SMP_LAUNCH(dropout_apply<T>, smp_grid(cuda, items), SMP_BLOCK, 0, cuda->stream,
               static_cast<const T *>(x), static_cast<T *>(y), smp__dropout_mask_of(call), of);
    return smp__cuda_launched("dropout");
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    return apply<T>(call, call->out[0], call->in[0]);
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    return call->din[0] ? apply<T>(call, call->din[0], call->dout[0]) : SMP_OK;
}

SMP_CUDA_KERNELS(dropout) = {.forward = SMP_TYPED(forward),
                             .backward_input = SMP_TYPED(backward_input)};
