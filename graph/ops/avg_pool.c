/* avg_pool: the mean of every window of an image's planes (graph/ops/pool.h). Padding counts as
 * zeros: the divisor is the size of the window, whatever it covers. Pixels are added in reading
 * order, and so are, for a pixel's gradient, the windows that have it. */
#include "graph/ops/pool.h"

static float factor_of(const smp__pool *p)
{
    return 1.0f / (float)(p->kernel * p->kernel);
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    const double window = (double)(op->attr[SMP__POOL_KERNEL].i * op->attr[SMP__POOL_KERNEL].i);
    const double pixels = (double)smp__in(graph, op, 0)->elements * (double)batch;
    smp__work_elementwise(graph, op, batch, window + 1, window, work);
    work->backward_input_flops += pixels;
}

/* Of values [lines][width]: those of lines ys and columns xs. */
static float sum_of(const float *values, int64_t width, smp__pool_range ys, smp__pool_range xs)
{
    float sum = 0;
    for (int64_t y = ys.begin; y < ys.end; y++)
        for (int64_t x = xs.begin; x < xs.end; x++)
            sum += values[y * width + x];
    return sum;
}

static smp_status forward(const smp_op_call *call)
{
    const smp__pool p = smp__pool_of(call->graph, call->op, call->batch);
    const float *plane = call->in[0];
    float *out = call->out;
    for (int64_t left = p.planes; left > 0; left--, plane += p.height * p.width)
        for (int64_t y = 0; y < p.out_height; y++)
            for (int64_t x = 0; x < p.out_width; x++)
                *out++ = sum_of(plane, p.width, smp__pool_pixels(&p, y, p.height),
                                smp__pool_pixels(&p, x, p.width)) *
                         factor_of(&p);
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    const smp__pool p = smp__pool_of(call->graph, call->op, call->batch);
    const float *dout = call->dout;
    float *dx = call->din[0];
    if (!dx)
        return SMP_OK;
    for (int64_t left = p.planes; left > 0; left--, dout += p.out_height * p.out_width)
        for (int64_t y = 0; y < p.height; y++)
            for (int64_t x = 0; x < p.width; x++)
                *dx++ = sum_of(dout, p.out_width, smp__pool_windows(&p, y, p.out_height),
                               smp__pool_windows(&p, x, p.out_width)) *
                        factor_of(&p);
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
    .work = work,
    .cpu = {.forward = forward, .backward_input = backward_input},
};
