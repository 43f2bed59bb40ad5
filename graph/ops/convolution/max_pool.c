/* max_pool: the largest value of every window of an image's planes (pool.h); the first
 * one in reading order where there are several, and NaN where there is one. Padding is never
 * chosen.
 *
 * Forward saves which place of the window was chosen, y << 8 | x, 16 bits. A pixel's gradient is
 * the sum over the windows that chose it, in reading order.
 *
 * Loops of our own over rows of windows, on the pixels that one row of windows has, taken apart in
 * the workspace: oneDNN 2.6 passes over a NaN, makes -FLT_MAX of a window that is -inf, and for
 * row-major images has a fast kernel on AVX-512 alone, which adds gradients in another order than
 * that of other processors. */
#include "graph/ops/convolution/pool.h"

#include <math.h>
#include <string.h>

#include "graph/math/vector.h"

/* Floats of a row of pixels, and of a row of windows, in the workspace. */
static int64_t lines_of(const smp__pool *p)
{
    return p->phases * p->pitch;
}

static int64_t window_row(const smp__pool *p)
{
    return p->before + p->pitch;
}

/* Rows of windows that a pixel may be in. */
static int64_t window_rows(const smp__pool *p)
{
    return (p->kernel - 1) / p->stride + 1;
}

static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    const smp__pool p = smp__pool_of(graph, op, batch);
    const int64_t forward = p.kernel * lines_of(&p) + 2 * p.pitch;
    const int64_t backward = 2 * window_rows(&p) * window_row(&p) + lines_of(&p);
    *needs = (smp_op_needs){
        .input_grad_aux = true,
        .aux_bytes = smp__out(graph, op)->elements * (int64_t)sizeof(uint16_t),
        .workspace_bytes = (forward > backward ? forward : backward) * (int64_t)sizeof(float),
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

/* Takes the next pixel of each of n windows, a multiple of SMP_LANES. */
static inline void take_pixel(float *restrict best, int32_t *restrict place,
                              const float *restrict x, int32_t at, int64_t n)
{
    for (int64_t i = 0; i < n; i += SMP_LANES)
        for (int64_t l = i; l < i + SMP_LANES; l++) {
            const float pixel = x[l], old = best[l];
            const int32_t old_place = place[l];
            const bool larger = pixel > old || pixel != pixel;
            best[l] = larger ? pixel : old;
            place[l] = larger ? at : old_place;
        }
}

/* A row of windows, from pixel row y, number `row` of the windows, in its phases. */
SMP_VECTOR static void take_line(const smp__pool *p, float *best, int32_t *place,
                                 const float *phases, int64_t row)
{
    for (int64_t x = 0; x < p->kernel; x++)
        take_pixel(best, place, phases + x % p->stride * p->pitch + x / p->stride,
                   (int32_t)(row << 8 | x), p->pitch - p->before);
}

SMP_VECTOR static void narrow(uint16_t *restrict to, const int32_t *restrict from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = (uint16_t)from[i];
}

/* Row oy of the windows, of pixel rows that lie in their phases at lines + (y mod kernel) * line;
 * best, place: a row of the workspace each. */
static void choose(const smp__pool *p, const float *lines, int64_t oy, float *best, int32_t *place)
{
    const smp__pool_range ys = smp__pool_pixels(p, oy, p->height);
    const int64_t top = oy * p->stride - p->padding;
    for (int64_t i = 0; i < p->pitch; i++) { /* the first pixel, should all be -inf */
        const int64_t before = i < p->padding ? p->padding - i * p->stride : 0;
        best[i] = -INFINITY;
        place[i] = (int32_t)((ys.begin - top) << 8 | (before > 0 ? before : 0));
    }
    for (int64_t y = ys.begin; y < ys.end; y++)
        take_line(p, best, place, lines + y % p->kernel * lines_of(p), y - top);
}

static smp_status forward(const smp_op_call *call)
{
    const smp__pool p = smp__pool_of(call->graph, call->op, call->batch);
    const int64_t line = lines_of(&p);
    const float *plane = call->in[0];
    uint16_t *place = call->aux;
    float *out = call->out[0], *lines = call->workspace;
    float *best = lines + p.kernel * line;
    int32_t *at = (int32_t *)(best + p.pitch);
    for (int64_t i = 0; i < p.kernel * line; i++)
        lines[i] = -INFINITY; /* padding, which is never larger */
    for (int64_t left = p.planes; left > 0; left--, plane += p.height * p.width)
        for (int64_t oy = 0, next = 0; oy < p.out_height; oy++) {
            const smp__pool_range ys = smp__pool_pixels(&p, oy, p.height);
            for (next = next > ys.begin ? next : ys.begin; next < ys.end; next++)
                smp__pool_spread(&p, plane + next * p.width, lines + next % p.kernel * line);
            choose(&p, lines, oy, best, at);
            memcpy(out, best, (size_t)p.out_width * sizeof *out);
            narrow(place, at, p.out_width);
            out += p.out_width, place += p.out_width;
        }
    return SMP_OK;
}

enum { NOWHERE = 1 << 16 }; /* a window that is none: no place of 16 bits */

/* Gives n pixels, a multiple of SMP_LANES, the gradients of the windows that chose place `at`. */
static inline void give(float *restrict dx, const float *restrict dout,
                        const int32_t *restrict place, int32_t at, int64_t n)
{
    for (int64_t i = 0; i < n; i += SMP_LANES)
        for (int64_t l = i; l < i + SMP_LANES; l++) {
            const float own = dout[l];
            dx[l] += place[l] == at ? own : 0;
        }
}

/* The gradients of pixel row y, in its phases, over the windows in reading order. Row oy of these
 * lies at dout and place + (oy mod rows) * row. */
SMP_VECTOR static void add_row(const smp__pool *p, const float *dout, const int32_t *place,
                               int64_t y, float *phases)
{
    const smp__pool_range oys = smp__pool_windows(p, y, p->out_height);
    const int64_t rows = window_rows(p), row = window_row(p), n = p->pitch - p->before;
    memset(phases, 0, (size_t)lines_of(p) * sizeof *phases);
    for (int64_t oy = oys.begin; oy < oys.end; oy++)
        for (int64_t x = p->kernel - 1; x >= 0; x--) {
            const int64_t at = oy % rows * row + p->before - x / p->stride;
            give(phases + x % p->stride * p->pitch, dout + at, place + at,
                 (int32_t)((y + p->padding - oy * p->stride) << 8 | x), n);
        }
}

SMP_VECTOR static void widen(int32_t *restrict to, const uint16_t *restrict from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = from[i];
}

static smp_status backward_input(const smp_op_call *call)
{
    const smp__pool p = smp__pool_of(call->graph, call->op, call->batch);
    const int64_t rows = window_rows(&p), row = window_row(&p);
    const uint16_t *place = call->aux;
    const float *dout = call->dout[0];
    float *dx = call->din[0], *own = call->workspace, *phases = own + 2 * rows * row;
    int32_t *places = (int32_t *)(own + rows * row);
    if (!dx)
        return SMP_OK;
    for (int64_t i = 0; i < rows * row; i++)
        places[i] = NOWHERE;
    for (int64_t left = p.planes; left > 0; left--)
        for (int64_t y = 0, next = 0; y < p.height; y++, dx += p.width) {
            for (; next < smp__pool_windows(&p, y, p.out_height).end; next++) {
                const int64_t at = next % rows * row + p.before;
                memcpy(own + at, dout, (size_t)p.out_width * sizeof *dout);
                widen(places + at, place, p.out_width);
                dout += p.out_width, place += p.out_width;
            }
            add_row(&p, own, places, y, phases);
            smp__pool_join(&p, phases, dx);
        }
    return SMP_OK;
}

static const smp_split_rule SPLITS[] = {
    {"channels", .in = {SMP_CELL_DIM0}, .out = SMP_CELL_DIM0},
    {0},
};

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
    .needs = {[SMP_BACKEND_CPU] = needs, [SMP_BACKEND_CUDA] = cuda_needs},
    .work = work,
    .layout = smp__layout_alike,
    .split = SPLITS,
    .cpu = {.forward = forward, .backward_input = backward_input},
};
