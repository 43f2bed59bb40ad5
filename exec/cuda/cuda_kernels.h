/* The kernels with which exec/cuda/device_cuda.c works on a rank's arena on a GPU. All are
 * enqueued on `stream`, a cudaStream_t, and touch device memory only. Pointers need the alignment
 * of their type only: 16-byte accesses are used where the addresses allow them, with the same
 * results. No CUDA header is needed here, so any C file may include this. */
#ifndef SMP_EXEC_CUDA_CUDA_KERNELS_H
#define SMP_EXEC_CUDA_CUDA_KERNELS_H

#include "exec/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* target[i] += source[i], of SMP_F32, SMP_BF16 or SMP_F16 (added in fp32, rounded once). */
smp_status smp__cuda_accumulate(void *stream, smp_dtype dtype, void *target, const void *source,
                                int64_t elements);

/* sum[i] = rows[i] + rows[stride + i] + ..., of `count` rows, in this order. */
smp_status smp__cuda_add_rows(void *stream, float *sum, const float *rows, int64_t elements,
                              int64_t count, int64_t stride);

/* As smp_device.square_sums; the sums: device memory, or pinned host memory that the device can
 * write to. */
smp_status smp__cuda_square_sums(void *stream, smp_dtype dtype, const smp_squares *of, int n);

/* target16[i] = source[i] rounded to nearest even; target[i] = source16[i], of bf16. */
smp_status smp__cuda_round16(void *stream, smp_dtype half, void *target16, const float *source,
                             int64_t elements);
smp_status smp__cuda_widen16(void *stream, float *target, const void *source16, int64_t elements);

#ifdef __cplusplus
}
#endif

#endif
