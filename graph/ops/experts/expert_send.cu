/* expert_send on a GPU: rows of tokens to the places of their experts; backward brings the
 * gradients of the places back, and every token adds up those of its choices, in their order. */
#include "graph/ops/experts/expert_exchange.cuh"

template <typename T> static smp_status forward(const smp_op_call *call)
{
    smp_expert_call<T> c = {};
    SMP_TRY(smp_experts_begin(call, false, false, false, true, &c));
    return smp_experts_send<T>(c, static_cast<const T *>(call->in[SMP__ROUTED]), NULL,
                               static_cast<T *>(call->out[0]));
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    const smp_tensor *logits = smp__in(call->graph, call->op, SMP__ROUTER);
    smp_expert_call<T> c = {};
    if (call->din[SMP__ROUTER])
        SMP_TRY(SMP_CUDA(cudaMemsetAsync, call->din[SMP__ROUTER], 0,
                         (size_t)smp__count(logits, call->batch) * sizeof(T),
                         smp_cuda_of(call)->stream));
    if (!call->din[SMP__ROUTED])
        return SMP_OK;
    SMP_TRY(smp_experts_begin(call, false, true, false, false, &c));
    SMP_TRY(smp_experts_return<T>(c, const_cast<T *>(reinterpret_cast<const T *>(call->dout[0]))));
    return smp_choices_sum(call, static_cast<const T *>(c.x.rows), smp_rows_kept{c.x}, c.x.r, NULL,
                           c.x.d, reinterpret_cast<T *>(call->din[SMP__ROUTED]));
}

SMP_CUDA_KERNELS(expert_send) = {
    .prepare = smp_experts_prepare,
    .forward = SMP_TYPED(forward),
    .backward_input = SMP_TYPED(backward_input),
};
