/* Floats of 16 bits (graph/math/half.h): conversions, which compilers vectorise, and products of
 * bf16 by oneDNN's matmul primitives. oneDNN 2 has none of fp16 on a CPU, so whoever multiplies
 * that widens it before (graph/ops/widened.c). */
#include "graph/math/half.h"

#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__) && defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <stdatomic.h>
#endif

#include <omp.h>

#include "graph/base/fp16.h"
#include "graph/math/onednn.h"
#include "graph/math/vector.h"

enum { SCRATCH_ALIGNMENT = 64 };

bool smp_math_has_bf16(void)
{
    const unsigned isa = dnnl_get_effective_cpu_isa();
    return (isa & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
}

static inline float widen(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline uint16_t narrow(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    const uint32_t size = bits & 0x7fffffffu, rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    const uint32_t number = size < 0x00800000u ? bits & 0x80000000u : rounded;
    return (uint16_t)((size > 0x7f800000u ? bits | 0x400000u : number) >> 16);
}

SMP_VECTOR void smp__from_bf16(float *restrict y, const uint16_t *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = widen(x[i]);
}

SMP_VECTOR static void narrow_all(uint16_t *restrict y, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = narrow(x[i]);
}

SMP_VECTOR static void widen_fp16(float *restrict y, const uint16_t *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = smp_fp16_widen(x[i]);
}

SMP_VECTOR static void narrow_fp16(uint16_t *restrict y, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = smp_fp16_narrow(x[i]);
}

/* One instruction for 16 values, a third of the time; of fp16 for 8. */
#if defined(__GNUC__) && defined(__x86_64__)
__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) static int64_t
narrow_blocks(uint16_t *restrict y, const float *restrict x, int64_t n)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_loadu_ps(x + i));
        memcpy(y + i, &rounded, sizeof(rounded));
    }
    return i;
}

static bool has_instruction(void)
{
    return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vl");
}

__attribute__((target("avx,f16c"))) static int64_t
narrow_fp16_blocks(uint16_t *restrict y, const float *restrict x, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(void *)(y + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
    return i;
}

__attribute__((target("avx,f16c"))) static int64_t
widen_fp16_blocks(float *restrict y, const uint16_t *restrict x, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i,
                         _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(x + i))));
    return i;
}

/* Asked once: a virtual machine's host answers CPUID, in some 30 us. */
static bool has_f16c(void)
{
    enum { UNKNOWN, NO, YES };
    static _Atomic int known = UNKNOWN;
    int answer = atomic_load_explicit(&known, memory_order_relaxed);
    if (answer == UNKNOWN) {
        unsigned a, b, c = 0, d; /* clang 14 knows no "f16c" by name */
        const bool has = __builtin_cpu_supports("avx") && __get_cpuid(1, &a, &b, &c, &d);
        answer = has && (c & bit_F16C) != 0 ? YES : NO;
        atomic_store_explicit(&known, answer, memory_order_relaxed);
    }
    return answer == YES;
}
#else
static int64_t narrow_blocks(uint16_t *y, const float *x, int64_t n)
{
    (void)y, (void)x, (void)n;
    return 0;
}

static bool has_instruction(void)
{
    return false;
}

static int64_t narrow_fp16_blocks(uint16_t *y, const float *x, int64_t n)
{
    (void)y, (void)x, (void)n;
    return 0;
}

static int64_t widen_fp16_blocks(float *y, const uint16_t *x, int64_t n)
{
    (void)y, (void)x, (void)n;
    return 0;
}

static bool has_f16c(void)
{
    return false;
}
#endif

void smp__to_bf16(uint16_t *restrict y, const float *restrict x, int64_t n)
{
    const int64_t done = has_instruction() ? narrow_blocks(y, x, n) : 0;
    narrow_all(y + done, x + done, n - done);
}

void smp__from_half(smp_dtype half, float *restrict y, const void *restrict x, int64_t n)
{
    const uint16_t *from = x;
    if (half == SMP_BF16) {
        smp__from_bf16(y, from, n);
        return;
    }
    const int64_t done = has_f16c() ? widen_fp16_blocks(y, from, n) : 0;
    widen_fp16(y + done, from + done, n - done);
}

void smp__to_half(smp_dtype half, void *restrict y, const float *restrict x, int64_t n)
{
    uint16_t *to = y;
    if (half == SMP_BF16) {
        smp__to_bf16(to, x, n);
        return;
    }
    const int64_t done = has_f16c() ? narrow_fp16_blocks(to, x, n) : 0;
    narrow_fp16(to + done, x + done, n - done);
}

