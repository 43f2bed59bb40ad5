/* GEMM plans on cuBLASLt.
 *
 * The library reads memory column by column, in which a row-major matrix is its own transpose with
 * the same leading dimension. So C = op(A) op(B) is asked for as C^T = op(B)^T op(A)^T: the factors
 * change places and keep their transposes, and nothing is copied. Its bias runs along the rows of
 * C^T, which are the columns of C; its sums over k of the second factor are those of the rows of
 * op(A), of which they have C's type and are neither scaled nor added to what is there.
 *
 * Results have the same bits in every run. The library's heuristic gives algorithms for the shape,
 * the device and buffers aligned to 64 bytes (or as the shape says), once for each product; they
 * stand in the device's list (graph/math/gemm_algorithms.h), which says which one is taken, and
 * after them that the epilogue may be apart. Where an algorithm splits k, the parts are kept in the
 * workspace in fp32 and added by a second kernel in one order; excluded is the addition in the
 * output buffer, whose order is that in which blocks finish, and parts in an output type narrower
 * than fp32, which would be rounded more than once.
 *
 * An algorithm's text is what people may want to know of it, and after a colon the bytes of the
 * library's description, without the zeroes at the end: they may be stored, says its header
 * (cublasLtMatmulAlgo_t), for the same version of the library. They are checked when they come
 * back.
 *
 * Where messages travel beside, the library is told how many multiprocessors they leave. That
 * decides how blocks are shared out, no algorithm: it is not asked for with that number, or bits
 * would depend on how a model is split. */
#include "graph/cuda/cuda_kernel.cuh"

#include "graph/cuda/cuda_gemm.cuh"

#include <initializer_list>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/cuda/cuda_blas.h"
extern "C" {
#include "graph/base/text.h"
#include "graph/math/gemm_algorithms.h"
}

struct smp__gemm {
    smp__gemm_shape shape;
    smp_gemm *product; /* the list's */
    smp__gemm *apart;  /* with the last part of the epilogue left out; NULL: there is none */
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t first, second, result; /* B, A and C, as columns */
    int chosen, version;                          /* of the product, that `algorithm` is */
    cublasLtMatmulAlgo_t algorithm;
    int64_t workspace_bytes;
};

#define BLAS_TRY(name, ...)                                                                        \
    do {                                                                                           \
        cublasStatus_t code = smp__blas.name(__VA_ARGS__);                                         \
        if (code != CUBLAS_STATUS_SUCCESS)                                                         \
            return smp__blas_check(code, #name);                                                   \
    } while (0)

enum { ALIGNMENT = 64, CANDIDATES = 8 };

static bool has_bias(const smp__gemm_shape *s)
{
    return s->epilogue == SMP__GEMM_BIAS || s->epilogue == SMP__GEMM_GELU_BIAS;
}

static bool has_gelu(const smp__gemm_shape *s)
{
    return s->epilogue == SMP__GEMM_GELU || s->epilogue == SMP__GEMM_GELU_BIAS;
}

static bool is_gradient(const smp__gemm_shape *s)
{
    return s->epilogue == SMP__GEMM_GELU_GRADIENT || s->epilogue == SMP__GEMM_BIAS_GRADIENT;
}

/* [m,n], of GELU's input. */
static bool has_aux(const smp__gemm_shape *s)
{
    return has_gelu(s) || s->epilogue == SMP__GEMM_GELU_GRADIENT;
}

static cudaDataType_t data_type(smp_dtype type)
{
    return type == SMP_BF16 ? CUDA_R_16BF : type == SMP_F16 ? CUDA_R_16F : CUDA_R_32F;
}

template <typename T>
static smp_status set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                      T value)
{
    BLAS_TRY(cublasLtMatmulDescSetAttribute, operation, attribute, &value, sizeof value);
    return SMP_OK;
}

template <typename T>
static smp_status set(cublasLtMatmulPreference_t wish,
                      cublasLtMatmulPreferenceAttributes_t attribute, T value)
{
    BLAS_TRY(cublasLtMatmulPreferenceSetAttribute, wish, attribute, &value, sizeof value);
    return SMP_OK;
}

