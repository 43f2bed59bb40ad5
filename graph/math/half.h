/* Floats of 16 bits: bf16, the upper half of a float, and fp16 (graph/base/fp16.h). Arrays of them
 * are uint16_t. */
#ifndef SMP_GRAPH_MATH_HALF_H
#define SMP_GRAPH_MATH_HALF_H

#include <stdbool.h>
#include <stdint.h>

#include "graph/math/fp8.h"
#include "graph/base/status.h"
#include "graph/model/dtype.h"

/* Does this processor multiply bf16 (AVX512-BF16 or AMX; ONEDNN_MAX_CPU_ISA may say less)? */
bool smp_math_has_bf16(void);

void smp__from_bf16(float *restrict y, const uint16_t *restrict x, int64_t n);
/* To the nearest, ties to even; a NaN stays one, and what is less than the least normal float
 * becomes 0: as AVX512-BF16 does it, and with the same bits on every machine. */
void smp__to_bf16(uint16_t *restrict y, const float *restrict x, int64_t n);

/* The same in the format that `half` says: SMP_BF16 or SMP_F16. */
void smp__from_half(smp_dtype half, float *restrict y, const void *restrict x, int64_t n);
void smp__to_half(smp_dtype half, void *restrict y, const float *restrict x, int64_t n);
/* target += source, added as floats and rounded once. */
void smp__add_half(smp_dtype half, void *restrict target, const void *restrict source, int64_t n);

/* y [n] of bf16: what a product in fp8 multiplies in place of x, as numbers that bf16 has: each at
 * the scale of the first `counted` values, rounded to the format, and scaled back. */
void smp__round_fp8(smp_fp8 format, uint16_t *restrict y, const uint16_t *restrict x, int64_t n,
                    int64_t counted);

/* Strides of matrices [outer][inner][row][column]: elements to the next, and to the next row. */
typedef struct smp_strides16 {
    int64_t outer, inner, row;
} smp_strides16;

/* C[m,n] = op(A)[m,k] * op(B)[k,n] of bf16, all row-major and dense, with sums in fp32. */
typedef struct smp_gemm16 {
    bool trans_a, trans_b;
    int64_t m, n, k;
    float scale;     /* of the product; 0: 1 */
    bool bias;       /* of n floats, added to each row */
    bool accumulate; /* C is fp32 and added to; else it is overwritten: */
    bool wide;       /* fp32, or bf16 rounded once */
    /* So many products at once, where they lie in A, B and C; outer 0: one. */
    int64_t outer, inner;
    smp_strides16 at[3];
} smp_gemm16;

/* Made once per operator, with the scratch it needs. */
typedef struct smp_math_gemm16 smp_math_gemm16;
smp_status smp_math_gemm16_create(const smp_gemm16 *shape, smp_math_gemm16 **out);
void smp_math_gemm16_destroy(smp_math_gemm16 *product); /* accepts NULL */
smp_status smp_math_gemm16_run(smp_math_gemm16 *product, const void *a, const void *b,
                               const float *bias, void *c);

#endif
