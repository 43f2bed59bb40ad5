/* all_reduce on a GPU: every device adds up its share of the tensor, as each has it, and all gather
 * the sums: 2 (T - 1) / T of the tensor over the links, as a ring, and one order of summation. A
 * tensor that T shares do not divide is filled up with zeroes on the way. */
#include "graph/ops/collective/collective.cuh"

template <typename T>
static smp_status sum(const smp_op_call *call, const smp_op_group *group, T *to, const T *from,
                      int64_t n)
{
    const int64_t devices = group->size;
    const int64_t share = smp_row_stride_of<T>((n + devices - 1) / devices);
    const int64_t whole = share * devices;
    T *sent = smp_rows_room<T>(call, devices, share, 0);
    T *came = smp_rows_room<T>(call, devices, share, 1);
    T *own = smp_rows_room<T>(call, devices, share, 2);
    if (whole != n) {
        SMP_TRY(smp_copy_values(call, sent, from, n));
        SMP_TRY(SMP_CUDA(cudaMemsetAsync, sent + n, 0, (size_t)(whole - n) * sizeof(T),
                         smp_cuda_of(call)->stream));
        from = sent;
    }
    SMP_TRY(smp_exchange_rows(group, from, came, share));
    SMP_TRY(smp_add_rows(call, own, static_cast<const T *>(came), share, devices));
    if (whole == n)
        return smp_gather_rows(group, static_cast<const T *>(own), to, share);
    SMP_TRY(smp_gather_rows(group, static_cast<const T *>(own), came, share));
    return smp_copy_values(call, to, static_cast<const T *>(came), n);
}

template <typename T>
static smp_status pass(const smp_op_call *call, void *to, const void *from, bool sums)
{
    const smp_op_group *group;
    const int64_t n = smp__count(smp__out(call->graph, call->op), call->batch);
    SMP_TRY(smp__group_of(call, call->op->attr[SMP__ALL_REDUCE_DEVICES].i, &group));
    if (!sums || group->size == 1)
        return smp_copy_tensor(call, call->op->out, to, from);
    return sum(call, group, static_cast<T *>(to), static_cast<const T *>(from), n);
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    return pass<T>(call, call->out[0], call->in[0], call->op->attr[SMP__ALL_REDUCE_VALUE].i);
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    if (!call->din[0])
        return SMP_OK;
    return pass<T>(call, call->din[0], call->dout[0], call->op->attr[SMP__ALL_REDUCE_GRADIENT].i);
}

SMP_CUDA_KERNELS(all_reduce) = {
    .forward = SMP_TYPED(forward),
    .backward_input = SMP_TYPED(backward_input),
    .backward_input_begin = smp_begin_beside<SMP_TYPED(backward_input)>,
    .backward_input_end = smp_end_beside,
};
