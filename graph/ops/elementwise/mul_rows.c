/* mul_rows: x [.., d] times a number for each row, s [.., 1], as the gate of an expert that all
 * tokens share. dx = dy * s, ds = sum over the row of dy * x. */
#include "graph/ops/elementwise/elementwise.h"

#include "graph/math/vector.h"

static smp_status infer(smp_infer *infer)
{
    char text[2][128];
    SMP_TRY(smp_infer_float(infer, 1));
    SMP_TRY(smp_infer_dims(infer, 0, 1, SMP_MAX_DIMS));
    SMP_TRY(smp__infer_like_input(infer));
    smp_shape wanted = infer->in[0]->shape;
    wanted.dim[wanted.n_dim - 1] = 1;
    if (!smp_shape_equal(&infer->in[1]->shape, &wanted))
        return smp_infer_fail(infer, "input '%s' %s, expected %s: a number for each row",
                              infer->in[1]->name,
                              smp_shape_format(text[0], sizeof text[0], &infer->in[1]->shape),
                              smp_shape_format(text[1], sizeof text[1], &wanted));
    return SMP_OK;
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    smp__work_elementwise(graph, op, batch, 1, 3, work);
}

SMP_VECTOR static void product(float *restrict y, const float *restrict x, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = factor * x[i];
}

static int64_t rows_of(const smp_op_call *call)
{
    return smp__count(smp__in(call->graph, call->op, 1), call->batch);
}

static smp_status forward(const smp_op_call *call)
{
    const int64_t n = smp__columns(smp__in(call->graph, call->op, 0)), rows = rows_of(call);
    const float *x = call->in[0], *s = call->in[1];
    float *y = call->out[0];
    for (int64_t r = 0; r < rows; r++)
        product(y + r * n, x + r * n, s[r], n);
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    const int64_t n = smp__columns(smp__in(call->graph, call->op, 0)), rows = rows_of(call);
    const float *x = call->in[0], *s = call->in[1], *dy = call->dout[0];
    for (int64_t r = 0; r < rows; r++) {
        if (call->din[0])
            product(call->din[0] + r * n, dy + r * n, s[r], n);
        if (call->din[1])
            call->din[1][r] = smp__dot(dy + r * n, x + r * n, n);
    }
    return SMP_OK;
}

static const smp_attr_desc ATTRS[] = {{0}};

static const smp_split_rule SPLITS[] = {
    {"positions", .in = {SMP_CELL_ANY, SMP_CELL_ANY}, .out = SMP_CELL_ANY,
     .allows = smp__split_allows_row},
    {0},
};

const smp_op_kind smp__op_mul_rows = {
    .name = "mul_rows",
    .summary = "rows times a number each",
    .sample = "inputs:\n"
              "  a: {dtype: float32, shape: [4, 6]}\n"
              "  b: {dtype: float32, shape: [4, 1]}\n"
              "ops:\n"
              "  - {op: mul_rows, name: op, in: [a, b], out: y}\n",
    .min_in = 2,
    .max_in = 2,
    .attrs = ATTRS,
    .infer = infer,
    .needs = {smp__needs_pair},
    .work = work,
    .split = SPLITS,
    .cpu = {.forward = forward, .backward_input = backward_input},
};
