/* avg_pool: the mean of every window of an image's planes (graph/ops/pool.h). Padding counts as
 * zeros: the divisor is the size of the window, whatever it covers. First the rows of a window are
 * added, from the top, then their columns, from the left; the gradient likewise: the windows above
 * one another that have a row, then those that have a column. O(pixels * kernel).
 *
 * Loops of our own: for row-major images oneDNN 2.6 has a fast kernel on AVX-512 alone, which adds
 * gradients in another order than that of other processors. */
#include "graph/ops/pool.h"

#include <string.h>

#include "graph/math/vector.h"

static float factor_of(const smp__pool *p)
{
    return 1.0f / (float)(p->kernel * p->kernel);
}

static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    (void)batch;
    *needs = (smp_op_needs){.workspace_bytes = smp__pool_workspace(graph, op)};
}

/* A GPU's threads need no rows. */
static void cuda_needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    (void)graph, (void)op, (void)batch;
    *needs = (smp_op_needs){0};
}

/* Of each window: sums over the rows of each of its columns, which `kernel / stride` windows share,
 * and over the columns. */
static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    const smp__pool p = smp__pool_of(graph, op, batch);
    const double k = (double)p.kernel, planes = (double)p.planes, height = (double)p.height;
    const double out_height = (double)p.out_height, out_width = (double)p.out_width;
    smp__work_bytes(graph, op, batch, work);
    work->forward_flops = planes * out_height * (k * (double)p.width + (k + 1) * out_width);
    work->backward_input_flops =
        planes * (k * out_width * (out_height + height) + height * (double)p.width);
}

/* y[i] += x[i * step], or back: y[i * step] += x[i] */
static inline void add_every(float *restrict y, const float *restrict x, int64_t step, int64_t n,
                             bool back)
{
    for (int64_t i = 0; i < n; i++)
        y[back ? i * step : i] += x[back ? i : i * step];
}

/* The same with the usual strides as constants, which is what makes it vectors. */
SMP_VECTOR static void add_columns(float *y, const float *x, const smp__pool *p, bool back)
{
    for (int64_t i = 0; i < p->kernel; i++) {
        const int64_t k = back ? p->kernel - 1 - i : i; /* windows from the left, too */
        float *to = back ? y + k : y;
        const float *from = back ? x : x + k;
        if (p->stride == 1)
            add_every(to, from, 1, p->out_width, back);
        else if (p->stride == 2)
            add_every(to, from, 2, p->out_width, back);
        else
            add_every(to, from, p->stride, p->out_width, back);
    }
}

static smp_status forward(const smp_op_call *call)
{
    const smp__pool p = smp__pool_of(call->graph, call->op, call->batch);
    const float *plane = call->in[0];
    float *out = call->out, *line = call->workspace;
    const int64_t windows = p.planes * p.out_height * p.out_width;
    memset(out, 0, (size_t)windows * sizeof *out);
    for (int64_t left = p.planes; left > 0; left--, plane += p.height * p.width)
        for (int64_t oy = 0; oy < p.out_height; oy++, out += p.out_width) {
            const smp__pool_range ys = smp__pool_pixels(&p, oy, p.height);
            memset(line, 0, (size_t)smp__pool_line(&p) * sizeof *line);
            for (int64_t y = ys.begin; y < ys.end; y++)
                smp__accumulate(line + p.padding, plane + y * p.width, p.width);
            add_columns(out, line, &p, false);
        }
    smp__scale(call->out, factor_of(&p), windows);
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    const smp__pool p = smp__pool_of(call->graph, call->op, call->batch);
    const float *dout = call->dout;
    float *dx = call->din[0], *line = call->workspace, *sums = line + smp__pool_line(&p);
    if (!dx)
        return SMP_OK;
    for (int64_t left = p.planes; left > 0; left--, dout += p.out_height * p.out_width)
        for (int64_t y = 0; y < p.height; y++, dx += p.width) {
            const smp__pool_range oys = smp__pool_windows(&p, y, p.out_height);
            memset(line, 0, (size_t)(smp__pool_line(&p) + p.out_width) * sizeof *line);
            for (int64_t oy = oys.begin; oy < oys.end; oy++)
                smp__accumulate(sums, dout + oy * p.out_width, p.out_width);
            add_columns(line, sums, &p, true);
            memcpy(dx, line + p.padding, (size_t)p.width * sizeof *dx);
        }
    smp__scale(call->din[0], factor_of(&p), p.planes * p.height * p.width);
    return SMP_OK;
}

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
    .needs = needs,
    .cuda_needs = cuda_needs,
    .work = work,
    .cpu = {.forward = forward, .backward_input = backward_input},
};
