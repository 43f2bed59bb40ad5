/* Helpers of the operators: shape inference for the usual cases, memory traffic, plain copies. */
#include "graph/ops/ops.h"

#include <string.h>

#include "graph/math/math.h"

smp_status smp__infer_like_input(smp_infer *infer)
{
    SMP_TRY(smp_infer_float(infer, 0));
    infer->out_dtype = SMP_F32;
    infer->out_shape = infer->in[0]->shape;
    return SMP_OK;
}

smp_status smp__infer_alike(smp_infer *infer)
{
    SMP_TRY(smp__infer_like_input(infer));
    for (int i = 1; i < infer->n_in; i++) {
        const smp_tensor *a = infer->in[0], *b = infer->in[i];
        char first[128], other[128];
        SMP_TRY(smp_infer_float(infer, i));
        if (!smp_shape_equal(&a->shape, &b->shape))
            return smp_infer_fail(infer, "inputs '%s' %s and '%s' %s: expected the same shape",
                                  a->name, smp_shape_format(first, sizeof first, &a->shape),
                                  b->name, smp_shape_format(other, sizeof other, &b->shape));
    }
    return SMP_OK;
}

/* Bytes of the outputs that a mask names. */
static double out_bytes(const smp_graph *graph, const smp_op *op, int64_t batch, uint32_t mask)
{
    double bytes = 0;
    for (int32_t k = 0; k < op->n_out; k++)
        if (mask >> k & 1)
            bytes += (double)smp_tensor_bytes(graph, op->out + k, batch);
    return bytes;
}

void smp__work_bytes(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    smp_op_needs needs;
    smp_op_needs_get(graph, op, batch, &needs);
    double out = out_bytes(graph, op, batch, UINT32_MAX);
    double aux = (double)needs.aux_bytes * (double)batch;
    double params = 0;
    for (int32_t i = 0; i < op->n_param; i++)
        params += 4.0 * (double)graph->param[op->param[i]].elements;
    /* what kernels read of the weights; gradients are added to in fp32 */
    double read = smp_precision_is_half(graph->target.precision) ? 0.5 * params : params;
    work->forward_bytes = read + out + (needs.aux_of_backward ? 0 : aux);
    work->backward_input_bytes = 0;
    work->backward_weight_bytes = out + 2 * params + (needs.weight_grad_aux ? aux : 0);

    double input_grads = 0;
    for (int32_t i = 0; i < op->n_in; i++) {
        double bytes = (double)smp_tensor_bytes(graph, op->in[i], batch);
        work->forward_bytes += bytes;
        if (smp__in(graph, op, i)->dtype != SMP_I32)
            input_grads += bytes;
        if (i < 32 && (needs.input_grad_in >> i & 1))
            work->backward_input_bytes += bytes;
        if (i < 32 && (needs.weight_grad_in >> i & 1))
            work->backward_weight_bytes += bytes;
    }
    if (input_grads == 0 || smp_op_passes_dout(graph, op))
        work->backward_input_bytes = 0;
    else
        work->backward_input_bytes += input_grads + out + read +
                                      out_bytes(graph, op, batch, needs.input_grad_out) +
                                      (needs.input_grad_aux || needs.aux_of_backward ? aux : 0);
    if (op->n_param == 0)
        work->backward_weight_bytes = 0;
}

void smp__work_elementwise(const smp_graph *graph, const smp_op *op, int64_t batch, double forward,
                           double backward, smp_op_work *work)
{
    const smp_tensor *out = smp__out(graph, op);
    double n = (double)smp__count(out->batched ? out : smp__in(graph, op, 0), batch);
    smp__work_bytes(graph, op, batch, work);
    work->forward_flops = forward * n;
    work->backward_input_flops = backward * n;
}

int64_t smp__column_sum_bytes(int64_t rows, int64_t columns)
{
    const int64_t chunks = 512 / ((columns + 255) / 256), most = (rows + 31) / 32;
    return (chunks < 1 ? 1 : chunks < most ? chunks : most) * columns * (int64_t)sizeof(float);
}

void smp__work_copy(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    smp__work_elementwise(graph, op, batch, 0, 0, work);
}

void smp__needs_input(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    (void)graph, (void)op, (void)batch;
    *needs = (smp_op_needs){.input_grad_in = 1};
}

void smp__needs_output(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    (void)graph, (void)op, (void)batch;
    *needs = (smp_op_needs){.input_grad_out = true};
}

void smp__needs_pair(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    (void)graph, (void)op, (void)batch;
    *needs = (smp_op_needs){.input_grad_in = 3};
}

smp_image_layout smp__layout_alike(const smp_graph *graph, const smp_op *op)
{
    (void)graph, (void)op;
    return SMP_LAYOUT_ALIKE;
}

static bool has_orders(const smp_tensor *t)
{
    return t->shape.n_dim == 3 && t->shape.dim[0] != 1 && t->elements != t->shape.dim[0];
}

smp_image_layout smp__layout_copied(const smp_graph *graph, const smp_op *op)
{
    return has_orders(smp__in(graph, op, 0)) || has_orders(smp__out(graph, op)) ? SMP_LAYOUT_PLAIN
                                                                                : SMP_LAYOUT_EACH;
}

void smp__release_primitive(void *state)
{
    smp_math_primitive_destroy(state);
}

smp_status smp__copy_forward(const smp_op_call *call)
{
    const smp_tensor *in = smp__in(call->graph, call->op, 0);
    memcpy(call->out[0], call->in[0], (size_t)smp__count(in, call->batch) * 4);
    return SMP_OK;
}

bool smp__split_allows_row(const smp_graph *graph, const smp_op *op, smp_split_choice choice,
                           int devices)
{
    (void)devices;
    return choice.dim < smp__in(graph, op, 0)->shape.n_dim - 1;
}

const smp_split_rule smp__split_elementwise[] = {
    {"elements", .in = {SMP_CELL_ANY, SMP_CELL_ANY, SMP_CELL_ANY, SMP_CELL_ANY},
     .out = SMP_CELL_ANY},
    {0},
};

const smp_split_rule smp__split_rows[] = {
    {"positions", .in = {SMP_CELL_ANY}, .out = SMP_CELL_ANY,
     .param = {SMP_CELL_SHARED, SMP_CELL_SHARED}, .allows = smp__split_allows_row},
    {0},
};
