/* all_gather and reduce_scatter on a GPU. A gather puts the parts where they belong in one pass. A
 * scatter that adds up packs the parts for all devices in one pass and exchanges them, and what has
 * come is added up. */
#include "graph/ops/collective/collective.cuh"

static smp__parts parts_of(const smp_op_call *call, const smp_tensor *whole)
{
    const smp_attr_value *attr = call->op->attr;
    return smp__parts_of(whole, attr[SMP__GATHER_AXIS].i, attr[SMP__GATHER_DEVICES].i,
                         attr[SMP__GATHER_BLOCKS].i, call->batch);
}

template <typename T>
static smp_status scatter(const smp_op_call *call, const smp_op_group *group, smp__parts parts,
                          T *part, const T *whole)
{
    if (call->op->attr[SMP__GATHER_SUMS].i)
        return smp_scatter_sum(call, group, part, whole, parts);
    return smp_take_part(call, part, whole, parts, group->index);
}

template <typename T> static smp_status gather_forward(const smp_op_call *call)
{
    const smp_op_group *group;
    const smp__parts parts = parts_of(call, smp__out(call->graph, call->op));
    SMP_TRY(smp__group_of(call, parts.devices, &group));
    if (group->size == 1)
        return smp_copy_forward(call);
    return smp_gather_parts(call, group, static_cast<T *>(call->out[0]),
                            static_cast<const T *>(call->in[0]), parts);
}

template <typename T> static smp_status gather_backward_input(const smp_op_call *call)
{
    const smp_op_group *group;
    const smp__parts parts = parts_of(call, smp__out(call->graph, call->op));
    SMP_TRY(smp__group_of(call, parts.devices, &group));
    if (!call->din[0] || group->size == 1)
        return smp_copy_backward(call);
    return scatter(call, group, parts, reinterpret_cast<T *>(call->din[0]),
                   reinterpret_cast<const T *>(call->dout[0]));
}

template <typename T> static smp_status scatter_forward(const smp_op_call *call)
{
    const smp_op_group *group;
    const smp__parts parts = parts_of(call, smp__in(call->graph, call->op, 0));
    SMP_TRY(smp__group_of(call, parts.devices, &group));
    if (group->size == 1)
        return smp_copy_forward(call);
    return scatter(call, group, parts, static_cast<T *>(call->out[0]),
                   static_cast<const T *>(call->in[0]));
}

template <typename T> static smp_status scatter_backward_input(const smp_op_call *call)
{
    const smp_op_group *group;
    const smp__parts parts = parts_of(call, smp__in(call->graph, call->op, 0));
    SMP_TRY(smp__group_of(call, parts.devices, &group));
    if (!call->din[0] || group->size == 1)
        return smp_copy_backward(call);
    return smp_gather_parts(call, group, reinterpret_cast<T *>(call->din[0]),
                            reinterpret_cast<const T *>(call->dout[0]), parts);
}

SMP_CUDA_KERNELS(all_gather) = {
    .forward = SMP_TYPED(gather_forward),
    .backward_input = SMP_TYPED(gather_backward_input),
    .backward_input_begin = smp_begin_beside<SMP_TYPED(gather_backward_input)>,
    .backward_input_end = smp_end_beside,
};
SMP_CUDA_KERNELS(reduce_scatter) = {
    .forward = SMP_TYPED(scatter_forward),
    .backward_input = SMP_TYPED(scatter_backward_input),
    .backward_input_begin = smp_begin_beside<SMP_TYPED(scatter_backward_input)>,
    .backward_input_end = smp_end_beside,
};
