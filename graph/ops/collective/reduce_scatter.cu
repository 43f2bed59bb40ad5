/* reduce_scatter on a GPU: the parts for all devices are packed in one pass and exchanged, and what
 * has come is added up. */
#include "graph/ops/collective/collective.cuh"

enum { DEVICES, AXIS, BLOCKS, SUM }; /* attributes, as in reduce_scatter.c */

static smp__parts parts_of(const smp_op_call *call)
{
    const smp_attr_value *attr = call->op->attr;
    return smp__parts_of(smp__in(call->graph, call->op, 0), attr[AXIS].i, attr[DEVICES].i,
                         attr[BLOCKS].i, call->batch);
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    const smp_op_group *group;
    const smp__parts parts = parts_of(call);
    T *out = static_cast<T *>(call->out);
    const T *in = static_cast<const T *>(call->in[0]);
    SMP_TRY(smp__group_of(call, parts.devices, &group));
    if (group->size == 1)
        return smp_copy_forward(call);
    if (call->op->attr[SUM].i)
        return smp_scatter_sum(call, group, out, in, parts);
    return smp_take_part(call, out, in, parts, group->index);
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    const smp_op_group *group;
    const smp__parts parts = parts_of(call);
    SMP_TRY(smp__group_of(call, parts.devices, &group));
    if (!call->din[0] || group->size == 1)
        return smp_copy_backward(call);
    return smp_gather_parts(call, group, reinterpret_cast<T *>(call->din[0]),
                            reinterpret_cast<const T *>(call->dout), parts);
}

SMP_CUDA_KERNELS(reduce_scatter) = {NULL,
                                    NULL,
                                    SMP_TYPED(forward),
                                    SMP_TYPED(backward_input),
                                    NULL,
                                    NULL,
                                    smp_begin_beside<SMP_TYPED(backward_input)>,
                                    smp_end_beside};
