/* silu (Elfwing et al. 2017), also called swish: x * sigmoid(x). Backward needs the input:
 * dx = dy * s * (1 + x * (1 - s)), s = sigmoid(x). By the loop of sigmoid, whose bits are the same
 * on every machine: oneDNN's are not. */
#include "graph/ops/ops.h"

#include "graph/math/vector.h"

enum { BLOCK = 4096 }; /* values that stay in the cache between two loops */

static const smp_attr_desc ATTRS[] = {{0}};

static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    (void)graph, (void)op, (void)batch;
    *needs = (smp_op_needs){.input_grad_in = 1};
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    smp__work_elementwise(graph, op, batch, 23, 27, work);
}

SMP_VECTOR static void weigh(float *restrict y, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] *= x[i];
}

SMP_VECTOR static void gradient(float *restrict dx, const float *restrict x,
                                const float *restrict dy, int64_t n)
{
    for (int64_t i = 0; i < n; i++) { /* dx holds the sigmoid of x */
        float s = dx[i];
        dx[i] = dy[i] * (s * (1.0f + x[i] * (1.0f - s)));
    }
}

static smp_status forward(const smp_op_call *call)
{
    const float *x = call->in[0];
    int64_t n = smp__count(smp__out(call->graph, call->op), call->batch);
    for (int64_t i = 0; i < n; i += BLOCK) {
        float *y = (float *)call->out + i;
        int64_t part = n - i < BLOCK ? n - i : BLOCK;
        smp__sigmoid(y, x + i, part);
        weigh(y, x + i, part);
    }
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    const float *x = call->in[0];
    float *dx = call->din[0];
    int64_t n = smp__count(smp__out(call->graph, call->op), call->batch);
    for (int64_t i = 0; dx && i < n; i += BLOCK) {
        int64_t part = n - i < BLOCK ? n - i : BLOCK;
        smp__sigmoid(dx + i, x + i, part);
        gradient(dx + i, x + i, call->dout + i, part);
    }
    return SMP_OK;
}

const smp_op_kind smp__op_silu = {
    .name = "silu",
    .summary = "sigmoid linear unit, x * sigmoid(x)",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [4, 6]}\n"
              "ops:\n"
              "  - {op: silu, name: op, in: x, out: y}\n",
    .min_in = 1,
    .max_in = 1,
    .attrs = ATTRS,
    .infer = smp__infer_like_input,
    .needs = needs,
    .work = work,
    .split = smp__split_elementwise,
    .cpu = {.forward = forward, .backward_input = backward_input},
};
