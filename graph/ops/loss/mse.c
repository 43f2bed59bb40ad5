/* mse: mean of (prediction - target)^2 over all elements of the micro-batch's samples; one loss, 0
 * without a sample. Gradients for both inputs. Blocks are summed in float, the blocks in double, in
 * order. O(n). */
#include "graph/ops/loss/loss.h"

#include <string.h>

#include "graph/math/vector.h"

enum { BLOCK = 4096 };

static const smp_attr_desc ATTRS[] = {{0}};

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    smp__work_elementwise(graph, op, batch, 3, 4, work);
}

SMP_VECTOR static float sum_squares(const float *a, const float *b, int64_t n)
{
    float lane[SMP_LANES] = {0};
    float tail[SMP_LANES] = {0};
    int64_t i = 0;
    for (; i + SMP_LANES <= n; i += SMP_LANES)
        for (int l = 0; l < SMP_LANES; l++)
            lane[l] += (a[i + l] - b[i + l]) * (a[i + l] - b[i + l]);
    for (int l = 0; i + l < n; l++)
        tail[l] = (a[i + l] - b[i + l]) * (a[i + l] - b[i + l]);
    for (int l = 0; l < SMP_LANES; l++)
        lane[l] += tail[l];
    return smp__fold(lane);
}

SMP_VECTOR static void scaled_difference(float *restrict y, const float *a, const float *b,
                                         float scale, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = scale * (a[i] - b[i]);
}

static smp_status forward(const smp_op_call *call)
{
    const float *a = call->in[0], *b = call->in[1];
    int64_t n = smp__pair_loss_counted(call);
    double sum = 0;
    for (int64_t i = 0; i < n; i += BLOCK)
        sum += (double)sum_squares(a + i, b + i, n - i < BLOCK ? n - i : BLOCK);
    *(float *)call->out[0] = n > 0 ? (float)(sum / (double)n) : 0;
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    int64_t n = smp__pair_loss_counted(call);
    int64_t all = smp__count(smp__in(call->graph, call->op, 0), call->batch);
    float scale = 2.0f * *call->dout[0] / (float)(n > 0 ? n : 1);
    for (int i = 0; i < 2; i++) {
        if (!call->din[i])
            continue;
        scaled_difference(call->din[i], call->in[i], call->in[1 - i], scale, n);
        memset(call->din[i] + n, 0, (size_t)(all - n) * sizeof *call->din[i]);
    }
    return SMP_OK;
}

const smp_op_kind smp__op_mse = {
    .name = "mse",
    .summary = "mean squared difference of two tensors",
    .sample = "inputs:\n"
              "  a: {dtype: float32, shape: [4, 6]}\n"
              "  b: {dtype: float32, shape: [4, 6]}\n"
              "ops:\n"
              "  - {op: mse, name: op, in: [a, b], out: loss}\n",
    .min_in = 2,
    .max_in = 2,
    .attrs = ATTRS,
    .infer = smp__infer_pair_loss,
    .needs = {[SMP_BACKEND_CPU] = smp__needs_pair, [SMP_BACKEND_CUDA] = smp__cuda_needs_pair_loss},
    .work = work,
    .cpu = {.forward = forward, .backward_input = backward_input},
};
