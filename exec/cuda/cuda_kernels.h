/* The kernels with which exec/cuda/device_cuda.c works on a rank's arena on a GPU. All are
 * enqueued on `stream`, a cudaStream_t, and touch device memory only. Pointers need the alignment
 * of their type only: 16-byte accesses are used where the addresses allow them, with the same
 * results. No CUDA header is needed here, so any C file may include this. */
#ifndef SMP_EXEC_CUDA_CUDA_KERNELS_H
#define SMP_EXEC_CUDA_CUDA_KERNELS_H

#include "exec/device/device.h"
#include "schedule/plan/sum_terms.h"

#ifdef __cplusplus
extern "C" {
#endif

/* target[i] += source[i], of SMP_F32, SMP_BF16 or SMP_F16 (added in fp32, rounded once). */
smp_status smp__cuda_accumulate(void *stream, smp_dtype dtype, void *target, const void *source,
                                int64_t elements);

/* Terms of one launch of a fold: what its parameters hold. Emulated, small tests take several. */
#ifdef SMP_EMULATED
enum { SMP__FOLD_TERMS = 16 };
#else
enum { SMP__FOLD_TERMS = 2048 };
#endif

/* The sum of n terms: their nodes are kept on a stack, onto which a term is put after the other;
 * after a term the last two nodes become one, the earlier plus the later, as often as the tree
 * says. Every term is read once, what is left is written once, after all terms of the element. */
typedef struct smp__fold {
    int n;
    const smp_sum_terms *tree; /* of the n; NULL: one after the other */
    const void *came;          /* [n][stride], of fp32, or in bf16 of that */
    int64_t stride;
    int first_own, n_own; /* these terms lie in `own` and `more` instead, in fp32, as in smp_sum */
    const float *own;
    float *sum, *more; /* what is left, likewise; it may take the place of own terms */
    int64_t apart;     /* arrays in `more` */
    bool bf16;         /* own terms are rounded to it, and so is what is left */
    float *carry;      /* [levels][carry_stride] if n > SMP__FOLD_TERMS; it may be `came` in fp32 */
    int64_t carry_stride;
} smp__fold;

smp_status smp__cuda_fold(void *stream, const smp__fold *of, int64_t elements);

/* As smp_device.square_sums; the sums: device memory, or pinned host memory that the device can
 * write to. */
smp_status smp__cuda_square_sums(void *stream, smp_dtype dtype, const smp_squares *of, int n);

enum { SMP__CONVERSIONS = 64 }; /* of one launch */

typedef struct smp__conversion {
    void *to;
    const void *from;
    int64_t elements;
} smp__conversion;

/* to[i] = from[i] of each of n: fp32 rounded to nearest even; bf16 to fp32. */
smp_status smp__cuda_round16(void *stream, smp_dtype half, const smp__conversion *of, int n);
smp_status smp__cuda_widen16(void *stream, const smp__conversion *of, int n);

#ifdef __cplusplus
}
#endif

#endif