template <typename T>
static smp_status set(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute,
                      T value)
{
    BLAS_TRY(cublasLtMatrixLayoutSetAttribute, layout, attribute, &value, sizeof value);
    return SMP_OK;
}

/* Of A, B or C (0, 1, 2). */
static cudaDataType_t matrix_type(const smp__gemm_shape *s, int which)
{
    if (which < 2 && s->fp8 != SMP__GEMM_NO_FP8)
        return which == 0 && s->fp8 == SMP__GEMM_FP8_GRADIENT ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3;
    return data_type(which == 2 ? s->out : s->in);
}

/* Row-major matrices of `rows` rows: A, B or C (0, 1, 2) of the products. */
static smp_status make_layout(const smp__gemm_shape *s, int which, int64_t rows, int64_t columns,
                              cublasLtMatrixLayout_t *out)
{
    const int64_t row_stride[] = {s->lda, s->ldb, s->ldc};
    BLAS_TRY(cublasLtMatrixLayoutCreate, out, matrix_type(s, which), (uint64_t)columns,
             (uint64_t)rows, row_stride[which]);
    if (s->count <= 1)
        return SMP_OK;
    SMP_TRY(set(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, (int32_t)s->count));
    return set(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, s->step[which]);
}

static smp_status set_pointers(const smp__gemm *gemm, const void *bias, const void *aux)
{
    if (has_bias(&gemm->shape))
        SMP_TRY(set(gemm->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias));
    if (gemm->shape.epilogue == SMP__GEMM_BIAS_GRADIENT)
        SMP_TRY(set(gemm->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, aux));
    if (has_aux(&gemm->shape))
        SMP_TRY(set(gemm->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux));
    return SMP_OK;
}

smp_status smp__gemm_scale(smp__gemm *gemm, const float *a, const float *b)
{
    SMP_TRY(set(gemm->operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, b));
    SMP_TRY(set(gemm->operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, a));
    return gemm->apart ? smp__gemm_scale(gemm->apart, a, b) : SMP_OK;
}

static smp_status set_fp8(smp__gemm *gemm)
{
    const float *aligned = reinterpret_cast<const float *>((uintptr_t)ALIGNMENT);
    const int8_t fast = gemm->shape.fp8 == SMP__GEMM_FP8;
    SMP_TRY(set(gemm->operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast));
    SMP_TRY(set(gemm->operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, aligned));
    return set(gemm->operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, aligned);
}

