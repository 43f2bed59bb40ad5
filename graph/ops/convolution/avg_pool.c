/* avg_pool: the mean of every window of an image's planes (pool.h). Padding counts as
 * zeros: the divisor is the size of the window, whatever it covers. First the rows of a window are
 * added, from the top, then their columns, from the left; the gradient likewise: the windows above
 * one another that have a row, then those that have a column. O(pixels * kernel).
 *
 * Loops of our own: for row-major images oneDNN 2.6 has a fast kernel on AVX-512 alone, which adds
 * gradients in another order than that of other processors. */
#include "graph/ops/convolution/pool.h"

#include <string.h>

#include "graph/math/vector.h"

static float factor_of(const smp__pool *p)
{
    return 1.0f / (float)(p->kernel * p->kernel);
}

static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    const smp__pool p = smp__pool_of(graph, op, batch);
    const int64_t floats = p.width + p.before + (1 + p.phases) * p.pitch;
    *needs = (smp_op_needs){.workspace_bytes = floats * (int64_t)sizeof(float)};
}

/* A GPU's threads need no rows. */
static void cuda_needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    (void)graph, (void)op, (void)batch;
    *needs = (smp_op_needs){0};
}

/* Each window takes sums over the rows of each of its columns, which `kernel / stride` windows
 * share, and over the columns. */
static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    const smp__pool p = smp__pool_of(graph, op, batch);
    const double k = (double)p.kernel, planes = (double)(p.planes * p.values),
                 height = (double)p.height;
    const double out_height = (double)p.out_height, out_width = (double)p.out_width;
    smp__work_bytes(graph, op, batch, work);
    work->forward_flops = planes * out_height * (k * (double)p.width + (k + 1) * out_width);
    work->backward_input_flops =
        planes * (k * out_width * (out_height + height) + height * (double)p.width);
}

/* A row of windows, from the sums of its pixels' columns. */
SMP_VECTOR static void add_columns(const smp__pool *p, const float *phases, float *out)
{
    const float factor = factor_of(p);
    for (int64_t i = 0; i < p->out_width; i += SMP_LANES) {
        smp__lanes sum = {0};
        for (int64_t k = 0, phase = 0, shift = 0; k < p->kernel; k++) {
            sum += *(const smp__loose *)(phases + phase * p->pitch + shift + i);
            phase = phase + 1 < p->stride ? phase + 1 : 0;
            shift += phase == 0;
        }
        sum *= factor;
        for (int64_t l = 0; l < SMP_LANES && l < p->out_width - i; l++)
            out[i + l] = sum[l];
    }
}

static smp_status forward(const smp_op_call *call)
{
    const smp__pool p = smp__pool_of(call->graph, call->op, call->batch);
    const float *plane = call->in[0];
    float *out = call->out[0], *phases = call->workspace, *line = phases + p.phases * p.pitch;
    memset(phases, 0, (size_t)(p.phases * p.pitch) * sizeof *phases); /* the padding stays */
    for (int64_t left = p.planes; left > 0; left--, plane += p.height * p.width)
        for (int64_t oy = 0; oy < p.out_height; oy++, out += p.out_width) {
            const smp__pool_range ys = smp__pool_pixels(&p, oy, p.height);
            memset(line, 0, (size_t)p.width * sizeof *line);
            for (int64_t y = ys.begin; y < ys.end; y++)
                smp__accumulate(line, plane + y * p.width, p.width);
            smp__pool_spread(&p, line, phases);
            add_columns(&p, phases, out);
        }
    return SMP_OK;
}

/* A row of pixels, in phases, from the sums of the windows above one another. */
SMP_VECTOR static void add_windows(const smp__pool *p, const float *sums, float *phases)
{
    const float factor = factor_of(p);
    for (int64_t phase = 0; phase < p->phases; phase++, phases += p->pitch)
        for (int64_t i = 0; i < p->pitch - p->before; i += SMP_LANES) {
            smp__lanes sum = {0};
            for (int64_t m = (p->kernel - 1 - phase) / p->stride; m >= 0; m--)
                sum += *(const smp__loose *)(sums + i - m);
            *(smp__loose *)(phases + i) = sum * factor;
        }
}

static smp_status backward_input(const smp_op_call *call)
{
    const smp__pool p = smp__pool_of(call->graph, call->op, call->batch);
    const float *dout = call->dout[0];
    float *dx = call->din[0], *phases = call->workspace;
    float *sums = phases + p.phases * p.pitch + p.before;
    if (!dx)
        return SMP_OK;
    memset(sums - p.before, 0, (size_t)(p.before + p.pitch) * sizeof *sums);
    for (int64_t left = p.planes; left > 0; left--, dout += p.out_height * p.out_width)
        for (int64_t y = 0; y < p.height; y++, dx += p.width) {
            const smp__pool_range oys = smp__pool_windows(&p, y, p.out_height);
            memset(sums, 0, (size_t)p.out_width * sizeof *sums);
            for (int64_t oy = oys.begin; oy < oys.end; oy++)
                smp__accumulate(sums, dout + oy * p.out_width, p.out_width);
            add_windows(&p, sums, phases);
            smp__pool_join(&p, phases, dx);
        }
    return SMP_OK;
}

static const smp_split_rule SPLITS[] = {
    {"channels", .in = {SMP_CELL_DIM0}, .out = SMP_CELL_DIM0},
    {0},
};

const smp_op_kind smp__op_avg_pool = {
    .name = "avg_pool",
    .summary = "mean of every window of an image",
    .sample = "inputs:\n"
              "  image: {dtype: float32, shape: [3, 4, 6]}\n"
              "ops:\n"
              "  - {op: avg_pool, name: op, in: image, out: y, kernel: 3, stride: 2, padding: 1}\n",
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
