/* bce_with_logits: logits x and float targets t of one shape -> one loss per micro-batch, the mean
 * of -t log sigmoid(x) - (1 - t) log(1 - sigmoid(x)) over all elements of its samples; 0 without a
 * sample. Gradients for both inputs: sigmoid(x) - t and -x, over the number of elements.
 *
 * An element's loss is max(x, 0) - x t + log1p(e) with e = exp(-|x|), which neither overflows nor
 * cancels. The logarithms of many elements are one: with g = prod(1 + e) - 1, which grows by
 * e (1 + g) an element and so keeps what is small, their sum is log1p(g). In double, blocks in
 * order. O(n). */
#include "graph/ops/loss/loss.h"

#include <math.h>
#include <string.h>

#include "graph/math/vector.h"

enum { BLOCK = 4096 }; /* a lane's product, at most 2 ^ (BLOCK / SMP_LANES), is a double */

static const smp_attr_desc ATTRS[] = {{0}};

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    smp__work_elementwise(graph, op, batch, 27, 25, work);
}

/* Sums over the elements of one lane: max(x, 0) - x t, and the product of 1 + e, less 1. */
typedef struct lane_sums {
    double linear[SMP_LANES], growth[SMP_LANES];
} lane_sums;

static inline void add_term(lane_sums *sums, int l, double x, double t, double e)
{
    sums->linear[l] += (x > 0 ? x : 0) - x * t;
    sums->growth[l] += e * (1 + sums->growth[l]);
}

/* Element i in lane i mod SMP_LANES; e: exp(-|x|). */
SMP_VECTOR static double block_loss(const float *x, const float *t, const float *e, int64_t n)
{
    lane_sums sums = {0};
    double loss = 0;
    int64_t i = 0;
    for (; i + SMP_LANES <= n; i += SMP_LANES)
        for (int l = 0; l < SMP_LANES; l++)
            add_term(&sums, l, (double)x[i + l], (double)t[i + l], (double)e[i + l]);
    for (int l = 0; i + l < n; l++)
        add_term(&sums, l, (double)x[i + l], (double)t[i + l], (double)e[i + l]);
    for (int l = 0; l < SMP_LANES; l++)
        loss += sums.linear[l] + log1p(sums.growth[l]);
    return loss;
}

SMP_VECTOR static void scaled_difference(float *restrict y, const float *restrict t, float scale,
                                         int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = scale * (y[i] - t[i]);
}

SMP_VECTOR static void scaled(float *restrict y, const float *restrict x, float scale, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = scale * x[i];
}

static smp_status forward(const smp_op_call *call)
{
    const float *x = call->in[SMP__LOGITS], *t = call->in[SMP__TARGETS];
    int64_t n = smp__pair_loss_counted(call);
    float e[BLOCK];
    double sum = 0;
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t part = n - i < BLOCK ? n - i : BLOCK;
        smp__exp_magnitude(e, x + i, part);
        sum += block_loss(x + i, t + i, e, part);
    }
    *(float *)call->out[0] = n > 0 ? (float)(sum / (double)n) : 0;
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    const float *x = call->in[SMP__LOGITS], *t = call->in[SMP__TARGETS];
    float *dx = call->din[SMP__LOGITS], *dt = call->din[SMP__TARGETS];
    int64_t n = smp__pair_loss_counted(call);
    int64_t all = smp__count(smp__in(call->graph, call->op, SMP__LOGITS), call->batch);
    float scale = *call->dout[0] / (float)(n > 0 ? n : 1);
    if (dx) {
        smp__sigmoid(dx, x, n);
        scaled_difference(dx, t, scale, n);
        memset(dx + n, 0, (size_t)(all - n) * sizeof *dx);
    }
    if (dt) {
        scaled(dt, x, -scale, n);
        memset(dt + n, 0, (size_t)(all - n) * sizeof *dt);
    }
    return SMP_OK;
}

const smp_op_kind smp__op_bce_with_logits = {
    .name = "bce_with_logits",
    .summary = "mean binary cross entropy of logits and float targets",
    .sample = "inputs:\n"
              "  logits: {dtype: float32, shape: [4, 6]}\n"
              "  targets: {dtype: float32, shape: [4, 6]}\n"
              "ops:\n"
              "  - {op: bce_with_logits, name: op, in: [logits, targets], out: loss}\n",
    .min_in = 2,
    .max_in = 2,
    .attrs = ATTRS,
    .infer = smp__infer_pair_loss,
    .needs = {[SMP_BACKEND_CPU] = smp__needs_pair, [SMP_BACKEND_CUDA] = smp__cuda_needs_pair_loss},
    .work = work,
    .cpu = {.forward = forward, .backward_input = backward_input},
};
