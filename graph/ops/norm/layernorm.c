/* layernorm over the last dimension: y = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(var +
 * eps) with the biased variance (Ba, Kiros, Hinton 2016).
 *
 * Forward saves mean and rstd of each row. With xhat = (x - mean) * rstd and g = dy * weight:
 *   dx = rstd * (g - mean(g) - xhat * mean(g * xhat)),  dweight += sum dy * xhat,  dbias += sum dy.
 * Mean and variance in two passes over a row that stays in cache. O(rows * columns). */
#include "graph/ops/norm/norm.h"

#include <math.h>
#include <string.h>

#include "graph/math/vector.h"

enum { COLUMN_BLOCK = 256, STATISTICS = 2 /* saved of a row */ };

typedef struct row_stats {
    float mean, rstd;
} row_stats;

static const smp_attr_desc ATTRS[] = {
    [SMP__ROW_NORM_EPS] = {"eps", SMP_ATTR_FLOAT, false, 1e-5, 0, 1, NULL},
    {0},
};

static smp_status infer(smp_infer *infer)
{
    return smp__infer_row_norm(infer, true);
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
    smp__work_elementwise(graph, op, batch, 8, 11, work);
    work->backward_weight_flops = work->forward_flops / 8 * 5;
}

SMP_VECTOR static void normalize(float *restrict y, const float *restrict x,
                                 const float *restrict weight, const float *restrict bias,
                                 row_stats stats, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = (x[i] - stats.mean) * stats.rstd * weight[i] + bias[i];
}

static smp_status forward(const smp_op_call *call)
{
    const float *x = call->in[0]; /* (B, .., n) */
    float *out = call->out[0];
    row_stats *stats = call->aux; /* (B, ..) */
    int64_t n = smp__columns(smp__in(call->graph, call->op, 0));
    int64_t rows = smp__norm_rows(call);
    float eps = (float)call->op->attr[SMP__ROW_NORM_EPS].f;
    for (int64_t r = 0; r < rows; r++, x += n, out += n) {
        float mean = smp__sum(x, n) / (float)n;
        float variance = smp__sum_squares(x, mean, n) / (float)n;
        stats[r] = (row_stats){mean, 1.0f / sqrtf(variance + eps)};
        normalize(out, x, call->param[0], call->param[1], stats[r], n);
    }
    return SMP_OK;
}

/* Sum of dy * weight * (x - mean). */
SMP_VECTOR static float centered_dot(const float *restrict x, const float *restrict dy,
                                     const float *restrict weight, float mean, int64_t n)
{
    float lane[SMP_LANES] = {0};
    float tail[SMP_LANES] = {0};
    int64_t i = 0;
    for (; i + SMP_LANES <= n; i += SMP_LANES)
        for (int l = 0; l < SMP_LANES; l++)
            lane[l] += dy[i + l] * weight[i + l] * (x[i + l] - mean);
    for (int l = 0; i + l < n; l++)
        tail[l] = dy[i + l] * weight[i + l] * (x[i + l] - mean);
    for (int l = 0; l < SMP_LANES; l++)
        lane[l] += tail[l];
    return smp__fold(lane);
}

SMP_VECTOR static void input_gradient(float *restrict dx, const float *restrict x,
                                      const float *restrict dy, const float *restrict weight,
                                      row_stats stats, float mean_g, float mean_gx, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float xhat = (x[i] - stats.mean) * stats.rstd;
        dx[i] = stats.rstd * (dy[i] * weight[i] - mean_g - xhat * mean_gx);
    }
}

static smp_status backward_input(const smp_op_call *call)
{
    const float *x = call->in[0];
    const float *dy = call->dout[0];
    float *dx = call->din[0];
    const row_stats *stats = call->aux;
    int64_t n = smp__columns(smp__in(call->graph, call->op, 0));
    int64_t rows = smp__norm_rows(call);
    for (int64_t r = 0; dx && r < rows; r++, x += n, dy += n, dx += n) {
        const float *weight = call->param[0];
        float mean_g = smp__dot(dy, weight, n) / (float)n;
        float dot = centered_dot(x, dy, weight, stats[r].mean, n);
        input_gradient(dx, x, dy, weight, stats[r], mean_g, dot * stats[r].rstd / (float)n, n);
    }
    return SMP_OK;
}

/* Adds one row to the running sums of a block of columns. */
SMP_VECTOR static void add_row(float *restrict weight_sum, float *restrict bias_sum,
                               const float *restrict x, const float *restrict dy, row_stats stats,
                               int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        weight_sum[i] += dy[i] * ((x[i] - stats.mean) * stats.rstd);
        bias_sum[i] += dy[i];
    }
}

static smp_status backward_weight(const smp_op_call *call)
{
    const float *x = call->in[0];
    const row_stats *stats = call->aux;
    int64_t n = smp__columns(smp__in(call->graph, call->op, 0));
    int64_t rows = smp__norm_rows(call);
    float weight_sum[COLUMN_BLOCK], bias_sum[COLUMN_BLOCK];
    for (int64_t begin = 0; begin < n; begin += COLUMN_BLOCK) {
        int64_t width = n - begin < COLUMN_BLOCK ? n - begin : COLUMN_BLOCK;
        memset(weight_sum, 0, sizeof weight_sum);
        memset(bias_sum, 0, sizeof bias_sum);
        for (int64_t r = 0; r < rows; r++)
            add_row(weight_sum, bias_sum, x + r * n + begin, call->dout[0] + r * n + begin,
                    stats[r], width);
        smp__accumulate(call->dparam[0] + begin, weight_sum, width);
        smp__accumulate(call->dparam[1] + begin, bias_sum, width);
    }
    return SMP_OK;
}

const smp_op_kind smp__op_layernorm = {
    .name = "layernorm",
    .summary = "normalisation over the last dimension, with weight and bias",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [4, 6]}\n"
              "ops:\n"
              "  - {op: layernorm, name: op, in: x, out: y, eps: 1e-6}\n",
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
