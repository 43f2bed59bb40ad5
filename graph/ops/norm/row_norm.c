/* Rows normalised and weighed: weights, memory (graph/ops/norm/norm.h). */
#include "graph/ops/norm/norm.h"

smp_status smp__infer_row_norm(smp_infer *infer, bool has_bias)
{
    SMP_TRY(smp_infer_dims(infer, 0, 1, SMP_MAX_DIMS));
    SMP_TRY(smp__infer_like_input(infer));
    smp_shape shape = {1, {smp__columns(infer->in[0])}};
    infer->n_param = has_bias ? 2 : 1;
    infer->param[0] = (smp_param_decl){.role = "weight", .shape = shape, .init = SMP_INIT_ONE};
    if (has_bias)
        infer->param[1] = (smp_param_decl){.role = "bias", .shape = shape, .init = SMP_INIT_ZERO};
    return SMP_OK;
}

/* Into how many parts a GPU divides the rows of a micro-batch, where weight gradients are sums over
 * rows of that many columns (cuda_norm.cuh): enough to fill a large device with blocks that hold
 * whole rows; none so short that writing and reading the sums costs more than an eighth of what not
 * reading the rows again saves. */
static int64_t weight_parts(const smp_tensor *in, int64_t batch)
{
    const int64_t rows = smp__count(in, batch) / smp__columns(in);
    const int64_t wanted = 512, most = (rows + 31) / 32;
    return wanted < most ? wanted : most;
}

int64_t smp__norm_rows(const smp_op_call *call)
{
    const smp_tensor *in = smp__in(call->graph, call->op, 0);
    return smp__count(in, call->batch) / smp__columns(in);
}

void smp__needs_norm(const smp_graph *graph, const smp_op *op, int statistics, smp_op_needs *needs)
{
    const smp_tensor *in = smp__in(graph, op, 0);
    *needs = (smp_op_needs){
        .input_grad_in = 1,
        .weight_grad_in = 1,
        .input_grad_aux = true,
        .weight_grad_aux = true,
        .aux_bytes = in->elements / smp__columns(in) * statistics * (int64_t)sizeof(float),
    };
}

void smp__cuda_needs_norm(const smp_graph *graph, const smp_op *op, int64_t batch, int statistics,
                          smp_op_needs *needs)
{
    const smp_tensor *in = smp__in(graph, op, 0);
    smp__needs_norm(graph, op, statistics, needs);
    needs->input_grad_adds = true;
    needs->workspace_bytes =
        weight_parts(in, batch) * op->n_param * smp__columns(in) * (int64_t)sizeof(float);
}
