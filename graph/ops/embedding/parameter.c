/* parameter: a learned tensor, the same for every sample: a class token, a prompt, learned queries.
 *
 * No inputs. The output of a sample is a copy of the weight; its gradient is the sum of dout over
 * the samples, in order. O(B * elements). */
#include "graph/ops/ops.h"

#include <string.h>

#include "graph/math/vector.h"

enum { SHAPE, INIT_STD };

static const smp_attr_desc ATTRS[] = {
    [SHAPE] = {"shape", SMP_ATTR_INT_LIST, true, 0, 1, 0x1p40, NULL},
    [INIT_STD] = {"init_std", SMP_ATTR_FLOAT, false, 0.02, 0, 1e6, NULL},
    {0},
};

static smp_status infer(smp_infer *infer)
{
    int64_t count = infer->attr[SHAPE].list.count;
    smp_shape shape = {.n_dim = (int)count};
    if (count < 1 || count > SMP_MAX_DIMS)
        return smp_infer_fail(infer, "shape: got %lld dimensions, expected 1 to %d",
                              (long long)count, SMP_MAX_DIMS);
    for (int i = 0; i < shape.n_dim; i++)
        shape.dim[i] = infer->attr[SHAPE].list.items[i];
    if (smp_shape_elements(&shape) < 0)
        return smp_infer_fail(infer, "shape: more than 2^40 elements");
    infer->out_dtype = SMP_F32;
    infer->out_shape = shape;
    infer->n_param = 1;
    infer->param[0] = (smp_param_decl){
        .role = "weight",
        .shape = shape,
        .init = SMP_INIT_NORMAL,
        .init_scale = (float)infer->attr[INIT_STD].f,
    };
    return SMP_OK;
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    smp__work_bytes(graph, op, batch, work);
    work->backward_weight_flops = (double)smp__count(smp__out(graph, op), batch);
}

static smp_status forward(const smp_op_call *call)
{
    float *out = call->out[0]; /* (B, elements) */
    int64_t n = smp__out(call->graph, call->op)->elements;
    for (int64_t b = 0; b < call->batch; b++)
        memcpy(out + b * n, call->param[0], (size_t)n * sizeof *out);
    return SMP_OK;
}

static smp_status backward_weight(const smp_op_call *call)
{
    int64_t n = smp__out(call->graph, call->op)->elements;
    smp__column_sums(call->dparam[0], call->dout[0], call->batch, n, n);
    return SMP_OK;
}

const smp_op_kind smp__op_parameter = {
    .name = "parameter",
    .summary = "a learned tensor, the same for every sample",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [4, 6]}\n"
              "ops:\n"
              "  - {op: parameter, name: op, out: y, shape: [1, 6]}\n",
    .min_in = 0,
    .max_in = 0,
    .attrs = ATTRS,
    .infer = infer,
    .work = work,
    .cpu = {.forward = forward, .backward_weight = backward_weight},
};
