/* expert_return on a GPU: what the experts made comes back to its tokens and is kept, choice by
 * choice; backward sends the gradients of the tokens, times their gates, to the places. */
#include "graph/ops/experts/expert_exchange.cuh"

template <typename T> static smp_status forward(const smp_op_call *call)
{
    smp_expert_call<T> c = {};
    SMP_TRY(smp_experts_begin(call, true, true, true, true, &c));
    SMP_TRY(smp_experts_return<T>(c, static_cast<T *>(const_cast<void *>(call->in[SMP__ROUTED]))));
    return smp_choices_sum(call, static_cast<const T *>(c.x.rows), smp_rows_kept{c.x}, c.x.r,
                           c.x.route.gate, c.x.d, static_cast<T *>(call->out[0]));
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    const T *dout = reinterpret_cast<const T *>(call->dout[0]);
    smp_expert_call<T> c = {};
    if (!call->din[SMP__ROUTED] && !call->din[SMP__ROUTER])
        return SMP_OK;
    SMP_TRY(smp_experts_begin(call, true, true, true, false, &c));
    if (call->din[SMP__ROUTER])
        SMP_TRY(smp_gates_gradient(call, static_cast<const T *>(c.x.rows), smp_rows_kept{c.x},
                                   c.x.r, c.x.route, c.x.d));
    return call->din[SMP__ROUTED]
               ? smp_experts_send<T>(c, dout, c.x.route.gate,
                                     reinterpret_cast<T *>(call->din[SMP__ROUTED]))
               : smp_experts_have_most(&c);
}

SMP_CUDA_KERNELS(expert_return) = {
    .prepare = smp_experts_prepare,
    .forward = SMP_TYPED(forward),
    .backward_input = SMP_TYPED(backward_input),
};
