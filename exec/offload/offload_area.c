/* The kinds of host areas, and links to them that are slower than the machine. */
#include "exec/offload/offload_area.h"

#include <math.h>
#include <stdlib.h>

#include "exec/offload/copy_threads.h"
#include "graph/base/clock.h"

/* far_<name>.c defines smp__far_<name>. The first that suits is taken. */
#define KINDS(X)                                                                                   \
    X(pinned)                                                                                      \
    X(file)                                                                                        \
    X(memory)

#define DECLARE(name) extern const smp_offload_area_kind smp__area_##name;
KINDS(DECLARE)
#define ENTRY(name) &smp__area_##name,
static const smp_offload_area_kind *const kinds[] = {KINDS(ENTRY) NULL};

/* What a link of `bytes_per_s` would have of a copy. */
typedef struct late_copy {
    double begin_s, due_s;
} late_copy;

struct smp_offload_area {
    const smp_offload_area_kind *kind;
    void *context;
    const smp_device *device;
    void *device_context;
    char *base;                 /* of what the device copies by itself */
    smp__copy_threads *threads; /* NULL: it does */
    double bytes_per_s;         /* 0: as fast as it goes */
    double free_s[SMP_COPY_DIRECTIONS];
    late_copy *late; /* [slots] */
};

static smp_status open_throttle(smp_offload_area *area, int slots)
{
    const char *text = getenv("SMP_THROTTLE_HOST");
    char *end = NULL;
    if (!text)
        return SMP_OK;
    area->bytes_per_s = strtod(text, &end);
    if (!(area->bytes_per_s > 0.0) || !isfinite(area->bytes_per_s) || *end)
        return smp_fail(SMP_ERR_INPUT, "SMP_THROTTLE_HOST: got '%s', expected bytes per second",
                        text);
    area->late = calloc((size_t)slots + 1, sizeof *area->late);
    return area->late ? SMP_OK : smp_fail_memory((size_t)slots * sizeof *area->late);
}

static smp_status open_kind(smp_offload_area *area, const smp_offload_area_options *options)
{
    for (int i = 0; kinds[i] && !area->kind; i++)
        if (kinds[i]->suits(options))
            area->kind = kinds[i];
    if (!area->kind)
        return smp_fail(SMP_ERR_INPUT,
                        "offload of device %s to a folder ('%s'): it copies to memory of the host "
                        "alone; leave out --offload-to",
                        options->device->name, options->folder ? options->folder : "");
    SMP_TRY(area->kind->open(options, &area->context));
    if (area->kind->move)
        return smp__copy_threads_start(area->kind, area->context, options->slots, &area->threads);
    return area->kind->base(area->context, &area->base);
}

smp_status smp_offload_area_open(const smp_offload_area_options *options, smp_offload_area **out)
{
    smp_offload_area *area = calloc(1, sizeof *area);
    if (!area)
        return smp_fail_memory(sizeof *area);
    area->device = options->device;
    area->device_context = options->device_context;
    smp_status status = open_throttle(area, options->slots);
    if (status == SMP_OK)
        status = open_kind(area, options);
    if (status == SMP_OK && area->late && !options->device->host_memory)
        status = smp_fail(SMP_ERR_INPUT, "SMP_THROTTLE_HOST: device %s copies by itself",
                          options->device->name);
    if (status != SMP_OK) {
        smp_offload_area_close(area);
        return status;
    }
    *out = area;
    return SMP_OK;
}

void smp_offload_area_close(smp_offload_area *area)
{
    if (!area)
        return;
    smp__copy_threads_stop(area->threads);
    if (area->context)
        area->kind->close(area->context);
    free(area->late);
    free(area);
}

void smp_offload_area_abandon(smp_offload_area *area)
{
    if (area)
        smp__copy_threads_leave(area->threads);
}

const char *smp_offload_area_name(const smp_offload_area *area)
{
    return area->kind->name;
}

smp_status smp_offload_area_base(smp_offload_area *area, char **base)
{
    return area->kind->base(area->context, base);
}

/* A link takes copies one after the other; the data itself moves as always, and counts as arrived
 * when the link would have brought it. */
static void throttle(smp_offload_area *area, int slot, smp_copy_direction way, int64_t bytes)
{
    if (!area->late)
        return;
    late_copy *late = &area->late[slot];
    late->begin_s = fmax(smp_clock_s(), area->free_s[way]);
    late->due_s = area->free_s[way] = late->begin_s + (double)bytes / area->bytes_per_s;
}

smp_status smp_offload_area_begin(smp_offload_area *area, int slot, smp_copy_direction way,
                                  void *values, int64_t at, int64_t bytes)
{
    throttle(area, slot, way, bytes);
    if (area->threads) {
        smp__copy_threads_ask(area->threads, slot, way, values, at, bytes);
        return SMP_OK;
    }
    char *place = area->base + at;
    SMP_TRY(area->device->copy_from_here(area->device_context, way == SMP_COPY_TO_DEVICE));
    return way == SMP_COPY_TO_HOST
               ? area->device->copy_to_host(area->device_context, slot, place, values, bytes)
               : area->device->copy_to_device(area->device_context, slot, values, place, bytes);
}

smp_status smp_offload_area_join(smp_offload_area *area, int slot, bool *done)
{
    *done = true;
    if (!area->threads)
        return area->device->copy_join(area->device_context, slot);
    SMP_TRY(smp__copy_threads_test(area->threads, slot, done));
    *done = *done && (!area->late || smp_clock_s() >= area->late[slot].due_s);
    return SMP_OK;
}

bool smp_offload_area_times(const smp_offload_area *area, int slot, double *begin_s, double *end_s)
{
    if (!area->threads)
        return area->device->copy_times(area->device_context, slot, begin_s, end_s);
    smp__copy_threads_times(area->threads, slot, begin_s, end_s);
    if (area->late) {
        *begin_s = area->late[slot].begin_s;
        *end_s = fmax(*end_s, area->late[slot].due_s);
    }
    return true;
}
