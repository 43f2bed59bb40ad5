/* rmsnorm over the last dimension: y = x * rrms * (weight + offset), rrms = 1 / sqrt(mean(x^2) +
 * eps) (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019; as LLaMA has it, and with
 * an offset of 1 Gemma, whose weights begin with 0).
 *
 * Forward saves rrms of each row. With g = dy * (weight + offset):
 *   dx = rrms * (g - x * rrms^2 * mean(g * x)),  dweight += sum dy * x * rrms.
 * O(rows * columns). */
#include "graph/ops/norm/norm.h"

#include <math.h>
#include <string.h>

#include "graph/math/vector.h"

enum { COLUMN_BLOCK = 256, STATISTICS = 1 /* saved of a row */ };

static const smp_attr_desc ATTRS[] = {
    [SMP__ROW_NORM_EPS] = {"eps", SMP_ATTR_FLOAT, false, 1e-5, 0, 1, NULL},
    [SMP__RMSNORM_OFFSET] = {"offset", SMP_ATTR_INT, false, 0, 0, 1, NULL},
    {0},
};

static float offset_of(const smp_op_call *call)
{
    return (float)call->op->attr[SMP__RMSNORM_OFFSET].i;
}

static smp_status infer(smp_infer *infer)
{
    SMP_TRY(smp__infer_row_norm(infer, false));
    if (infer->attr[SMP__RMSNORM_OFFSET].i)
        infer->param[0].init = SMP_INIT_ZERO;
    return SMP_OK;
}

static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    (void)batch;
    smp__needs_norm(graph, op, STATISTICS, needs);
}

static void cuda_needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    smp__cuda_needs_norm(graph, op, batch, STATISTICS, needs);
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    const double offset = (double)op->attr[SMP__RMSNORM_OFFSET].i;
    smp__work_elementwise(graph, op, batch, 4 + offset, 7 + offset, work);
    work->backward_weight_flops = work->forward_flops / (4 + offset) * 3;
}

/* y = x * factor * (weight + offset) */
SMP_VECTOR static void normalize(float *restrict y, const float *restrict x,
                                 const float *restrict weight, float factor, float offset,
                                 int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * factor * (weight[i] + offset);
}

static smp_status forward(const smp_op_call *call)
{
    const float *x = call->in[0]; /* (B, .., n) */
    float *out = call->out[0];
    float *rrms = call->aux; /* (B, ..) */
    int64_t n = smp__columns(smp__in(call->graph, call->op, 0));
    int64_t rows = smp__norm_rows(call);
    float eps = (float)call->op->attr[SMP__ROW_NORM_EPS].f;
    for (int64_t r = 0; r < rows; r++, x += n, out += n) {
        rrms[r] = 1.0f / sqrtf(smp__sum_squares(x, 0, n) / (float)n + eps);
        normalize(out, x, call->param[0], rrms[r], offset_of(call), n);
    }
    return SMP_OK;
}

/* dx = dy * (weight + offset) for the moment. */
SMP_VECTOR static void weigh(float *restrict dx, const float *restrict dy,
                             const float *restrict weight, float offset, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dx[i] = dy[i] * (weight[i] + offset);
}

/* dx = rrms * (dx - x * rrms * mean), `mean` of g times x normalised */
SMP_VECTOR static void input_gradient(float *restrict dx, const float *restrict x, float rrms,
                                      float mean, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dx[i] = rrms * (dx[i] - x[i] * rrms * mean);
}

static smp_status backward_input(const smp_op_call *call)
{
    const float *x = call->in[0];
    const float *dy = call->dout[0];
    float *dx = call->din[0];
    const float *rrms = call->aux;
    int64_t n = smp__columns(smp__in(call->graph, call->op, 0));
    int64_t rows = smp__norm_rows(call);
    for (int64_t r = 0; dx && r < rows; r++, x += n, dy += n, dx += n) {
        weigh(dx, dy, call->param[0], offset_of(call), n);
        input_gradient(dx, x, rrms[r], smp__dot(dx, x, n) * rrms[r] / (float)n, n);
    }
    return SMP_OK;
}

/* Adds one row to the running sums of a block of columns. */
SMP_VECTOR static void add_row(float *restrict sum, const float *restrict x,
                               const float *restrict dy, float rrms, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += dy[i] * (x[i] * rrms);
}

static smp_status backward_weight(const smp_op_call *call)
{
    const float *x = call->in[0];
    const float *rrms = call->aux;
    int64_t n = smp__columns(smp__in(call->graph, call->op, 0));
    int64_t rows = smp__norm_rows(call);
    float sum[COLUMN_BLOCK];
    for (int64_t begin = 0; begin < n; begin += COLUMN_BLOCK) {
        int64_t width = n - begin < COLUMN_BLOCK ? n - begin : COLUMN_BLOCK;
        memset(sum, 0, sizeof sum);
        for (int64_t r = 0; r < rows; r++)
            add_row(sum, x + r * n + begin, call->dout[0] + r * n + begin, rrms[r], width);
        smp__accumulate(call->dparam[0] + begin, sum, width);
    }
    return SMP_OK;
}

const smp_op_kind smp__op_rmsnorm = {
    .name = "rmsnorm",
    .summary = "division by the root mean square over the last dimension, with a weight",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [4, 6]}\n"
              "ops:\n"
              "  - {op: rmsnorm, name: op, in: x, out: y, eps: 1e-6}\n",
    .min_in = 1,
    .max_in = 1,
    .attrs = ATTRS,
    .infer = infer,
    .needs = {[SMP_BACKEND_CPU] = needs, [SMP_BACKEND_CUDA] = cuda_needs},
    .work = work,
    .split = smp__split_rows,
    .cpu = {.forward = forward,
            .backward_input = backward_input,
            .backward_weight = backward_weight},
};
