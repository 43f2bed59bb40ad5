/* What tests of GPU code share: a device's context, and arrays of numbers that lie on the device
 * and are known to the host. For a GPU and for the emulator. */
#ifndef SMP_TESTS_DEVICE_ARRAY_H
#define SMP_TESTS_DEVICE_ARRAY_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/base/fp16.h"
#include "graph/base/random.h"
#include "graph/model/op.h"
#include "graph/cuda/cuda.h"
#include "graph/cuda/cuda_blas.h"
#include "graph/math/gemm_algorithms.h"

enum { SKIPPED = 77 };

static smp_gemms products;
static smp_cuda cuda;
static smp__choices choices; /* its own */

static inline void check(smp_status status)
{
    if (status != SMP_OK)
        fail_msg("%s", smp_last_error());
}

static inline bool there_is_a_device(void)
{
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess && n > 0;
}

/* For cmocka_run_group_tests. */
static inline int open_device(void **state)
{
    (void)state;
    cudaStream_t stream;
    cublasLtHandle_t blas;
    struct cudaDeviceProp properties;
    cuda = (smp_cuda){
        .products = &products, .workspace_bytes = 4 << 20, .multiprocessors = 4, .capability = 90};
    if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess)
        return -1;
    cuda.shared_bytes = (int)properties.sharedMemPerBlockOptin;
    if (smp__blas_open() != SMP_OK || cudaStreamCreate(&stream) != cudaSuccess ||
        smp__blas.cublasLtCreate(&blas) != CUBLAS_STATUS_SUCCESS ||
        cudaMalloc(&cuda.workspace, (size_t)cuda.workspace_bytes) != cudaSuccess)
        return -1;
    cuda.stream = stream;
    cuda.blas = blas;
    cuda.choices = &choices;
    return 0;
}

static inline int close_device(void **state)
{
    (void)state;
    smp__choices_free(&choices);
    smp_gemms_free(&products);
    bool closed = smp__blas.cublasLtDestroy(cuda.blas) == CUBLAS_STATUS_SUCCESS &&
                  cudaFree(cuda.workspace) == cudaSuccess &&
                  cudaStreamDestroy(cuda.stream) == cudaSuccess;
    return closed ? 0 : -1;
}

typedef struct array {
    smp_dtype type;
    int64_t n;
    float *host;
    char *base; /* allocation */
    void *data; /* 64-byte aligned */
} array;

static inline uint16_t bf16_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return isnan(x) ? 0x7fff : (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

static inline float bf16_value(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Of SMP_BF16 and SMP_F16. */
static inline uint16_t half_bits(smp_dtype half, float x)
{
    return half == SMP_F16 ? smp_fp16_narrow(x) : bf16_bits(x);
}

static inline float half_value(smp_dtype half, uint16_t bits)
{
    return half == SMP_F16 ? smp_fp16_widen(bits) : bf16_value(bits);
}

static inline void copy(void *target, const void *source, size_t bytes, enum cudaMemcpyKind kind)
{
    assert_int_equal(cudaStreamSynchronize(cuda.stream), cudaSuccess);
    assert_int_equal(cudaMemcpy(target, source, bytes, kind), cudaSuccess);
}

static inline void to_device(const array *x)
{
    size_t bytes = (size_t)(x->n * smp_dtype_bytes(x->type));
    uint16_t *half = malloc((size_t)x->n * sizeof *half);
    assert_non_null(half);
    for (int64_t i = 0; i < x->n; i++)
        half[i] = half_bits(x->type, x->host[i]);
    copy(x->data, smp_dtype_is_half(x->type) ? (const void *)half : x->host, bytes,
         cudaMemcpyHostToDevice);
    free(half);
}

static inline void from_device(const array *x)
{
    size_t bytes = (size_t)(x->n * smp_dtype_bytes(x->type));
    copy(x->host, x->data, bytes, cudaMemcpyDeviceToHost);
    if (smp_dtype_is_half(x->type))
        for (int64_t i = x->n - 1; i >= 0; i--) /* in place: the floats come after the halves */
            x->host[i] = half_value(x->type, ((const uint16_t *)x->host)[i]);
}

/* Uniform in [-1, 1), as the type can hold them; NaN if seed is 0. `shift`: cache lines. */
static inline array make(smp_dtype type, int64_t n, uint64_t seed, int shift)
{
    array x = {type, n, malloc((size_t)n * sizeof(float)), NULL, NULL};
    assert_non_null(x.host);
    for (int64_t i = 0; i < n; i++) {
        double unit = (double)(smp_random_mix((seed << 40) + (uint64_t)i) >> 11) * 0x1p-52 - 1;
        x.host[i] = seed == 0 ? NAN : (float)unit;
        if (smp_dtype_is_half(type))
            x.host[i] = half_value(type, half_bits(type, x.host[i]));
    }
    assert_int_equal(cudaMalloc((void **)&x.base, (size_t)(n * 4 + 64 * shift)), cudaSuccess);
    x.data = x.base + 64 * shift;
    to_device(&x);
    return x;
}

static inline void drop(array *x)
{
    assert_int_equal(cudaStreamSynchronize(cuda.stream), cudaSuccess);
    assert_int_equal(cudaFree(x->base), cudaSuccess);
    free(x->host);
    *x = (array){0};
}

#endif
