/* Products of the emulated cuBLASLt: in fp32 by the CPU's GEMM, rounded once. */
#include <cmath>
#include <cstring>
#include <vector>

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "emulate_blas.h"

extern "C" {
#include "graph/math/fp8.h"
#include "graph/math/math.h"
}

static float load(const void *memory, cudaDataType_t type, int64_t i)
{
    if (type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2)
        return smp_fp8_decode(type == CUDA_R_8F_E4M3 ? SMP_E4M3 : SMP_E5M2,
                              static_cast<const uint8_t *>(memory)[i]);
    if (type == CUDA_R_16BF)
        return __bfloat162float(static_cast<const __nv_bfloat16 *>(memory)[i]);
    if (type == CUDA_R_16F)
        return __half2float(static_cast<const __half *>(memory)[i]);
    return static_cast<const float *>(memory)[i];
}

static void store(void *memory, cudaDataType_t type, int64_t i, float x)
{
    if (type == CUDA_R_16BF)
        static_cast<__nv_bfloat16 *>(memory)[i] = __float2bfloat16_rn(x);
    else if (type == CUDA_R_16F)
        static_cast<__half *>(memory)[i] = __float2half_rn(x);
    else
        static_cast<float *>(memory)[i] = x;
}

/* To 10 bits of mantissa, to nearest, ties away from zero. */
static float round_to_tf32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7f800000u) != 0x7f800000u)
        bits = (bits + 0x1000u) & ~0x1fffu;
    memcpy(&x, &bits, sizeof bits);
    return x;
}

/* A copy in fp32 without gaps between the columns. */
static std::vector<float> factor(const void *memory, const emulate_blas_layout &x, int64_t index,
                                 bool tf32)
{
    std::vector<float> copy((size_t)(x.rows * x.columns));
    for (int64_t c = 0; c < x.columns; c++)
        for (int64_t r = 0; r < x.rows; r++) {
            float value = load(memory, x.type, index * x.stride + c * x.ld + r);
            copy[(size_t)(c * x.rows + r)] = tf32 ? round_to_tf32(value) : value;
        }
    return copy;
}

static float gelu(float x)
{
    return 0.5f * x * (1.0f + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
}

static float gelu_slope(float x)
{
    const float t = std::tanh(0.7978845608f * (x + 0.044715f * x * x * x));
    return 0.5f * (1.0f + t) +
           0.5f * x * (1.0f - t * t) * 0.7978845608f * (1.0f + 0.134145f * x * x);
}

static void finish(const emulate_blas_call &call, const std::vector<float> &product, int64_t index)
{
    const emulate_blas_problem &p = call.p;
    const float scale = p.is_fp8() ? *p.operation.scale_a * *p.operation.scale_b : 1.0f;
    const cudaDataType_t type = p.d.type;
    for (int64_t column = 0; column < p.d.columns; column++)
        for (int64_t row = 0; row < p.d.rows; row++) {
            const int64_t at = index * p.d.stride + column * p.d.ld + row;
            float x = call.alpha * scale * product[(size_t)(column * p.d.rows + row)];
            if (call.beta != 0.0f)
                x += call.beta * load(call.c, type, at);
            if (p.has_bias())
                x += load(p.operation.bias, type, row);
            if (p.has_gelu()) {
                store(p.operation.aux, type, column * p.operation.aux_ld + row, x);
                x = gelu(x);
            }
            if (p.has_slope())
                x *= gelu_slope(load(p.operation.aux, type, column * p.operation.aux_ld + row));
            store(call.d, type, at, x);
        }
}

/* The same memory read by rows holds the transposes: D^T = op(B)^T op(A)^T. Each part of k is added
 * to the sum of those before it. */
static void multiply(const emulate_blas_call &call, const float *fa, const float *fb,
                     std::vector<float> *product)
{
    const emulate_blas_problem &p = call.p;
    const bool ta = p.operation.trans_a == CUBLAS_OP_T, tb = p.operation.trans_b == CUBLAS_OP_T;
    const int64_t each = (p.k() + call.parts - 1) / call.parts;
    for (int64_t k = 0; k < p.k(); k += each)
        EMULATE_BLAS_REQUIRE(
            smp_math_gemm(tb, ta, p.d.columns, p.d.rows, k + each < p.k() ? each : p.k() - k, 1,
                          fb + (tb ? k * p.b.rows : k), p.b.rows, fa + (ta ? k : k * p.a.rows),
                          p.a.rows, k > 0, product->data(), p.d.rows) == SMP_OK,
            "%s", smp_last_error());
}

/* The sums over k of each column of op(B), part by part as the product. */
static void sum_columns(const emulate_blas_call &call, const float *fb)
{
    const emulate_blas_problem &p = call.p;
    const bool tb = p.operation.trans_b == CUBLAS_OP_T;
    const int64_t each = (p.k() + call.parts - 1) / call.parts;
    for (int64_t column = 0; column < p.d.columns; column++) {
        float sum = 0;
        for (int64_t begin = 0; begin < p.k(); begin += each) {
            float part = 0;
            for (int64_t k = begin; k < begin + each && k < p.k(); k++)
                part += fb[tb ? k * p.b.rows + column : column * p.b.rows + k];
            sum += part;
        }
        store(p.operation.bias, p.d.type, column, sum);
    }
}

void emulate_blas_multiply(const emulate_blas_call &call)
{
    const emulate_blas_problem &p = call.p;
    const bool tf32 = p.operation.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    std::vector<float> product((size_t)(p.d.rows * p.d.columns));
    if (call.workspace_bytes > 0)
        memset(call.workspace, 0xff, call.workspace_bytes);
    for (int64_t i = 0; i < p.d.batch; i++) {
        const std::vector<float> fa = factor(call.a, p.a, i, tf32),
                                 fb = factor(call.b, p.b, i, tf32);
        multiply(call, fa.data(), fb.data(), &product);
        finish(call, product, i);
        if (p.has_gradient())
            sum_columns(call, fb.data());
    }
}
