/* Square windows over the planes of [C, H, W]: attributes and shapes (pool.h). */
#include "graph/ops/convolution/pool.h"

#include <string.h>

#include "graph/math/vector.h"

/* A row and a column of a window fit 8 bits each. */
const smp_attr_desc smp__pool_attrs[] = {
    [SMP__POOL_KERNEL] = {"kernel", SMP_ATTR_INT, true, 0, 1, 255, NULL},
    [SMP__POOL_STRIDE] = {"stride", SMP_ATTR_INT, false, 0, 0, INT32_MAX, NULL},
    [SMP__POOL_PADDING] = {"padding", SMP_ATTR_INT, false, 0, 0, 127, NULL},
    {0},
};

static int64_t stride_of(const smp_attr_value *attr)
{
    return attr[SMP__POOL_STRIDE].i > 0 ? attr[SMP__POOL_STRIDE].i : attr[SMP__POOL_KERNEL].i;
}

smp_status smp__pool_infer(smp_infer *infer)
{
    const smp_attr_value *attr = infer->attr;
    const int64_t kernel = attr[SMP__POOL_KERNEL].i, padding = attr[SMP__POOL_PADDING].i;
    SMP_TRY(smp_infer_dims(infer, 0, 3, 3));
    SMP_TRY(smp__infer_like_input(infer));
    if (2 * padding > kernel)
        return smp_infer_fail(infer, "padding: got %lld, expected at most half the kernel of %lld",
                              (long long)padding, (long long)kernel);
    for (int i = 1; i < 3; i++) {
        int64_t *size = &infer->out_shape.dim[i];
        if (*size + 2 * padding < kernel)
            return smp_infer_fail(infer,
                                  "kernel: %lld does not fit dimension %d: %lld elements, "
                                  "padded by %lld on both sides",
                                  (long long)kernel, i, (long long)*size, (long long)padding);
        *size = (*size + 2 * padding - kernel) / stride_of(attr) + 1;
    }
    return SMP_OK;
}

static int64_t in_lanes(int64_t n)
{
    return (n + SMP_LANES - 1) / SMP_LANES * SMP_LANES;
}

smp__pool smp__pool_of(const smp_graph *graph, const smp_op *op, int64_t batch)
{
    const smp_shape *in = &smp__in(graph, op, 0)->shape, *out = &smp__out(graph, op)->shape;
    const int64_t values = smp__in(graph, op, 0)->channels_last ? in->dim[0] : 1;
    smp__pool p = {.planes = batch * in->dim[0] / values,
                   .values = values,
                   .height = in->dim[1],
                   .width = in->dim[2],
                   .out_height = out->dim[1],
                   .out_width = out->dim[2],
                   .kernel = op->attr[SMP__POOL_KERNEL].i,
                   .stride = stride_of(op->attr),
                   .padding = op->attr[SMP__POOL_PADDING].i};
    p.phases = p.kernel < p.stride ? p.kernel : p.stride;
    p.before = in_lanes((p.kernel - 1) / p.stride);
    p.pitch = in_lanes((p.width + 2 * p.padding + p.stride - 1) / p.stride) + p.before;
    return p;
}

/* A run of pixels of one phase: the first pixel, its place in the phase, and how many there are. */
typedef struct run {
    int64_t pixel, at, count;
} run;

static run run_of(const smp__pool *p, int64_t phase)
{
    const int64_t ahead = phase - p->padding; /* of the phase's first place */
    const int64_t at = ahead >= 0 ? 0 : (-ahead + p->stride - 1) / p->stride;
    const int64_t pixel = ahead + at * p->stride;
    return (run){pixel, at, pixel < p->width ? (p->width - pixel + p->stride - 1) / p->stride : 0};
}

/* The usual strides are constants, which is what makes vectors of the loops. */
static inline void every(float *restrict to, const float *restrict from, int64_t to_step,
                         int64_t from_step, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i * to_step] = from[i * from_step];
}

SMP_VECTOR void smp__pool_spread(const smp__pool *p, const float *x, float *phase)
{
    for (int64_t i = 0; i < p->phases; i++, phase += p->pitch) {
        const run r = run_of(p, i);
        if (p->stride == 1)
            every(phase + r.at, x + r.pixel, 1, 1, r.count);
        else if (p->stride == 2)
            every(phase + r.at, x + r.pixel, 1, 2, r.count);
        else
            every(phase + r.at, x + r.pixel, 1, p->stride, r.count);
    }
}

/* Two phases in turns, the first pixel's first. */
SMP_VECTOR static void join_two(const smp__pool *p, const float *phase, float *restrict x)
{
    const int64_t odd = p->padding % 2, pairs = p->width / 2;
    const float *restrict first = phase + odd * p->pitch + p->padding / 2;
    const float *restrict second = phase + (1 - odd) * p->pitch + (p->padding + 1) / 2;
    for (int64_t i = 0; i < pairs; i++) {
        x[2 * i] = first[i];
        x[2 * i + 1] = second[i];
    }
    if (p->width % 2 == 1)
        x[2 * pairs] = first[pairs];
}

void smp__pool_join(const smp__pool *p, const float *phase, float *x)
{
    if (p->stride == 2 && p->phases == 2) {
        join_two(p, phase, x);
        return;
    }
    if (p->phases < p->stride)
        memset(x, 0, (size_t)p->width * sizeof *x);
    for (int64_t i = 0; i < p->phases; i++, phase += p->pitch) {
        const run r = run_of(p, i);
        every(x + r.pixel, phase + r.at, p->stride, 1, r.count);
    }
}