static smp_status make_operation(const smp_cuda *cuda, smp__gemm *gemm)
{
    static const cublasLtEpilogue_t epilogue[] = {
        CUBLASLT_EPILOGUE_DEFAULT,  /* SMP__GEMM_PLAIN */
        CUBLASLT_EPILOGUE_BIAS,     /* SMP__GEMM_BIAS */
        CUBLASLT_EPILOGUE_GELU_AUX, /* SMP__GEMM_GELU */
        CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU,
        CUBLASLT_EPILOGUE_BGRADB, /* of the library's second factor, which is A */
    };
    const smp__gemm_shape *s = &gemm->shape;
    const bool tf32 = s->in == SMP_F32 && cuda->precision == SMP_PRECISION_TF32;
    BLAS_TRY(cublasLtMatmulDescCreate, &gemm->operation,
             tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const cublasOperation_t first = s->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = s->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    SMP_TRY(set(gemm->operation, CUBLASLT_MATMUL_DESC_TRANSA, (int32_t)first));
    SMP_TRY(set(gemm->operation, CUBLASLT_MATMUL_DESC_TRANSB, (int32_t)second));
    SMP_TRY(set(gemm->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, (uint32_t)epilogue[s->epilogue]));
    if (has_aux(s))
        SMP_TRY(set(gemm->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, s->ldc));
    if (s->fp8 != SMP__GEMM_NO_FP8)
        SMP_TRY(set_fp8(gemm));
    /* The heuristic reads the alignment off these two, and nothing else. */
    const void *aligned = reinterpret_cast<const void *>((uintptr_t)ALIGNMENT);
    return set_pointers(gemm, aligned, aligned);
}

static smp_status make_layouts(smp__gemm *gemm)
{
    const smp__gemm_shape *s = &gemm->shape;
    SMP_TRY(make_layout(s, 1, s->trans_b ? s->n : s->k, s->trans_b ? s->k : s->n, &gemm->first));
    SMP_TRY(make_layout(s, 0, s->trans_a ? s->k : s->m, s->trans_a ? s->m : s->k, &gemm->second));
    return make_layout(s, 2, s->m, s->n, &gemm->result);
}

/* What may add up the parts of a product whose k is split. */
static uint32_t ordered_reductions(const smp__gemm_shape *s)
{
    const uint32_t all = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    return s->out == SMP_F32 ? all | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE : all;
}

static smp_status set_wishes(const smp_cuda *cuda, const smp__gemm_shape *s,
                             cublasLtMatmulPreference_t wish)
{
    static const cublasLtMatmulPreferenceAttributes_t aligned[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const int64_t alignment = s->alignment > 0 ? s->alignment : (int64_t)ALIGNMENT;
    SMP_TRY(set(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (uint64_t)cuda->workspace_bytes));
    SMP_TRY(set(wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, ordered_reductions(s)));
    for (int i = 0; i < 4; i++)
        SMP_TRY(set(wish, aligned[i], (uint32_t)alignment));
    return SMP_OK;
}

template <typename T>
static T config(const cublasLtMatmulAlgo_t *algorithm, cublasLtMatmulAlgoConfigAttributes_t what)
{
    T value = 0;
    size_t written = 0;
    const cublasStatus_t code = smp__blas.cublasLtMatmulAlgoConfigGetAttribute(
        algorithm, what, &value, sizeof value, &written);
    return code == CUBLAS_STATUS_SUCCESS ? value : 0;
}

static void write_algorithm(const cublasLtMatmulAlgo_t *a, char text[SMP_ALGORITHM_BYTES])
{
    const unsigned char *byte = reinterpret_cast<const unsigned char *>(a);
    size_t n = sizeof *a;
    int at =
        snprintf(text, SMP_ALGORITHM_BYTES,
                 "id %d tile %u stages %u split %d: ", config<int32_t>(a, CUBLASLT_ALGO_CONFIG_ID),
                 config<uint32_t>(a, CUBLASLT_ALGO_CONFIG_TILE_ID),
                 config<uint32_t>(a, CUBLASLT_ALGO_CONFIG_STAGES_ID),
                 config<int32_t>(a, CUBLASLT_ALGO_CONFIG_SPLITK_NUM));
    while (n > 1 && byte[n - 1] == 0)
        n--;
    for (size_t i = 0; i < n; i++, at += 2)
        snprintf(text + at, (size_t)(SMP_ALGORITHM_BYTES - at), "%02x", byte[i]);
}

static bool read_algorithm(const char *text, cublasLtMatmulAlgo_t *out)
{
    static const char digits[] = "0123456789abcdef";
    unsigned char *byte = reinterpret_cast<unsigned char *>(out);
    const char *hex = strstr(text, ": ");
    memset(out, 0, sizeof *out);
    if (!hex || strlen(hex + 2) > 2 * sizeof *out || strlen(hex + 2) % 2 != 0)
        return false;
    for (hex += 2; *hex; hex += 2) {
        const char *high = strchr(digits, hex[0]), *low = strchr(digits, hex[1]);
        if (!high || !low)
            return false;
        *byte++ = (unsigned char)(16 * (high - digits) + (low - digits));
    }
    return true;
}

static smp_status ask(const smp_cuda *cuda, smp__gemm *gemm, cublasLtMatmulPreference_t wish)
{
    cublasLtMatmulHeuristicResult_t result[CANDIDATES];
    char text[SMP_ALGORITHM_BYTES];
    int n = 0;
    SMP_TRY(set_wishes(cuda, &gemm->shape, wish));
    cublasStatus_t code = smp__blas.cublasLtMatmulAlgoGetHeuristic(
        (cublasLtHandle_t)cuda->blas, gemm->operation, gemm->first, gemm->second, gemm->result,
        gemm->result, wish, CANDIDATES, result, &n);
    if (code == CUBLAS_STATUS_NOT_SUPPORTED)
        return SMP_OK;
    SMP_TRY(smp__blas_check(code, "cublasLtMatmulAlgoGetHeuristic"));
    for (int i = 0; i < n; i++)
        if (result[i].state == CUBLAS_STATUS_SUCCESS) {
            write_algorithm(&result[i].algo, text);
            smp_gemm_add(gemm->product, text);
        }
    return SMP_OK;
}

static smp_status fail_empty(const smp_cuda *cuda, const smp__gemm *gemm)
{
    return smp_fail(SMP_ERR_FAILED,
                    "cuBLASLt has no algorithm for the product %s, with %lld bytes of workspace",
                    gemm->product->name, (long long)cuda->workspace_bytes);
}

/* The list of the product, if it is not there yet. */
static smp_status list_algorithms(const smp_cuda *cuda, smp__gemm *gemm)
{
    cublasLtMatmulPreference_t wish;
    if (gemm->product->here)
        return SMP_OK;
    BLAS_TRY(cublasLtMatmulPreferenceCreate, &wish);
    smp_status status = ask(cuda, gemm, wish);
    smp__blas.cublasLtMatmulPreferenceDestroy(wish);
    SMP_TRY(status);
    if (gemm->apart)
        smp_gemm_add(gemm->product, SMP_GEMM_APART);
    if (gemm->product->n_algorithm == 0)
        return fail_empty(cuda, gemm);
    gemm->product->here = true;
    return SMP_OK;
}

static const char *factor_types(const smp_cuda *cuda, const smp__gemm_shape *s)
{
    if (s->fp8 != SMP__GEMM_NO_FP8)
        return s->fp8 == SMP__GEMM_FP8 ? "e4m3" : "e5m2 e4m3";
    const bool tf32 = s->in == SMP_F32 && cuda->precision == SMP_PRECISION_TF32;
    return tf32 ? "tf32" : smp_dtype_names[s->in];
}

/* "nt 512x3072x768 bf16 bf16 gelu_bias": transposes, m x n x k, types, epilogue; and what is not
 * plain: row strides, how many products at what distances, alignment. */
static smp_status find_product(const smp_cuda *cuda, smp__gemm *gemm)
{
    static const char *const epilogue[] = {"",           " bias",          " gelu",
                                           " gelu_bias", " gelu_gradient", " bias_gradient"};
    const smp__gemm_shape *s = &gemm->shape;
    smp_text name = {};
    smp_text_append(&name, "%c%c %lldx%lldx%lld %s %s%s", s->trans_a ? 't' : 'n',
                    s->trans_b ? 't' : 'n', (long long)s->m, (long long)s->n, (long long)s->k,
                    factor_types(cuda, s), smp_dtype_names[s->out], epilogue[s->epilogue]);
    if (s->lda != (s->trans_a ? s->m : s->k) || s->ldb != (s->trans_b ? s->k : s->n) ||
        s->ldc != s->n)
        smp_text_append(&name, " rows %lld %lld %lld", (long long)s->lda, (long long)s->ldb,
                        (long long)s->ldc);
    if (s->count > 1)
        smp_text_append(&name, " times %lld steps %lld %lld %lld", (long long)s->count,
                        (long long)s->step[0], (long long)s->step[1], (long long)s->step[2]);
    if (s->alignment > 0 && s->alignment != ALIGNMENT)
        smp_text_append(&name, " aligned %lld", (long long)s->alignment);
    smp_status status = name.failed ? smp_fail_memory(SMP_GEMM_NAME_BYTES) : SMP_OK;
    if (status == SMP_OK && name.length >= SMP_GEMM_NAME_BYTES)
        status = smp_fail(SMP_ERR_FAILED, "the name of a product is too long: %s", name.data);
    if (status == SMP_OK)
        status = smp_gemms_get(cuda->products, name.data, &gemm->product);
    smp_text_free(&name);
    return status;
}

static smp_status make_apart(const smp_cuda *cuda, smp__gemm *gemm)
{
    smp__gemm_shape shape = gemm->shape;
    if (shape.epilogue == SMP__GEMM_PLAIN)
        return SMP_OK;
    shape.epilogue = shape.epilogue == SMP__GEMM_GELU_BIAS ? SMP__GEMM_BIAS : SMP__GEMM_PLAIN;
    return smp__gemm_create(cuda, &shape, &gemm->apart);
}

static smp_status fill(const smp_cuda *cuda, smp__gemm *gemm)
{
    SMP_TRY(find_product(cuda, gemm));
    SMP_TRY(make_apart(cuda, gemm));
    SMP_TRY(make_operation(cuda, gemm));
    SMP_TRY(make_layouts(gemm));
    SMP_TRY(list_algorithms(cuda, gemm));
    if (cuda->taken_multiprocessors > 0)
        SMP_TRY(set(gemm->operation, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET,
                    (int32_t)(cuda->multiprocessors - cuda->taken_multiprocessors)));
    return SMP_OK;
}

smp_status smp__gemm_create(const smp_cuda *cuda, const smp__gemm_shape *shape, smp__gemm **out)
{
    smp__gemm *gemm = static_cast<smp__gemm *>(calloc(1, sizeof *gemm));
    *out = NULL;
    if (!gemm)
        return smp_fail_memory(sizeof *gemm);
    gemm->shape = *shape;
    gemm->chosen = -1;
    smp_status status = fill(cuda, gemm);
    if (status == SMP_OK)
        *out = gemm;
    else
        smp__gemm_destroy(gemm);
    return status;
}

void smp__gemm_destroy(smp__gemm *gemm)
{
    if (!gemm)
        return;
    smp__gemm_destroy(gemm->apart);
    if (gemm->operation)
        smp__blas.cublasLtMatmulDescDestroy(gemm->operation);
    for (cublasLtMatrixLayout_t layout : {gemm->first, gemm->second, gemm->result})
        if (layout)
            smp__blas.cublasLtMatrixLayoutDestroy(layout);
    free(gemm);
}

bool smp__gemm_is_apart(const smp__gemm *gemm)
{
    return smp_gemm_is_apart(gemm->product);
}

/* A device that has failed refuses everything, and says so here. */
smp_status smp__gemm_refuse(const smp_cuda *cuda, smp_gemm *product, const char *library,
                            const char *why)
{
    (void)cudaGetLastError(); /* not one of a kernel */
    const cudaError_t device = cudaStreamQuery(cuda->stream);
    (void)cudaGetLastError();
    if (device != cudaSuccess && device != cudaErrorNotReady)
        return smp__cuda_check(device, "a matrix product");
    if (!product->refusal[0])
        snprintf(product->refusal, sizeof product->refusal, "%s", why);
    if (cuda->products->settled || product->chosen + 1 == product->n_algorithm)
        return smp_fail(SMP_ERR_FAILED, "product %s: %s refuses algorithm %d of %d (%s): %s",
                        product->name, library, product->chosen + 1, product->n_algorithm,
                        product->algorithm[product->chosen], why);
    product->chosen++;
    return SMP_OK;
}

/* The algorithm that is chosen, out of its text; *why: it cannot be taken, or NULL. */
static void take_algorithm(const smp_cuda *cuda, smp__gemm *gemm, const char **why)
{
    const smp_gemm *product = gemm->product;
    cublasLtMatmulHeuristicResult_t result;
    *why = NULL;
    if (gemm->chosen == product->chosen && gemm->version == product->version)
        return;
    gemm->chosen = -1;
    if (!read_algorithm(product->algorithm[product->chosen], &gemm->algorithm)) {
        *why = "the text is no algorithm";
        return;
    }
    const uint32_t scheme =
        config<uint32_t>(&gemm->algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
    const cublasStatus_t code = smp__blas.cublasLtMatmulAlgoCheck(
        (cublasLtHandle_t)cuda->blas, gemm->operation, gemm->first, gemm->second, gemm->result,
        gemm->result, &gemm->algorithm, &result);
    if (code != CUBLAS_STATUS_SUCCESS || result.state != CUBLAS_STATUS_SUCCESS)
        *why =
            smp__blas.cublasLtGetStatusString(code != CUBLAS_STATUS_SUCCESS ? code : result.state);
    else if (scheme & ~ordered_reductions(&gemm->shape))
        *why = "its sums have no order";
    else if ((int64_t)result.workspaceSize > cuda->workspace_bytes)
        *why = "it needs more workspace than there is";
    if (*why)
        return;
    gemm->workspace_bytes = (int64_t)result.workspaceSize;
    gemm->chosen = product->chosen;
    gemm->version = product->version;
}

/* C = beta C + bias, before the product is added. */
template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    spread_bias(const T *bias, float beta, T *c, int64_t m, int64_t n, int64_t ldc)
{
    for (int64_t i = smp_thread(); i < m * n; i += smp_threads()) {
        T *at = c + i / n * ldc + i % n;
        *at = beta == 0.0f ? bias[i % n]
                           : smp_from<T>(beta * smp_float(*at) + smp_float(bias[i % n]));
    }
}

template <typename T>
static smp_status launch_spread(const smp_cuda *cuda, const smp__gemm_shape *s, const void *bias,
                                float beta, void *c)
{
    SMP_LAUNCH(spread_bias<T>, smp_grid(cuda, s->m * s->n), SMP_BLOCK, 0, cuda->stream,
               static_cast<const T *>(bias), beta, static_cast<T *>(c), s->m, s->n, s->ldc);
    return smp__cuda_launched("bias of a product");
}

static smp_status run_apart(const smp_cuda *cuda, smp__gemm *gemm, float alpha, const void *a,
                            const void *b, float beta, void *c, const void *bias, void *aux)
{
    gemm->product->runs++;
    if (has_gelu(&gemm->shape))
        return smp__gemm_run(cuda, gemm->apart, alpha, a, b, 0, aux, bias, NULL);
    if (is_gradient(&gemm->shape))
        return smp__gemm_run(cuda, gemm->apart, alpha, a, b, beta, c, NULL, NULL);
    SMP_TRY(SMP_AS(gemm->shape.out, launch_spread, cuda, &gemm->shape, bias, beta, c));
    return smp__gemm_run(cuda, gemm->apart, alpha, a, b, 1, c, NULL, NULL);
}

smp_status smp__gemm_run(const smp_cuda *cuda, smp__gemm *gemm, float alpha, const void *a,
                         const void *b, float beta, void *c, const void *bias, void *aux)
{
    const char *why;
    SMP_TRY(set_pointers(gemm, bias, aux));
    while (!smp__gemm_is_apart(gemm)) {
        cublasStatus_t code = CUBLAS_STATUS_SUCCESS;
        take_algorithm(cuda, gemm, &why);
        if (!why)
            code = smp__blas.cublasLtMatmul((cublasLtHandle_t)cuda->blas, gemm->operation, &alpha,
                                            b, gemm->first, a, gemm->second, &beta, c, gemm->result,
                                            c, gemm->result, &gemm->algorithm, cuda->workspace,
                                            (size_t)gemm->workspace_bytes, cuda->stream);
        if (!why && code == CUBLAS_STATUS_SUCCESS) {
            gemm->product->runs++;
            return SMP_OK;
        }
        SMP_TRY(smp__gemm_refuse(cuda, gemm->product, "cuBLASLt",
                                 why ? why : smp__blas.cublasLtGetStatusString(code)));
    }
    return run_apart(cuda, gemm, alpha, a, b, beta, c, bias, aux);
}