void smp__add_half(smp_dtype half, void *restrict target, const void *restrict source, int64_t n)
{
    enum { PART = 512 };
    float sum[PART], part[PART];
    uint16_t *to = target;
    const uint16_t *from = source;
    for (int64_t at = 0; at < n; at += PART) {
        const int64_t count = n - at < PART ? n - at : PART;
        smp__from_half(half, sum, to + at, count);
        smp__from_half(half, part, from + at, count);
        for (int64_t i = 0; i < count; i++)
            sum[i] += part[i];
        smp__to_half(half, to + at, sum, count);
    }
}

/* Sizes of floats stand in the order of their bits, and a NaN above all. */
SMP_VECTOR static uint16_t largest_bits(const uint16_t *x, int64_t n)
{
    uint16_t largest = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint16_t size = x[i] & 0x7fffu;
        largest = size > largest ? size : largest;
    }
    return largest;
}

SMP_VECTOR static void round_fp8(smp_fp8 format, smp_fp8_scale scale, uint16_t *restrict y,
                                 const uint16_t *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const float value = smp_fp8_round(format, widen(x[i]) * scale.to) * scale.from;
        y[i] = (uint16_t)(smp__fp8_bits_of(value) >> 16); /* the rest are zeroes */
    }
}

void smp__round_fp8(smp_fp8 format, uint16_t *restrict y, const uint16_t *restrict x, int64_t n,
                    int64_t counted)
{
    const smp_fp8_scale scale = smp_fp8_scale_of(format, widen(largest_bits(x, counted)));
    if (format == SMP_E4M3)
        round_fp8(SMP_E4M3, scale, y, x, n);
    else
        round_fp8(SMP_E5M2, scale, y, x, n);
}

struct smp_math_gemm16 {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, bias, c, scratch;
    void *scratch_data;
};

void smp_math_gemm16_destroy(smp_math_gemm16 *p)
{
    if (!p)
        return;
    if (p->primitive)
        dnnl_primitive_destroy(p->primitive);
    dnnl_memory_t memory[] = {p->a, p->b, p->bias, p->c, p->scratch};
    for (int i = 0; i < 5; i++)
        if (memory[i])
            dnnl_memory_destroy(memory[i]);
    free(p->scratch_data);
    smp__dnnl_close(p->engine, p->stream);
    free(p);
}

/* A row-major matrix, or one whose transpose is; dense, or as many as there are, with strides. */
static smp_status describe(dnnl_memory_desc_t *desc, int64_t rows, int64_t columns, bool transposed,
                           dnnl_data_type_t type, const smp_gemm16 *shape, int which)
{
    const smp_strides16 at = shape->at[which];
    const int64_t row = shape->outer > 0 ? at.row : transposed ? rows : columns;
    const dnnl_dims_t dims = {shape->outer, shape->inner, rows, columns};
    const dnnl_dims_t strides = {at.outer, at.inner, transposed ? 1 : row, transposed ? row : 1};
    const int skip = shape->outer > 0 ? 0 : 2;
    return smp__dnnl_check(
        dnnl_memory_desc_init_by_strides(desc, 4 - skip, dims + skip, type, strides + skip),
        "describing a matrix");
}

static smp_status set_attributes(dnnl_primitive_attr_t attr, float scale, bool accumulate)
{
    SMP_TRY(smp__dnnl_check(
        dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user), "scratch"));
    if (scale != 0)
        SMP_TRY(smp__dnnl_check(dnnl_primitive_attr_set_output_scales(attr, 1, 0, &scale),
                                "the scale of a product"));
    if (!accumulate)
        return SMP_OK;
    dnnl_post_ops_t sum = NULL;
    dnnl_status_t made = dnnl_post_ops_create(&sum);
    if (made == dnnl_success)
        made = dnnl_post_ops_append_sum(sum, 1.0f);
    if (made == dnnl_success)
        made = dnnl_primitive_attr_set_post_ops(attr, sum);
    if (sum)
        dnnl_post_ops_destroy(sum);
    return smp__dnnl_check(made, "a product that is added");
}

static smp_status make_memory(smp_math_gemm16 *p, dnnl_memory_t *memory,
                              const dnnl_memory_desc_t *desc, void *data)
{
    return smp__dnnl_check(dnnl_memory_create(memory, desc, p->engine, data),
                           "making a memory object");
}

