/* The probe's memory: one pool on the device, filled from the host, and the clock. */
#include "exec/probe/probe_op.h"

#include <math.h>

#include "graph/base/random.h"
#include "graph/base/text.h"
#include "graph/math/half.h"

smp_status smp__probe_pool(smp__probe_state *p, int64_t bytes)
{
    if (bytes <= p->pool_bytes)
        return SMP_OK;
    if (bytes > p->memory_limit) {
        char needed[32], room[32];
        return smp_fail(SMP_ERR_NO_MEMORY, "measuring needs %s, a rank may use %s",
                        smp_format_bytes(needed, sizeof(needed), bytes),
                        smp_format_bytes(room, sizeof(room), p->memory_limit));
    }
    SMP_TRY(smp__probe_idle(p));
    if (p->pool)
        p->device->release(p->device_context, p->pool, p->pool_bytes);
    p->pool = NULL;
    p->pool_bytes = 0;
    SMP_TRY(p->device->reserve(p->device_context, bytes, &p->pool));
    p->pool_bytes = bytes;
    return SMP_OK;
}

smp_status smp__probe_idle(smp__probe_state *p)
{
    for (bool done = false; !done;)
        SMP_TRY(p->device->idle(p->device_context, &done));
    return SMP_OK;
}

/* Piece by piece what `make` writes: directly, or through the staging buffer. `first` is the index
 * of the piece's first value. */
typedef void make_values(const smp__probe_state *p, void *target, int64_t first, int64_t count,
                         const void *how);

static smp_status write_values(smp__probe_state *p, void *target, int64_t bytes, int64_t size,
                               make_values *make, const void *how)
{
    if (p->device->host_memory) {
        make(p, target, 0, bytes / size, how);
        return SMP_OK;
    }
    for (int64_t done = 0; done < bytes;) {
        int64_t piece = bytes - done < SMP__STAGING_BYTES ? bytes - done : SMP__STAGING_BYTES;
        make(p, p->staging, done / size, piece / size, how);
        SMP_TRY(p->device->upload(p->device_context, (char *)target + done, p->staging, piece));
        SMP_TRY(smp__probe_idle(p)); /* the staging buffer is free again */
        done += piece;
    }
    return SMP_OK;
}

typedef struct floats {
    smp_dtype dtype;
    float scale;
} floats;

static void make_floats(const smp__probe_state *p, void *target, int64_t first, int64_t count,
                        const void *how)
{
    enum { PART = 512 };
    const floats *of = how;
    const bool narrow = of->dtype != SMP_F32;
    float part[PART];
    for (int64_t at = 0; at < count; at += PART) {
        const int64_t n = count - at < PART ? count - at : PART;
        float *x = narrow ? part : (float *)target + at;
        for (int64_t i = 0; i < n; i++)
            x[i] = of->scale * p->pattern[(first + at + i) % SMP__PATTERN_FLOATS];
        if (narrow)
            smp__to_half(of->dtype, (uint16_t *)target + at, part, n);
    }
}

smp_status smp__probe_fill(smp__probe_state *p, void *target, smp_dtype dtype, int64_t bytes,
                           float scale)
{
    return write_values(p, target, bytes, smp_dtype_bytes(dtype), make_floats,
                        &(floats){dtype, scale});
}

typedef struct index_range {
    int64_t min, max;
} index_range;

/* One of n by Zipf's law: the i-th in a share of log((i + 2) / (i + 1)) / log(n + 1). */
static int64_t ranked(uint64_t random, int64_t n)
{
    const double share = (double)(random >> 11) * 0x1p-53;
    const int64_t rank = (int64_t)pow((double)n + 1, share);
    return rank < n ? rank - 1 : n - 1;
}

static void make_indices(const smp__probe_state *p, void *target, int64_t first, int64_t count,
                         const void *how)
{
    const index_range *range = how;
    const int64_t least = range->min > 0 ? range->min : 0, n = range->max - least + 1;
    int32_t *value = target;
    (void)p;
    for (int64_t i = 0; i < count; i++)
        value[i] = (int32_t)(least + ranked(smp_random_mix((uint64_t)(first + i)), n));
}

smp_status smp__probe_fill_indices(smp__probe_state *p, void *target, int64_t bytes, int64_t min,
                                   int64_t max)
{
    const index_range range = {min, max};
    return write_values(p, target, bytes, 4, make_indices, &range);
}

smp_status smp__probe_clock_start(smp__probe_state *p)
{
    return p->device->stamp(p->device_context, 0);
}

smp_status smp__probe_clock_stop(smp__probe_state *p, double *us)
{
    double begin_s = 0, end_s = 0;
    SMP_TRY(p->device->stamp(p->device_context, 1));
    SMP_TRY(smp__probe_idle(p));
    if (!p->device->passed(p->device_context, 0, &begin_s) ||
        !p->device->passed(p->device_context, 1, &end_s))
        return smp_fail(SMP_ERR_FAILED, "the device is idle but its time stamps are not there");
    *us = 1e6 * (end_s - begin_s);
    return SMP_OK;
}
