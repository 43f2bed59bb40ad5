/* Types of values. Kernels know float32 and int32, and bf16 or fp16 where the target says so; the
 * others are those of tensors that are only planned. */
#ifndef SMP_GRAPH_MODEL_DTYPE_H
#define SMP_GRAPH_MODEL_DTYPE_H

#include <stdbool.h>
#include <stdint.h>

/* X(id, name in model files, another that they may have, bytes, whether gradients pass it) */
#define SMP_DTYPE_LIST(X)                                                                          \
    X(F32, "float32", "fp32", 4, true)                                                             \
    X(I32, "int32", NULL, 4, false)                                                                \
    X(BF16, "bf16", "bfloat16", 2, true)                                                           \
    X(F16, "fp16", "float16", 2, true)                                                             \
    X(F64, "float64", "fp64", 8, true)                                                             \
    X(I64, "int64", NULL, 8, false)                                                                \
    X(I16, "int16", NULL, 2, false)                                                                \
    X(I8, "int8", NULL, 1, false)                                                                  \
    X(U8, "uint8", NULL, 1, false)                                                                 \
    X(BOOL, "bool", NULL, 1, false)

#define SMP_DTYPE_ID(id, name, other, bytes, is_float) SMP_##id,
typedef enum smp_dtype { SMP_DTYPE_LIST(SMP_DTYPE_ID) } smp_dtype;
#undef SMP_DTYPE_ID

static inline int64_t smp_dtype_bytes(smp_dtype dtype)
{
#define SMP_DTYPE_BYTES(id, name, other, bytes, is_float) bytes,
    static const unsigned char bytes[] = {SMP_DTYPE_LIST(SMP_DTYPE_BYTES)};
#undef SMP_DTYPE_BYTES
    return bytes[dtype];
}

static inline bool smp_dtype_is_float(smp_dtype dtype)
{
#define SMP_DTYPE_FLOAT(id, name, other, bytes, is_float) is_float,
    static const bool is_float[] = {SMP_DTYPE_LIST(SMP_DTYPE_FLOAT)};
#undef SMP_DTYPE_FLOAT
    return is_float[dtype];
}

/* Floats of 16 bits. */
static inline bool smp_dtype_is_half(smp_dtype dtype)
{
    return dtype == SMP_BF16 || dtype == SMP_F16;
}

/* Do kernels take it where the file says it? */
static inline bool smp_dtype_runs(smp_dtype dtype)
{
    return dtype == SMP_F32 || dtype == SMP_I32;
}

/* By value; NULL-terminated. */
extern const char *const smp_dtype_names[];
/* By either name. */
bool smp_dtype_find(const char *name, smp_dtype *out);

#endif
