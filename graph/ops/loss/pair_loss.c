/* Losses that are a mean over the elements of two tensors of one shape (graph/ops/loss/loss.h). */
#include "graph/ops/loss/loss.h"

smp_status smp__infer_pair_loss(smp_infer *infer)
{
    SMP_TRY(smp__infer_alike(infer));
    infer->out_shape = (smp_shape){0};
    infer->out_batched = false;
    return SMP_OK;
}

/* Parts of the elements are added in the workspace, a double each. */
void smp__cuda_needs_pair_loss(const smp_graph *graph, const smp_op *op, int64_t batch,
                               smp_op_needs *needs)
{
    const int64_t parts = (smp__count(smp__in(graph, op, 0), batch) + 8191) / 8192;
    smp__needs_pair(graph, op, batch, needs);
    needs->workspace_bytes = (parts < 1024 ? parts : 1024) * (int64_t)sizeof(double);
}
