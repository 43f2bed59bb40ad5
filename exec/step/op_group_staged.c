/* The same for a device with memory of its own, where no transport has a group: arrays go through
 * pinned host memory, and what host memory has adds them up. The host waits for the device before
 * every exchange, with the watchdog; what is copied back is ordered by the compute stream, and is
 * overwritten after the next such wait at the earliest. */
#include "exec/step/op_group.h"

#include <stdio.h>

static void describe(const void *context, char *buffer, size_t size)
{
    const smp__op_group *g = context;
    snprintf(buffer, size, "the device, which is to exchange values with %d others",
             g->group.size - 1);
}

static smp_status test(void *context, bool *done)
{
    smp__op_group *g = context;
    SMP_TRY(g->device->idle(g->device_context, done));
    return *done || !g->progress ? SMP_OK : g->progress(g->progress_context);
}

/* n values of the device to g->down; so many are to come. */
static smp_status bring(smp__op_group *g, const float *from, int64_t n, int64_t come)
{
    const int64_t most = g->most + g->group.size;
    if (n > most || come > most)
        return smp_fail(SMP_ERR_FAILED, "%lld values for the devices, %lld back, expected %lld",
                        (long long)n, (long long)come, (long long)most);
    SMP_TRY(g->device->download(g->device_context, g->down, from, n * (int64_t)sizeof(float)));
    return smp__comm_wait_until(g->comm, &(smp_wait){0}, test, describe, g);
}

static smp_status take(smp__op_group *g, float *to, const char *from, int64_t n)
{
    return g->device->upload(g->device_context, to, from, n * (int64_t)sizeof(float));
}

static smp_status all_reduce(void *context, float *values, int64_t n)
{
    smp__op_group *g = context;
    SMP_TRY(bring(g, values, n, n));
    SMP_TRY(g->host.all_reduce(g, (float *)g->down, n));
    return take(g, values, g->down, n);
}

static smp_status all_gather(void *context, const float *own, float *all, int64_t n)
{
    smp__op_group *g = context;
    SMP_TRY(bring(g, own, n, n * g->group.size));
    SMP_TRY(g->host.all_gather(g, (float *)g->down, (float *)g->up, n));
    return take(g, all, g->up, n * g->group.size);
}

static smp_status reduce_scatter(void *context, const float *all, float *own, int64_t n)
{
    smp__op_group *g = context;
    SMP_TRY(bring(g, all, n * g->group.size, n));
    SMP_TRY(g->host.reduce_scatter(g, (float *)g->down, (float *)g->up, n));
    return take(g, own, g->up, n);
}

static smp_status all_to_all(void *context, const float *all, float *got, int64_t n)
{
    smp__op_group *g = context;
    SMP_TRY(bring(g, all, n * g->group.size, n * g->group.size));
    SMP_TRY(g->host.all_to_all(g, (float *)g->down, (float *)g->up, n));
    return take(g, got, g->up, n * g->group.size);
}

static smp_status shift(void *context, const float *own, float *got, int64_t n, int32_t by)
{
    smp__op_group *g = context;
    g->coming = got;
    g->n_coming = n;
    SMP_TRY(bring(g, own, n, n));
    return g->host.shift(g, (float *)g->down, (float *)g->up, n, by);
}

static smp_status shifted(void *context)
{
    smp__op_group *g = context;
    SMP_TRY(g->host.shifted(g));
    return take(g, g->coming, g->up, g->n_coming);
}

smp_status smp__op_group_stage(smp__op_group *g, const smp_device *device, void *device_context)
{
    const int64_t bytes = (g->most + g->group.size) * (int64_t)sizeof(float);
    g->host = g->group;
    g->group.all_reduce = all_reduce;
    g->group.all_gather = all_gather;
    g->group.reduce_scatter = reduce_scatter;
    g->group.all_to_all = all_to_all;
    g->group.shift = shift;
    g->group.shifted = shifted;
    g->device = device;
    g->device_context = device_context;
    SMP_TRY(device->reserve_host(device_context, bytes, &g->down));
    return device->reserve_host(device_context, bytes, &g->up);
}
