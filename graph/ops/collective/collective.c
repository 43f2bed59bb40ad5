/* Parts of tensors taken, put and checked; the group of one device; calls in halves. */
#include "graph/ops/collective/collective.h"

#include <string.h>

smp_status smp__infer_parts(smp_infer *infer, int64_t axis, int64_t devices, int64_t blocks,
                            bool whole)
{
    SMP_TRY(smp__infer_like_input(infer));
    const smp_tensor *in = infer->in[0];
    if (axis >= in->shape.n_dim)
        return smp_infer_fail(infer, "axis: got %lld, expected a dimension of '%s'",
                              (long long)axis, in->name);
    int64_t parts = whole ? blocks * devices : blocks;
    if (in->shape.dim[axis] % parts != 0)
        return smp_infer_fail(infer, "dimension %lld of '%s' is %lld, expected a multiple of %lld",
                              (long long)axis, in->name, (long long)in->shape.dim[axis],
                              (long long)parts);
    return SMP_OK;
}

smp__parts smp__parts_of(const smp_tensor *whole, int64_t axis, int64_t devices, int64_t blocks,
                         int64_t batch)
{
    smp__axis along = smp__axis_of(whole, axis, batch);
    return (smp__parts){along.outer, blocks, devices,
                        along.size / (blocks * devices) * along.inner};
}

int64_t smp__part_elements(smp__parts parts)
{
    return parts.outer * parts.blocks * parts.run;
}

void smp__take_part(float *part, const float *whole, smp__parts parts, int64_t device)
{
    for (int64_t i = 0; i < parts.outer * parts.blocks; i++)
        memcpy(part + i * parts.run, whole + smp__run_of(parts, i, device) * parts.run,
               (size_t)parts.run * sizeof(float));
}

void smp__put_part(float *whole, const float *part, smp__parts parts, int64_t device)
{
    for (int64_t i = 0; i < parts.outer * parts.blocks; i++)
        memcpy(whole + smp__run_of(parts, i, device) * parts.run, part + i * parts.run,
               (size_t)parts.run * sizeof(float));
}

void smp__take_parts(float *all, const float *whole, smp__parts parts)
{
    for (int64_t d = 0; d < parts.devices; d++)
        smp__take_part(all + d * smp__part_elements(parts), whole, parts, d);
}

void smp__put_parts(float *whole, const float *all, smp__parts parts)
{
    for (int64_t d = 0; d < parts.devices; d++)
        smp__put_part(whole, all + d * smp__part_elements(parts), parts, d);
}

int64_t smp__float_bytes(const smp_tensor *tensor, int64_t batch)
{
    return smp__count(tensor, batch) * (int64_t)sizeof(float);
}

int64_t smp__row_floats(smp_dtype dtype, int64_t n)
{
    const int64_t bytes = n * smp_dtype_bytes(dtype), each = (int64_t)sizeof(float);
    return (bytes + each - 1) / each;
}

int64_t smp__wire_floats(const smp_graph *graph, const smp_tensor *tensor, int64_t n)
{
    return smp_backend_of(graph->target)->sends_halves ? smp__row_floats(tensor->dtype, n) : n;
}

int64_t smp__rows_bytes(smp_dtype dtype, int64_t devices, int64_t n)
{
    const int64_t bytes = devices * smp__row_floats(dtype, n) * (int64_t)sizeof(float);
    return (bytes + 63) / 64 * 64;
}

int64_t smp__parts_room_bytes(const smp_tensor *whole, int64_t devices, int64_t batch)
{
    const int64_t n = (smp__count(whole, batch) + devices - 1) / devices;
    return devices > 1 ? 2 * smp__rows_bytes(whole->dtype, devices, n) : 0;
}

static smp_status alone_in_place(void *context, float *values, int64_t n)
{
    (void)context, (void)values, (void)n;
    return SMP_OK;
}

static smp_status alone(void *context, const float *from, float *to, int64_t n)
{
    (void)context;
    memcpy(to, from, (size_t)n * sizeof(float));
    return SMP_OK;
}

static smp_status alone_shift(void *context, const float *own, float *got, int64_t n, int32_t by)
{
    (void)by;
    return alone(context, own, got, n);
}

static smp_status alone_shifted(void *context)
{
    (void)context;
    return SMP_OK;
}

smp_status smp__group_of(const smp_op_call *call, int64_t devices, const smp_op_group **out)
{
    static const smp_op_group one = {.size = 1,
                                     .all_reduce = alone_in_place,
                                     .all_gather = alone,
                                     .reduce_scatter = alone,
                                     .all_to_all = alone,
                                     .shift = alone_shift,
                                     .shifted = alone_shifted};
    *out = call->group && devices > 1 ? call->group : &one;
    if ((*out)->size != devices)
        return smp_fail(SMP_ERR_INPUT, "op '%s' (%s): for %lld devices, there are %d",
                        call->op->name, call->op->kind->name, (long long)devices,
                        (int)(*out)->size);
    return SMP_OK;
}

smp_status smp__group_begin(const smp_op_group *group, smp_group_call call, const float *from,
                            float *to, int64_t n)
{
    if (group->begin)
        return group->begin(group->context, call, from, to, n);
    switch (call) {
    case SMP_GROUP_ALL_REDUCE:
        return group->all_reduce(group->context, to, n);
    case SMP_GROUP_ALL_GATHER:
        return group->all_gather(group->context, from, to, n);
    case SMP_GROUP_REDUCE_SCATTER:
        return group->reduce_scatter(group->context, from, to, n);
    case SMP_GROUP_ALL_TO_ALL:
        break;
    }
    return group->all_to_all(group->context, from, to, n);
}

smp_status smp__group_finish(const smp_op_group *group)
{
    return group->finish ? group->finish(group->context) : SMP_OK;
}
