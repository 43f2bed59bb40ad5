/* GEMM plans on cuBLASLt.
 *
 * The library reads memory column by column, in which a row-major matrix is its own transpose with
 * the same leading dimension. So C = op(A) op(B) is asked for as C^T = op(B)^T op(A)^T: the factors
 * change places and keep their transposes, and nothing is copied. Its bias runs along the rows of
 * C^T, which are the columns of C.
 *
 * Results have the same bits in every run. The algorithm is the first that the library's heuristic
 * gives for the shape, the device and buffers aligned to 64 bytes (or as the shape says). Where it
 * splits k, the parts are kept in the workspace in fp32 and added by a second kernel in one order;
 * excluded is the addition in the output buffer, whose order is that in which blocks finish, and
 * parts in an output type narrower than fp32, which would be rounded more than once. */
#include "graph/cuda/cuda_gemm.cuh"

#include <initializer_list>

#include <stdlib.h>

#include "graph/cuda/cuda_blas.h"

struct smp__gemm {
    smp__gemm_shape shape;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t first, second, result; /* B, A and C, as columns */
    cublasLtMatmulAlgo_t algorithm;
    int64_t workspace_bytes;
};

#define BLAS_TRY(name, ...)                                                                        \
    do {                                                                                           \
        cublasStatus_t code = smp__blas.name(__VA_ARGS__);                                         \
        if (code != CUBLAS_STATUS_SUCCESS)                                                         \
            return smp__blas_check(code, #name);                                                   \
    } while (0)

enum { ALIGNMENT = 64, CANDIDATES = 4 };

static bool has_bias(const smp__gemm_shape *s)
{
    return s->epilogue == SMP__GEMM_BIAS || s->epilogue == SMP__GEMM_GELU_BIAS;
}

static bool has_aux(const smp__gemm_shape *s)
{
    return s->epilogue == SMP__GEMM_GELU || s->epilogue == SMP__GEMM_GELU_BIAS;
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

/* Row-major matrices of `rows` rows: A, B or C (0, 1, 2) of the products. */
static smp_status make_layout(const smp__gemm_shape *s, int which, int64_t rows, int64_t columns,
                              cublasLtMatrixLayout_t *out)
{
    const int64_t row_stride[] = {s->lda, s->ldb, s->ldc};
    BLAS_TRY(cublasLtMatrixLayoutCreate, out, data_type(which == 2 ? s->out : s->in),
             (uint64_t)columns, (uint64_t)rows, row_stride[which]);
    if (s->count <= 1)
        return SMP_OK;
    SMP_TRY(set(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, (int32_t)s->count));
    return set(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, s->step[which]);
}

static smp_status set_pointers(const smp__gemm *gemm, const void *bias, const void *aux)
{
    if (has_bias(&gemm->shape))
        SMP_TRY(set(gemm->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias));
    if (has_aux(&gemm->shape))
        SMP_TRY(set(gemm->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux));
    return SMP_OK;
}

static smp_status make_operation(const smp_cuda *cuda, smp__gemm *gemm)
{
    static const cublasLtEpilogue_t epilogue[] = {
        CUBLASLT_EPILOGUE_DEFAULT,  /* SMP__GEMM_PLAIN */
        CUBLASLT_EPILOGUE_BIAS,     /* SMP__GEMM_BIAS */
        CUBLASLT_EPILOGUE_GELU_AUX, /* SMP__GEMM_GELU */
        CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
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

static smp_status set_wishes(const smp_cuda *cuda, const smp__gemm_shape *s,
                             cublasLtMatmulPreference_t wish)
{
    static const cublasLtMatmulPreferenceAttributes_t aligned[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const int64_t alignment = s->alignment > 0 ? s->alignment : (int64_t)ALIGNMENT;
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    if (s->out == SMP_F32)
        reductions |= CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    SMP_TRY(set(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (uint64_t)cuda->workspace_bytes));
    SMP_TRY(set(wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions));
    for (int i = 0; i < 4; i++)
        SMP_TRY(set(wish, aligned[i], (uint32_t)alignment));
    return SMP_OK;
}

static smp_status ask(const smp_cuda *cuda, smp__gemm *gemm, cublasLtMatmulPreference_t wish,
                      bool *found)
{
    cublasLtMatmulHeuristicResult_t result[CANDIDATES];
    int n = 0;
    SMP_TRY(set_wishes(cuda, &gemm->shape, wish));
    cublasStatus_t code = smp__blas.cublasLtMatmulAlgoGetHeuristic(
        (cublasLtHandle_t)cuda->blas, gemm->operation, gemm->first, gemm->second, gemm->result,
        gemm->result, wish, CANDIDATES, result, &n);
    *found = false;
    if (code == CUBLAS_STATUS_NOT_SUPPORTED)
        return SMP_OK;
    SMP_TRY(smp__blas_check(code, "cublasLtMatmulAlgoGetHeuristic"));
    for (int i = 0; i < n && !*found; i++)
        if (result[i].state == CUBLAS_STATUS_SUCCESS) {
            gemm->algorithm = result[i].algo;
            gemm->workspace_bytes = (int64_t)result[i].workspaceSize;
            *found = true;
        }
    return SMP_OK;
}

static smp_status fill(const smp_cuda *cuda, smp__gemm *gemm, bool *found)
{
    cublasLtMatmulPreference_t wish;
    SMP_TRY(make_operation(cuda, gemm));
    SMP_TRY(make_layouts(gemm));
    BLAS_TRY(cublasLtMatmulPreferenceCreate, &wish);
    smp_status status = ask(cuda, gemm, wish, found);
    smp__blas.cublasLtMatmulPreferenceDestroy(wish);
    return status;
}

smp_status smp__gemm_find(const smp_cuda *cuda, const smp__gemm_shape *shape, smp__gemm **out)
{
    bool found = false;
    smp__gemm *gemm = static_cast<smp__gemm *>(calloc(1, sizeof *gemm));
    *out = NULL;
    if (!gemm)
        return smp_fail_memory(sizeof *gemm);
    gemm->shape = *shape;
    smp_status status = fill(cuda, gemm, &found);
    if (status == SMP_OK && found)
        *out = gemm;
    else
        smp__gemm_destroy(gemm);
    return status;
}

smp_status smp__gemm_create(const smp_cuda *cuda, const smp__gemm_shape *s, smp__gemm **out)
{
    SMP_TRY(smp__gemm_find(cuda, s, out));
    if (*out)
        return SMP_OK;
    return smp_fail(SMP_ERR_FAILED,
                    "cuBLASLt has no algorithm for %lld x %lld x %lld, %s%s into %s, "
                    "with %lld bytes of workspace",
                    (long long)s->m, (long long)s->n, (long long)s->k, smp_dtype_names[s->in],
                    has_aux(s) ? " with GELU" : "", smp_dtype_names[s->out],
                    (long long)cuda->workspace_bytes);
}

void smp__gemm_destroy(smp__gemm *gemm)
{
    if (!gemm)
        return;
    if (gemm->operation)
        smp__blas.cublasLtMatmulDescDestroy(gemm->operation);
    for (cublasLtMatrixLayout_t layout : {gemm->first, gemm->second, gemm->result})
        if (layout)
            smp__blas.cublasLtMatrixLayoutDestroy(layout);
    free(gemm);
}

smp_status smp__gemm_run(const smp_cuda *cuda, const smp__gemm *gemm, float alpha, const void *a,
                         const void *b, float beta, void *c, const void *bias, void *aux)
{
    SMP_TRY(set_pointers(gemm, bias, aux));
    BLAS_TRY(cublasLtMatmul, (cublasLtHandle_t)cuda->blas, gemm->operation, &alpha, b, gemm->first,
             a, gemm->second, &beta, c, gemm->result, c, gemm->result, &gemm->algorithm,
             cuda->workspace, (size_t)gemm->workspace_bytes, cuda->stream);
    return SMP_OK;
}
