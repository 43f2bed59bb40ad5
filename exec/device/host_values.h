/* Values of weights that lie in host memory alone, seen as a GPU sees them: what has been on the
 * device, or is measured there where they are not far, has the same bits made here. */
#ifndef SMP_EXEC_DEVICE_HOST_VALUES_H
#define SMP_EXEC_DEVICE_HOST_VALUES_H

#include <stdint.h>

#include "graph/model/dtype.h"

/* As smp_device.round16 of a GPU: to the nearest, ties to even; in bf16 what is less than the least
 * normal float is rounded too, which smp__to_half makes 0. */
void smp__host_round(smp_dtype half, void *target16, const float *source, int64_t elements);

/* As smp_device.square_sums of a GPU, of floats: a sum of each SMP_SQUARE_PIECE of them, in the
 * order in which a block of threads adds. */
void smp__host_squares(const float *values, int64_t elements, double *sum);

#endif
