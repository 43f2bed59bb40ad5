/* max_pool: the largest value of every window of an image's planes (graph/ops/pool.h); the first
 * one in reading order where there are several, and NaN where there is one. Padding is never
 * chosen.
 *
 * Forward saves which place of the window was chosen, y << 8 | x, 16 bits. A pixel's gradient is
 * the sum over the windows that chose it, in reading order.
 *
 * Loops of our own, a row of windows at a time: oneDNN 2.6 passes over a NaN, makes -FLT_MAX of a
 * window that is -inf, and for row-major images has a fast kernel on AVX-512 alone, which adds
 * gradients in another order than that of other processors. */
#include "graph/ops/pool.h"

#include <math.h>
#include <string.h>

#include "graph/math/vector.h"

static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    (void)batch;
    *needs = (smp_op_needs){
        .input_grad_aux = true,
        .aux_bytes = smp__out(graph, op)->elements * (int64_t)sizeof(uint16_t),
        .workspace_bytes = smp__pool_workspace(graph, op),
    };
}

/* A GPU's threads need no rows. */
static void cuda_needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *out)
{
    needs(graph, op, batch, out);
    out->workspace_bytes = 0;
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    const int64_t kernel = op->attr[SMP__POOL_KERNEL].i;
    smp__work_elementwise(graph, op, batch, (double)(kernel * kernel), 1, work);
}

/* Of n windows, the next pixel of each; step: from one window's to the next one's. */
static inline void take(float *restrict best, int32_t *restrict place, const float *restrict x,
                        int64_t step, int32_t at, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const float pixel = x[i * step], old = best[i];
        const int32_t old_place = place[i];
        const bool larger = pixel > old || pixel != pixel;
        best[i] = larger ? pixel : old;
        place[i] = larger ? at : old_place;
    }
}

/* Of a row of windows, the pixels of their row `row`, which is on the line; the usual strides are
 * constants, which is what makes vectors of the loops. */
SMP_VECTOR static void take_line(const smp__pool *p, float *best, int32_t *place, const float *line,
                                 int64_t row)
{
    const int64_t n = p->out_width;
    for (int64_t x = 0; x < p->kernel; x++) {
        const int32_t at = (int32_t)(row << 8 | x);
        if (p->stride == 1)
            take(best, place, line + x, 1, at, n);
        else if (p->stride == 2)
            take(best, place, line + x, 2, at, n);
        else
            take(best, place, line + x, p->stride, at, n);
    }
}

/* Row oy of the windows; their places, still of 32 bits, behind the line in `work`. */
static void choose(const smp__pool *p, const float *plane, int64_t oy, float *out, uint16_t *place,
                   float *work)
{
    const smp__pool_range ys = smp__pool_pixels(p, oy, p->height);
    const int64_t top = oy * p->stride - p->padding;
    float *line = work;
    int32_t *at = (int32_t *)(work + smp__pool_line(p));
    for (int64_t i = 0; i < p->out_width; i++) { /* the first pixel, should all be -inf */
        const int64_t before = p->padding - i * p->stride;
        out[i] = -INFINITY;
        at[i] = (int32_t)((ys.begin - top) << 8 | (before > 0 ? before : 0));
    }
    for (int64_t y = ys.begin; y < ys.end; y++) {
        memcpy(line + p->padding, plane + y * p->width, (size_t)p->width * sizeof *line);
        take_line(p, out, at, line, y - top);
    }
    for (int64_t i = 0; i < p->out_width; i++)
        place[i] = (uint16_t)at[i];
}

static smp_status forward(const smp_op_call *call)
{
    const smp__pool p = smp__pool_of(call->graph, call->op, call->batch);
    const float *plane = call->in[0];
    uint16_t *place = call->aux;
    float *out = call->out, *work = call->workspace;
    for (int64_t i = 0; i < smp__pool_line(&p); i++)
        work[i] = -INFINITY; /* padding, which is never larger */
    for (int64_t left = p.planes; left > 0; left--, plane += p.height * p.width)
        for (int64_t y = 0; y < p.out_height; y++, out += p.out_width, place += p.out_width)
            choose(&p, plane, y, out, place, work);
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    const smp__pool p = smp__pool_of(call->graph, call->op, call->batch);
    const uint16_t *place = call->aux;
    const float *dout = call->dout;
    float *dx = call->din[0];
    if (!dx)
        return SMP_OK;
    memset(dx, 0, (size_t)(p.planes * p.height * p.width) * sizeof *dx);
    for (int64_t left = p.planes; left > 0; left--, dx += p.height * p.width)
        for (int64_t oy = 0; oy < p.out_height; oy++)
            for (int64_t ox = 0; ox < p.out_width; ox++, place++, dout++) {
                const int64_t y = oy * p.stride - p.padding + (*place >> 8);
                const int64_t x = ox * p.stride - p.padding + (*place & 255);
                /* a place that forward did not write must not lead out of the image */
                if (y >= 0 && y < p.height && x >= 0 && x < p.width)
                    dx[y * p.width + x] += *dout;
            }
    return SMP_OK;
}

const smp_op_kind smp__op_max_pool = {
    .name = "max_pool",
    .summary = "largest value of every window of an image",
    .sample = "inputs:\n"
              "  image: {dtype: float32, shape: [3, 4, 6]}\n"
              "ops:\n"
              "  - {op: max_pool, name: op, in: image, out: y, kernel: 3, stride: 2, padding: 1}\n",
    .min_in = 1,
    .max_in = 1,
    .attrs = smp__pool_attrs,
    .infer = smp__pool_infer,
    .needs = needs,
    .cuda_needs = cuda_needs,
    .work = work,
    .cpu = {.forward = forward, .backward_input = backward_input},
};