static smp_status make_scratch(smp_math_gemm16 *p, const_dnnl_primitive_desc_t desc)
{
    const dnnl_memory_desc_t *scratch =
        dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    const size_t bytes = scratch ? dnnl_memory_desc_get_size(scratch) : 0;
    if (bytes == 0)
        return SMP_OK;
    p->scratch_data = aligned_alloc(SCRATCH_ALIGNMENT, (bytes + SCRATCH_ALIGNMENT - 1) /
                                                           SCRATCH_ALIGNMENT * SCRATCH_ALIGNMENT);
    if (!p->scratch_data)
        return smp_fail_memory(bytes);
    return make_memory(p, &p->scratch, scratch, p->scratch_data);
}

static smp_status make_primitive(smp_math_gemm16 *p, const smp_gemm16 *shape,
                                 const dnnl_matmul_desc_t *operation)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t desc = NULL;
    smp_status status =
        smp__dnnl_check(dnnl_primitive_attr_create(&attr), "attributes of a product");
    if (status == SMP_OK)
        status = set_attributes(attr, shape->scale, shape->accumulate);
    if (status == SMP_OK)
        status = smp__dnnl_check(
            dnnl_primitive_desc_create(&desc, operation, attr, p->engine, NULL), "a bf16 product");
    if (status == SMP_OK)
        status = smp__dnnl_check(dnnl_primitive_create(&p->primitive, desc), "a bf16 product");
    if (status == SMP_OK)
        status = make_scratch(p, desc);
    if (desc)
        dnnl_primitive_desc_destroy(desc);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    return status;
}

static smp_status make_gemm(smp_math_gemm16 *p, const smp_gemm16 *shape)
{
    dnnl_memory_desc_t a, b, bias, c;
    dnnl_matmul_desc_t operation;
    SMP_TRY(smp__dnnl_open(&p->engine, &p->stream));
    const dnnl_data_type_t result = shape->accumulate || shape->wide ? dnnl_f32 : dnnl_bf16;
    const dnnl_dims_t columns = {1, shape->n};
    SMP_TRY(describe(&a, shape->m, shape->k, shape->trans_a, dnnl_bf16, shape, 0));
    SMP_TRY(describe(&b, shape->k, shape->n, shape->trans_b, dnnl_bf16, shape, 1));
    SMP_TRY(describe(&c, shape->m, shape->n, false, result, shape, 2));
    SMP_TRY(smp__dnnl_check(dnnl_memory_desc_init_by_tag(&bias, 2, columns, dnnl_f32, dnnl_ab),
                            "describing a bias"));
    SMP_TRY(smp__dnnl_check(
        dnnl_matmul_desc_init(&operation, &a, &b, shape->bias ? &bias : NULL, &c), "a product"));
    SMP_TRY(make_primitive(p, shape, &operation));
    SMP_TRY(make_memory(p, &p->a, &a, DNNL_MEMORY_NONE));
    SMP_TRY(make_memory(p, &p->b, &b, DNNL_MEMORY_NONE));
    if (shape->bias)
        SMP_TRY(make_memory(p, &p->bias, &bias, DNNL_MEMORY_NONE));
    return make_memory(p, &p->c, &c, DNNL_MEMORY_NONE);
}

smp_status smp_math_gemm16_create(const smp_gemm16 *shape, smp_math_gemm16 **out)
{
    smp_math_gemm16 *p = calloc(1, sizeof(*p));
    if (!p)
        return smp_fail_memory(sizeof(*p));
    const int threads = smp__dnnl_limit_threads();
    smp_status status = make_gemm(p, shape);
    omp_set_num_threads(threads);
    if (status != SMP_OK) {
        smp_math_gemm16_destroy(p);
        return status;
    }
    *out = p;
    return SMP_OK;
}

smp_status smp_math_gemm16_run(smp_math_gemm16 *p, const void *a, const void *b, const float *bias,
                               void *c)
{
    dnnl_exec_arg_t args[5];
    int n = 0;
    args[n++] = (dnnl_exec_arg_t){DNNL_ARG_SRC, p->a};
    args[n++] = (dnnl_exec_arg_t){DNNL_ARG_WEIGHTS, p->b};
    args[n++] = (dnnl_exec_arg_t){DNNL_ARG_DST, p->c};
    dnnl_memory_set_data_handle(p->a, (void *)a);
    dnnl_memory_set_data_handle(p->b, (void *)b);
    dnnl_memory_set_data_handle(p->c, c);
    if (p->bias) {
        dnnl_memory_set_data_handle(p->bias, (void *)bias);
        args[n++] = (dnnl_exec_arg_t){DNNL_ARG_BIAS, p->bias};
    }
    if (p->scratch)
        args[n++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, p->scratch};
    const int threads = smp__dnnl_limit_threads();
    dnnl_status_t status = dnnl_primitive_execute(p->primitive, p->stream, n, args);
    omp_set_num_threads(threads);
    return smp__dnnl_check(status, "a bf16 product");
}
