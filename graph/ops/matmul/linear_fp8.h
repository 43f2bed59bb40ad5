/* Factors of products in fp8 on a GPU, rounded at one scale each (graph/math/fp8.h), and where they
 * lie in an op's workspace, which `cuda_needs` asks for too. Readable as C. */
#ifndef SMP_GRAPH_OPS_LINEAR_FP8_H
#define SMP_GRAPH_OPS_LINEAR_FP8_H

#include <stdbool.h>
#include <stdint.h>

#include "graph/math/fp8.h"
#include "graph/base/status.h"

enum {
    SMP__FP8_PARTS = 512, /* of a factor, whose largest values are found apart */
    SMP__FP8_ALIGNMENT = 64,
    SMP__FP8_MULTIPLE = 16 /* bytes of a row that cuBLASLt takes in fp8, and of our packs */
};

/* A bf16 matrix, row-major and dense, of whole packs of columns (SMP__FP8_MULTIPLE). */
typedef struct smp__fp8_factor {
    const void *value; /* [rows, columns] */
    int64_t rows, columns;
    int64_t counted; /* of these first rows the scale is */
    smp_fp8 format;
    bool transposed; /* it is left as [columns, smp__fp8_row(rows)], filled up with zeroes */
} smp__fp8_factor;

/* Where both are left. */
typedef struct smp__fp8_pair {
    const float *scale[2]; /* what a sum is multiplied by */
    const void *rounded[2];
} smp__fp8_pair;

/* Codes of a row that has so many values and is one of k of a transposed factor. */
SMP__FP8_ANYWHERE int64_t smp__fp8_row(int64_t values)
{
    return (values + SMP__FP8_MULTIPLE - 1) / SMP__FP8_MULTIPLE * SMP__FP8_MULTIPLE;
}

static inline int64_t smp__fp8_rounded_bytes(int64_t rows, int64_t columns)
{
    const int64_t bytes = smp__fp8_row(rows) * columns; /* transposed or not */
    return (bytes + SMP__FP8_ALIGNMENT - 1) / SMP__FP8_ALIGNMENT * SMP__FP8_ALIGNMENT;
}

/* Scales, and the largest values of parts. */
static inline int64_t smp__fp8_head_bytes(void)
{
    return SMP__FP8_ALIGNMENT + 2 * SMP__FP8_PARTS * (int64_t)sizeof(uint32_t);
}

/* Of a pair of rows by columns each. */
static inline int64_t smp__fp8_bytes(int64_t rows, int64_t columns, int64_t other_rows,
                                     int64_t other_columns)
{
    return smp__fp8_head_bytes() + smp__fp8_rounded_bytes(rows, columns) +
           smp__fp8_rounded_bytes(other_rows, other_columns);
}

struct smp_cuda;

#ifdef __cplusplus
extern "C" {
#endif

/* Both factors of a product, in two launches, which read each of them twice. workspace:
 * smp__fp8_bytes, 64-byte aligned. */
smp_status smp__fp8_round_pair(const struct smp_cuda *cuda, const smp__fp8_factor factor[2],
                               void *workspace, smp__fp8_pair *out);

#ifdef __cplusplus
}
#endif

#endif
