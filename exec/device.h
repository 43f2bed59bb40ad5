/* The device interface: where a rank's arena lives and who runs its operators. One static
 * smp_device per file, listed in exec/device.c. */
#ifndef SMP_EXEC_DEVICE_H
#define SMP_EXEC_DEVICE_H

#include "graph/op.h"

typedef struct smp_device {
    const char *name;
    const char *summary;
    /* Once per process before anything else. */
    smp_status (*open)(void);
    /* One zeroed arena, 64-byte aligned at least, touched so that no page fault comes later. */
    smp_status (*reserve)(int64_t bytes, char **arena);
    void (*release)(char *arena, int64_t bytes);
    void (*copy)(void *target, const void *source, int64_t bytes);
    void (*zero)(void *target, int64_t bytes);
    /* target[i] += source[i] */
    void (*add)(float *target, const float *source, int64_t elements);
    /* The sum of squares in double, in an order that depends only on `elements`. */
    double (*square_sum)(const float *values, int64_t elements);
    const smp_op_kernels *(*kernels)(const smp_op_kind *kind);
} smp_device;

const smp_device *smp_device_find(const char *name); /* NULL if unknown */
const smp_device *const *smp_devices(void);          /* NULL-terminated */

#endif
