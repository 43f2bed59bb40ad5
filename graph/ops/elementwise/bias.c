/* bias: x + b along one dimension, b [its size]: what linear and conv2d do by themselves, after
 * the sum of the parts that several devices make of their product. db is the sum over all else. */
#include "graph/ops/elementwise/elementwise.h"

#include <string.h>

#include "graph/math/vector.h"

static const smp_attr_desc ATTRS[] = {
    [SMP__BIAS_AXIS] = {"axis", SMP_ATTR_INT, false, -1, -SMP_MAX_DIMS, SMP_MAX_DIMS - 1, NULL},
    {0},
};

static smp_status infer(smp_infer *infer)
{
    int axis = 0;
    SMP_TRY(smp__infer_like_input(infer));
    SMP_TRY(smp__infer_axis(infer, infer->attr[SMP__BIAS_AXIS].i, &axis));
    infer->n_param = 1;
    infer->param[0] = (smp_param_decl){
        .role = "bias",
        .shape = {1, {infer->in[0]->shape.dim[axis]}},
        .init = SMP_INIT_ZERO,
    };
    return SMP_OK;
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    smp__work_elementwise(graph, op, batch, 1, 0, work);
    work->backward_weight_flops = work->forward_flops;
}

/* Where the dimension is the last, a GPU adds up columns. */
static void cuda_needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    const smp__axis along = smp__axis_of(smp__in(graph, op, 0), op->attr[SMP__BIAS_AXIS].i, batch);
    if (along.inner == 1)
        needs->workspace_bytes = smp__column_sum_bytes(along.outer, along.size);
}

static smp__axis along_of(const smp_op_call *call)
{
    return smp__axis_of(smp__in(call->graph, call->op, 0), call->op->attr[SMP__BIAS_AXIS].i,
                        call->batch);
}

static smp_status forward(const smp_op_call *call)
{
    smp__axis along = along_of(call);
    const float *x = call->in[0], *b = call->param[0];
    float *y = call->out[0];
    for (int64_t o = 0; o < along.outer;
         o++, x += along.size * along.inner, y += along.size * along.inner) {
        if (along.inner == 1)
            smp__add(y, x, b, along.size);
        for (int64_t c = 0; along.inner > 1 && c < along.size; c++)
            for (int64_t i = 0; i < along.inner; i++)
                y[c * along.inner + i] = x[c * along.inner + i] + b[c];
    }
    return SMP_OK;
}

static smp_status backward_weight(const smp_op_call *call)
{
    smp__axis along = along_of(call);
    const float *dy = call->dout[0];
    if (along.inner == 1) {
        smp__column_sums(call->dparam[0], dy, along.outer, along.size, along.size);
        return SMP_OK;
    }
    for (int64_t o = 0; o < along.outer; o++, dy += along.size * along.inner)
        for (int64_t c = 0; c < along.size; c++)
            call->dparam[0][c] += (float)smp__sum(dy + c * along.inner, along.inner);
    return SMP_OK;
}

const smp_op_kind smp__op_bias = {
    .name = "bias",
    .summary = "a learned value added to all that lies at a place of one dimension",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [4, 6]}\n"
              "ops:\n"
              "  - {op: bias, name: op, in: x, out: y}\n",
    .min_in = 1,
    .max_in = 1,
    .passes_dout = true,
    .attrs = ATTRS,
    .infer = infer,
    .needs = {[SMP_BACKEND_CUDA] = cuda_needs},
    .work = work,
    .layout = smp__layout_alike,
    .cpu = {.forward = forward, .backward_weight = backward_weight},
};
