/* Offload areas: where what leaves a device's arena for a part of a step lies meanwhile. An area of
 * bytes, and copies between it and the arena that go on beside the device's compute stream.
 *
 * A copy has a number, a slot, under which it is waited for: one slot for each direction of each
 * thing that is offloaded, used once in a step. Copies of one direction happen one after the
 * other, in the order in which they were begun. None of these calls waits for a copy. One thread
 * calls. */
#ifndef SMP_EXEC_OFFLOAD_OFFLOAD_AREA_H
#define SMP_EXEC_OFFLOAD_OFFLOAD_AREA_H

#include "exec/device/device.h"

typedef enum smp_copy_direction {
    SMP_COPY_TO_HOST,   /* from the arena to the area */
    SMP_COPY_TO_DEVICE, /* and back */
    SMP_COPY_DIRECTIONS
} smp_copy_direction;

typedef struct smp_offload_area_options {
    const smp_device *device; /* opened for so many slots where it has no host memory */
    void *device_context;
    int64_t bytes;
    int slots;
    const char *folder; /* of a file that is the area; NULL: memory of the host */
} smp_offload_area_options;

/* How an area is held. One file each, listed in offload_area.c. `move` NULL: the device copies by
 * itself (smp_device.copy_to_host), else threads call it. */
typedef struct smp_offload_area_kind {
    const char *name;
    bool (*suits)(const smp_offload_area_options *options);
    /* Zeroed. On failure the context, if set, is closed. */
    smp_status (*open)(const smp_offload_area_options *options, void **context);
    void (*close)(void *context);
    /* The area in this process's memory; SMP_ERR_FAILED: it cannot be. Lives as long as it. */
    smp_status (*base)(void *context, char **base);
    /* Returns when the bytes are copied. By two threads at once, one for each way, of which one's
     * places are never the other's. */
    smp_status (*move)(void *context, smp_copy_direction way, void *values, int64_t at,
                       int64_t bytes);
} smp_offload_area_kind;

typedef struct smp_offload_area smp_offload_area;

/* SMP_ERR_INPUT: no such folder, or the device cannot have it. SMP_ERR_FAILED: no room in it.
 * Reserves all bytes, so that none are missing later. The environment variable SMP_THROTTLE_HOST,
 * bytes per second, is for tests: each way takes no less time than a link of that speed would.
 * SMP_ERR_INPUT with it where the device copies by itself. */
smp_status smp_offload_area_open(const smp_offload_area_options *options, smp_offload_area **out);
/* Accepts NULL. Waits for the copies that are under way. */
void smp_offload_area_close(smp_offload_area *area);
/* Instead, where a copy may never end: what it touches stays. */
void smp_offload_area_abandon(smp_offload_area *area);

const char *smp_offload_area_name(const smp_offload_area *area);
smp_status smp_offload_area_base(smp_offload_area *area, char **base);

/* Begins to copy `bytes` between `values` in the arena and the area from byte `at` on, when the
 * compute stream gets here. */
smp_status smp_offload_area_begin(smp_offload_area *area, int slot, smp_copy_direction way,
                                  void *values, int64_t at, int64_t bytes);
/* Does what is enqueued on the compute stream from here on find the slot's last copy done? The
 * error of a copy that failed appears here. */
smp_status smp_offload_area_join(smp_offload_area *area, int slot, bool *done);
/* When the slot's last copy, which is done, began and ended, in seconds of smp_clock_s; false: not
 * known. */
bool smp_offload_area_times(const smp_offload_area *area, int slot, double *begin_s, double *end_s);

#endif
