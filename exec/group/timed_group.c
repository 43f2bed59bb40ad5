/* See the header. */
#include "exec/group/timed_group.h"

static smp_status end_wait(const smp__timed_group *t, smp_status status)
{
    SMP_TRY(status);
    return t->note(t->context, true);
}

static smp_status all_reduce(void *context, float *values, int64_t n)
{
    const smp__timed_group *t = context;
    SMP_TRY(t->note(t->context, false));
    return end_wait(t, t->of.all_reduce(t->of.context, values, n));
}

static smp_status all_gather(void *context, const float *own, float *all, int64_t n)
{
    const smp__timed_group *t = context;
    SMP_TRY(t->note(t->context, false));
    return end_wait(t, t->of.all_gather(t->of.context, own, all, n));
}

static smp_status reduce_scatter(void *context, const float *all, float *own, int64_t n)
{
    const smp__timed_group *t = context;
    SMP_TRY(t->note(t->context, false));
    return end_wait(t, t->of.reduce_scatter(t->of.context, all, own, n));
}

static smp_status all_to_all(void *context, const float *all, float *got, int64_t n)
{
    const smp__timed_group *t = context;
    SMP_TRY(t->note(t->context, false));
    return end_wait(t, t->of.all_to_all(t->of.context, all, got, n));
}

/* What is begun is beside the compute. */
static smp_status shift(void *context, const float *own, float *got, int64_t n, int32_t by)
{
    const smp__timed_group *t = context;
    return t->of.shift(t->of.context, own, got, n, by);
}

static smp_status shifted(void *context)
{
    const smp__timed_group *t = context;
    SMP_TRY(t->note(t->context, false));
    return end_wait(t, t->of.shifted(t->of.context));
}

static smp_status finish(void *context)
{
    const smp__timed_group *t = context;
    SMP_TRY(t->note(t->context, false));
    return end_wait(t, t->of.finish(t->of.context));
}

static smp_status beside(void *context, const smp_op_group **group, void **device)
{
    const smp__timed_group *t = context;
    return t->of.beside(t->of.context, group, device);
}

static smp_status read(void *context, const void *from, int64_t bytes)
{
    const smp__timed_group *t = context;
    return t->of.read(t->of.context, from, bytes);
}

static smp_status have_read(void *context, void *host, int64_t bytes)
{
    const smp__timed_group *t = context;
    return t->of.have_read(t->of.context, host, bytes);
}

void smp__group_time(smp_op_group *group, smp__group_note note, void *context,
                     smp__timed_group *timed)
{
    *timed = (smp__timed_group){.of = *group, .note = note, .context = context};
    *group = (smp_op_group){.size = timed->of.size,
                            .index = timed->of.index,
                            .context = timed,
                            .all_reduce = all_reduce,
                            .all_gather = all_gather,
                            .reduce_scatter = reduce_scatter,
                            .all_to_all = all_to_all,
                            .shift = shift,
                            .shifted = shifted,
                            .finish = timed->of.finish ? finish : NULL,
                            .beside = timed->of.beside ? beside : NULL,
                            .read = read,
                            .have_read = have_read};
}
