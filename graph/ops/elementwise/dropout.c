/* dropout (Srivastava et al. 2014): an element is zeroed with probability p, the others are scaled
 * by 1 / (1 - p). Identity when not training.
 *
 * The mask is a function of seed, op, step, micro-batch and position alone (Philox4x32-10, as
 * smp_random_philox), so backward makes it again and nothing is saved:
 *   key = mix(seed + mix(op's index)), counter = (block, step << 32 ^ micro-batch).
 * Position 64 g + 16 w + l takes word w of block 16 g + l: sixteen blocks side by side, which the
 * compiler turns into vectors. O(n), about 1 ns an element.
 *
 * Of several devices that each have a part of x, each has that part of the mask: `devices`, `axis`
 * and `blocks` say which. */
#include "graph/ops/collective/collective.h"
#include "graph/ops/elementwise/elementwise.h"

#include <math.h>
#include <string.h>

#include "graph/math/philox_lanes.h"

enum { WORDS = SMP__PHILOX_WORDS, GROUP = SMP__PHILOX_GROUP };

static const smp_attr_desc ATTRS[] = {
    [SMP__DROPOUT_P] = {"p", SMP_ATTR_FLOAT, true, 0, 0, 1, NULL},
    [SMP__DROPOUT_DEVICES] = {"devices", SMP_ATTR_INT, false, 1, 1, SMP__MOST_DEVICES, NULL},
    [SMP__DROPOUT_AXIS] = {"axis", SMP_ATTR_INT, false, 0, 0, SMP_MAX_DIMS - 1, NULL},
    [SMP__DROPOUT_BLOCKS] = {"blocks", SMP_ATTR_INT, false, 1, 1, SMP_SPLIT_BLOCKS, NULL},
    {0},
};

static smp_status infer(smp_infer *infer)
{
    if (!(infer->attr[SMP__DROPOUT_P].f < 1))
        return smp_infer_fail(infer, "p: got %g, expected 0 <= p < 1",
                              infer->attr[SMP__DROPOUT_P].f);
    if (infer->attr[SMP__DROPOUT_DEVICES].i > 1)
        return smp__infer_parts(infer, infer->attr[SMP__DROPOUT_AXIS].i, 1,
                                infer->attr[SMP__DROPOUT_BLOCKS].i, false);
    return smp__infer_like_input(infer);
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    smp__work_elementwise(graph, op, batch, 25, 25, work);
}

smp__dropout_mask smp__dropout_mask_of(const smp_op_call *call)
{
    double p = call->op->attr[SMP__DROPOUT_P].f;
    return (smp__dropout_mask){
        .key = smp__random_key(call),
        .counter_high = call->step.turn,
        .threshold = (uint32_t)ceil(p * 0x1p24),
        .scale = (float)(1.0 / (1.0 - p)),
    };
}

/* Elements `first` to first + n - 1 of the mask. Every x[i] is loaded and multiplied, by 0 if it is
 * dropped: a load under the condition is what gcc 12 vectorises wrongly for AVX2
 * (graph/math/vector.h). */
SMP_VECTOR static void drop(float *restrict y, const float *restrict x, smp__dropout_mask m,
                            int64_t first, int64_t n)
{
    uint32_t word[WORDS][SMP_LANES];
    for (int64_t begin = 0, width; begin < n; begin += width) {
        int skip = (int)((first + begin) % GROUP);
        width = n - begin < GROUP - skip ? n - begin : GROUP - skip;
        smp__philox_group(m.key, m.counter_high, (uint64_t)(first + begin) / GROUP, word);
        if (width == GROUP)
            for (int w = 0; w < WORDS; w++)
                for (int l = 0; l < SMP_LANES; l++) {
                    int64_t i = begin + w * SMP_LANES + l;
                    y[i] = x[i] * (word[w][l] >> 8 < m.threshold ? 0 : m.scale);
                }
        else
            for (int i = 0; i < width; i++) {
                int at = skip + i;
                uint32_t bits = word[at / SMP_LANES][at % SMP_LANES] >> 8;
                y[begin + i] = x[begin + i] * (bits < m.threshold ? 0 : m.scale);
            }
    }
}

static smp_status apply(const smp_op_call *call, float *y, const float *x)
{
    const smp_tensor *in = smp__in(call->graph, call->op, 0);
    const smp_attr_value *attr = call->op->attr;
    int64_t n = smp__count(in, call->batch), devices = attr[SMP__DROPOUT_DEVICES].i;
    if (!call->step.training || !(attr[SMP__DROPOUT_P].f > 0)) {
        memcpy(y, x, (size_t)n * sizeof *y);
        return SMP_OK;
    }
    smp__parts parts = {1, 1, 1, n};
    if (devices > 1)
        parts = smp__parts_of(in, attr[SMP__DROPOUT_AXIS].i, 1, attr[SMP__DROPOUT_BLOCKS].i,
                              call->batch);
    const int64_t run = parts.run, device = devices > 1 ? call->graph->device : 0;
    parts.devices = devices;
    for (int64_t i = 0; i * run < n; i++)
        drop(y + i * run, x + i * run, smp__dropout_mask_of(call),
             smp__run_of(parts, i, device) * run, run);
    return SMP_OK;
}

static smp_status forward(const smp_op_call *call)
{
    return apply(call, call->out[0], call->in[0]);
}

static smp_status backward_input(const smp_op_call *call)
{
    return call->din[0] ? apply(call, call->din[0], call->dout[0]) : SMP_OK;
}

const smp_op_kind smp__op_dropout = {
    .name = "dropout",
    .summary = "zeroes elements with probability p while training",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [4, 6]}\n"
              "ops:\n"
              "  - {op: dropout, name: op, in: x, out: y, p: 0.1}\n",
    .min_in = 1,
    .max_in = 1,
    .random = true,
    .attrs = ATTRS,
    .infer = infer,
    .work = work,
    .split = smp__split_elementwise,
    .cpu = {.forward = forward, .backward_input = backward_input},
};
