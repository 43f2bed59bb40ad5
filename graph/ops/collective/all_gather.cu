/* all_gather on a GPU: the parts are gathered, then put where they belong in one pass. */
#include "graph/ops/collective/collective.cuh"

enum { DEVICES, AXIS, BLOCKS, SUMMANDS }; /* attributes, as in all_gather.c */

static smp__parts parts_of(const smp_op_call *call)
{
    const smp_attr_value *attr = call->op->attr;
    return smp__parts_of(smp__out(call->graph, call->op), attr[AXIS].i, attr[DEVICES].i,
                         attr[BLOCKS].i, call->batch);
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    const smp_op_group *group;
    const smp__parts parts = parts_of(call);
    SMP_TRY(smp__group_of(call, parts.devices, &group));
    if (group->size == 1)
        return smp_copy_forward(call);
    return smp_gather_parts(call, group, static_cast<T *>(call->out),
                            static_cast<const T *>(call->in[0]), parts);
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    const smp_op_group *group;
    const smp__parts parts = parts_of(call);
    T *din = reinterpret_cast<T *>(call->din[0]);
    const T *dout = reinterpret_cast<const T *>(call->dout);
    SMP_TRY(smp__group_of(call, parts.devices, &group));
    if (!din || group->size == 1)
        return smp_copy_backward(call);
    if (call->op->attr[SUMMANDS].i)
        return smp_scatter_sum(call, group, din, dout, parts);
    return smp_take_part(call, din, dout, parts, group->index);
}

SMP_CUDA_KERNELS(all_gather) = {NULL,
                                NULL,
                                SMP_TYPED(forward),
                                SMP_TYPED(backward_input),
                                NULL,
                                NULL,
                                smp_begin_beside<SMP_TYPED(backward_input)>,
                                smp_end_beside};
