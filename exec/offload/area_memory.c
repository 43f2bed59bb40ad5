/* Memory of the host beside the arena: anonymous, all of it touched when it is opened. */
#include <stdlib.h>
#include <string.h>

#include "exec/offload/offload_area.h"

typedef struct far_memory {
    const smp_device *device;
    void *device_context;
    char *base;
} far_memory;

static bool memory_suits(const smp_offload_area_options *options)
{
    return options->device->host_memory && !options->folder;
}

static bool pinned_suits(const smp_offload_area_options *options)
{
    return !options->device->host_memory && !options->folder;
}

static void memory_close(void *context)
{
    far_memory *m = context;
    if (m->base)
        m->device->release_host(m->device_context, m->base);
    free(m);
}

static smp_status memory_open(const smp_offload_area_options *options, void **context)
{
    far_memory *m = calloc(1, sizeof *m);
    if (!m)
        return smp_fail_memory(sizeof *m);
    *m = (far_memory){.device = options->device, .device_context = options->device_context};
    *context = m;
    return smp_fail_context(m->device->reserve_host(m->device_context, options->bytes, &m->base),
                            "memory of the host for offload");
}

static smp_status memory_base(void *context, char **base)
{
    *base = ((const far_memory *)context)->base;
    return SMP_OK;
}

static smp_status memory_move(void *context, smp_copy_direction way, void *values, int64_t at,
                              int64_t bytes)
{
    char *place = ((const far_memory *)context)->base + at;
    if (way == SMP_COPY_TO_HOST)
        memcpy(place, values, (size_t)bytes);
    else
        memcpy(values, place, (size_t)bytes);
    return SMP_OK;
}

const smp_offload_area_kind smp__area_memory = {
    .name = "memory",
    .suits = memory_suits,
    .open = memory_open,
    .close = memory_close,
    .base = memory_base,
    .move = memory_move,
};

/* The same, from which a GPU copies at full speed, by itself. */
const smp_offload_area_kind smp__area_pinned = {
    .name = "pinned",
    .suits = pinned_suits,
    .open = memory_open,
    .close = memory_close,
    .base = memory_base,
};
