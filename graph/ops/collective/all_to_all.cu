/* all_to_all on a GPU: packed in one pass, exchanged, put where it belongs in another. */
#include "graph/ops/collective/collective.cuh"

/* `from`, cut along one dimension of `given`, becomes `to`, joined along one of `made`. */
template <typename T>
static smp_status move(const smp_op_call *call, void *to, const smp_tensor *made, int64_t joined,
                       const void *from, const smp_tensor *given, int64_t cut)
{
    const smp_op_group *group;
    const int64_t devices = call->op->attr[SMP__ALL_TO_ALL_DEVICES].i;
    const smp__parts out = smp__parts_of(made, joined, devices, 1, call->batch);
    const smp__parts in = smp__parts_of(given, cut, devices, 1, call->batch);
    const int64_t n = smp__part_elements(in);
    const T *sent = static_cast<const T *>(from);
    T *packed = smp_rows_room<T>(call, devices, n, 0), *got = smp_rows_room<T>(call, devices, n, 1);
    SMP_TRY(smp__group_of(call, devices, &group));
    if (group->size == 1)
        return smp_copy_tensor(call, call->op->out, to, from);
    if (!smp_parts_in_order<T>(in)) {
        SMP_TRY(smp_move_parts<true>(call, packed, sent, in));
        sent = packed;
    }
    if (smp_parts_in_order<T>(out))
        return smp_exchange_rows(group, sent, static_cast<T *>(to), n);
    SMP_TRY(smp_exchange_rows(group, sent, got, n));
    return smp_move_parts<false>(call, static_cast<T *>(to), static_cast<const T *>(got), out);
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    const smp_op *op = call->op;
    return move<T>(call, call->out[0], smp__out(call->graph, op), op->attr[SMP__ALL_TO_ALL_FROM].i,
                   call->in[0], smp__in(call->graph, op, 0), op->attr[SMP__ALL_TO_ALL_TO].i);
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    const smp_op *op = call->op;
    if (!call->din[0])
        return SMP_OK;
    return move<T>(call, call->din[0], smp__in(call->graph, op, 0), op->attr[SMP__ALL_TO_ALL_TO].i,
                   call->dout[0], smp__out(call->graph, op), op->attr[SMP__ALL_TO_ALL_FROM].i);
}

SMP_CUDA_KERNELS(all_to_all) = {.forward = SMP_TYPED(forward),
                                .backward_input = SMP_TYPED(backward_input)};
