/* max_pool: the largest value of every window of an image's planes (graph/ops/pool.h); the first
 * one in reading order where there are several, and NaN where there is one. Padding is never
 * chosen.
 *
 * Forward saves which place of the window was chosen: y * kernel + x, 16 bits. A pixel's
 * gradient is the sum over the windows that chose it, in reading order. */
#include "graph/ops/pool.h"

#include <math.h>

static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    (void)batch;
    *needs = (smp_op_needs){
        .input_grad_aux = true,
        .aux_bytes = smp__out(graph, op)->elements * (int64_t)sizeof(uint16_t),
    };
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    const int64_t kernel = op->attr[SMP__POOL_KERNEL].i;
    smp__work_elementwise(graph, op, batch, (double)(kernel * kernel), 1, work);
}

/* The place in its window of the largest pixel; *value: that pixel. */
static uint16_t largest(const smp__pool *p, const float *plane, int64_t oy, int64_t ox,
                        float *value)
{
    const smp__pool_range ys = smp__pool_pixels(p, oy, p->height);
    const smp__pool_range xs = smp__pool_pixels(p, ox, p->width);
    int64_t best_y = ys.begin, best_x = xs.begin;
    float best = -INFINITY;
    for (int64_t y = ys.begin; y < ys.end; y++)
        for (int64_t x = xs.begin; x < xs.end; x++) {
            const float pixel = plane[y * p->width + x];
            if (pixel > best || isnan(pixel)) {
                best = pixel;
                best_y = y;
                best_x = x;
            }
        }
    *value = best;
    best_y -= oy * p->stride - p->padding;
    best_x -= ox * p->stride - p->padding;
    return (uint16_t)(best_y * p->kernel + best_x);
}

static smp_status forward(const smp_op_call *call)
{
    const smp__pool p = smp__pool_of(call->graph, call->op, call->batch);
    const float *plane = call->in[0];
    uint16_t *place = call->aux;
    float *out = call->out;
    for (int64_t left = p.planes; left > 0; left--, plane += p.height * p.width)
        for (int64_t y = 0; y < p.out_height; y++)
            for (int64_t x = 0; x < p.out_width; x++)
                *place++ = largest(&p, plane, y, x, out++);
    return SMP_OK;
}

/* place, dout: of one plane */
static float gradient(const smp__pool *p, const uint16_t *place, const float *dout, int64_t y,
                      int64_t x)
{
    const smp__pool_range ys = smp__pool_windows(p, y, p->out_height);
    const smp__pool_range xs = smp__pool_windows(p, x, p->out_width);
    float sum = 0;
    for (int64_t oy = ys.begin; oy < ys.end; oy++)
        for (int64_t ox = xs.begin; ox < xs.end; ox++) {
            const int64_t row = y + p->padding - oy * p->stride;
            const int64_t column = x + p->padding - ox * p->stride;
            if (place[oy * p->out_width + ox] == row * p->kernel + column)
                sum += dout[oy * p->out_width + ox];
        }
    return sum;
}

static smp_status backward_input(const smp_op_call *call)
{
    const smp__pool p = smp__pool_of(call->graph, call->op, call->batch);
    const int64_t windows = p.out_height * p.out_width;
    const uint16_t *place = call->aux;
    const float *dout = call->dout;
    float *dx = call->din[0];
    for (int64_t left = dx ? p.planes : 0; left > 0; left--, place += windows, dout += windows)
        for (int64_t y = 0; y < p.height; y++)
            for (int64_t x = 0; x < p.width; x++)
                *dx++ = gradient(&p, place, dout, y, x);
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
    .work = work,
    .cpu = {.forward = forward, .backward_input = backward_input},
};
