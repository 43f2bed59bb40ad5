/* The kinds of far sides, and links to them that are slower than the machine. */
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

static smp_status open_throttle(smp_offload_area *far, int slots)
{
    const char *text = getenv("SMP_THROTTLE_HOST");
    char *end = NULL;
    if (!text)
        return SMP_OK;
    far->bytes_per_s = strtod(text, &end);
    if (!(far->bytes_per_s > 0.0) || !isfinite(far->bytes_per_s) || *end)
        return smp_fail(SMP_ERR_INPUT, "SMP_THROTTLE_HOST: got '%s', expected bytes per second",
                        text);
    far->late = calloc((size_t)slots + 1, sizeof *far->late);
    return far->late ? SMP_OK : smp_fail_memory((size_t)slots * sizeof *far->late);
}

static smp_status open_kind(smp_offload_area *far, const smp_offload_area_options *options)
{
    for (int i = 0; kinds[i] && !far->kind; i++)
        if (kinds[i]->suits(options))
            far->kind = kinds[i];
    if (!far->kind)
        return smp_fail(SMP_ERR_INPUT,
                        "offload of device %s to a folder ('%s'): it copies to memory of the host "
                        "alone; leave out --offload-to",
                        options->device->name, options->folder ? options->folder : "");
    SMP_TRY(far->kind->open(options, &far->context));
    if (far->kind->move)
        return smp__copy_threads_start(far->kind, far->context, options->slots, &far->threads);
    return far->kind->base(far->context, &far->base);
}

smp_status smp_offload_area_open(const smp_offload_area_options *options, smp_offload_area **out)
{
    smp_offload_area *far = calloc(1, sizeof *far);
    if (!far)
        return smp_fail_memory(sizeof *far);
    far->device = options->device;
    far->device_context = options->device_context;
    smp_status status = open_throttle(far, options->slots);
    if (status == SMP_OK)
        status = open_kind(far, options);
    if (status == SMP_OK && far->late && !options->device->host_memory)
        status = smp_fail(SMP_ERR_INPUT, "SMP_THROTTLE_HOST: device %s copies by itself",
                          options->device->name);
    if (status != SMP_OK) {
        smp_offload_area_close(far);
        return status;
    }
    *out = far;
    return SMP_OK;
}

void smp_offload_area_close(smp_offload_area *far)
{
    if (!far)
        return;
    smp__copy_threads_stop(far->threads);
    if (far->context)
        far->kind->close(far->context);
    free(far->late);
    free(far);
}

void smp_offload_area_abandon(smp_offload_area *far)
{
    if (far)
        smp__copy_threads_leave(far->threads);
}

const char *smp_offload_area_name(const smp_offload_area *far)
{
    return far->kind->name;
}

smp_status smp_offload_area_base(smp_offload_area *far, char **base)
{
    return far->kind->base(far->context, base);
}

/* A link takes copies one after the other; the data itself moves as always, and counts as arrived
 * when the link would have brought it. */
static void throttle(smp_offload_area *far, int slot, smp_copy_direction way, int64_t bytes)
{
    if (!far->late)
        return;
    late_copy *late = &far->late[slot];
    late->begin_s = fmax(smp_clock_s(), far->free_s[way]);
    late->due_s = far->free_s[way] = late->begin_s + (double)bytes / far->bytes_per_s;
}

smp_status smp_offload_area_begin(smp_offload_area *far, int slot, smp_copy_direction way,
                                  void *values, int64_t at, int64_t bytes)
{
    throttle(far, slot, way, bytes);
    if (far->threads) {
        smp__copy_threads_ask(far->threads, slot, way, values, at, bytes);
        return SMP_OK;
    }
    char *place = far->base + at;
    SMP_TRY(far->device->travel_here(far->device_context, way == SMP_COPY_TO_DEVICE));
    return way == SMP_COPY_TO_HOST
               ? far->device->travel_out(far->device_context, slot, place, values, bytes)
               : far->device->travel_back(far->device_context, slot, values, place, bytes);
}

smp_status smp_offload_area_join(smp_offload_area *far, int slot, bool *done)
{
    *done = true;
    if (!far->threads)
        return far->device->travel_join(far->device_context, slot);
    SMP_TRY(smp__copy_threads_test(far->threads, slot, done));
    *done = *done && (!far->late || smp_clock_s() >= far->late[slot].due_s);
    return SMP_OK;
}

bool smp_offload_area_times(const smp_offload_area *far, int slot, double *begin_s, double *end_s)
{
    if (!far->threads)
        return far->device->travel_times(far->device_context, slot, begin_s, end_s);
    smp__copy_threads_times(far->threads, slot, begin_s, end_s);
    if (far->late) {
        *begin_s = far->late[slot].begin_s;
        *end_s = fmax(*end_s, far->late[slot].due_s);
    }
    return true;
}
