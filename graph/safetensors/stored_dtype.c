/* The types of the format, one line each; see the header. */
#include "graph/safetensors/stored_dtype.h"

#include <string.h>

#include "graph/base/fp16.h"

static void from_f32(const void *from, int64_t n, float *to)
{
    memmove(to, from, (size_t)n * sizeof *to);
}

static void from_f64(const void *from, int64_t n, float *to)
{
    const char *at = from;
    for (int64_t i = 0; i < n; i++, at += sizeof(double)) {
        double value;
        memcpy(&value, at, sizeof value);
        to[i] = (float)value;
    }
}

static void from_bf16(const void *from, int64_t n, float *to)
{
    const char *at = from;
    for (int64_t i = 0; i < n; i++, at += sizeof(uint16_t)) {
        uint16_t half;
        memcpy(&half, at, sizeof half);
        const uint32_t bits = (uint32_t)half << 16;
        memcpy(&to[i], &bits, sizeof bits);
    }
}

static void from_f16(const void *from, int64_t n, float *to)
{
    const char *at = from;
    for (int64_t i = 0; i < n; i++, at += sizeof(uint16_t)) {
        uint16_t half;
        memcpy(&half, at, sizeof half);
        to[i] = smp_fp16_widen(half);
    }
}

const smp_stored_dtype smp_stored_f32 = {"F32", 4, from_f32},
                       smp_stored_bf16 = {"BF16", 2, from_bf16};

static const smp_stored_dtype f16 = {"F16", 2, from_f16}, f64 = {"F64", 8, from_f64};
static const smp_stored_dtype others[] = {
    {"BOOL", 1, NULL}, {"U8", 1, NULL},  {"I8", 1, NULL},  {"F8_E4M3", 1, NULL},
    {"I16", 2, NULL},  {"U16", 2, NULL}, {"I32", 4, NULL}, {"F8_E5M2", 1, NULL},
    {"U32", 4, NULL},  {"I64", 8, NULL}, {"U64", 8, NULL},
};

const smp_stored_dtype *smp_stored_dtype_find(const char *name)
{
    const smp_stored_dtype *const floats[] = {&smp_stored_f32, &smp_stored_bf16, &f16, &f64};
    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++)
        if (strcmp(floats[i]->name, name) == 0)
            return floats[i];
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(others[i].name, name) == 0)
            return &others[i];
    return NULL;
}
