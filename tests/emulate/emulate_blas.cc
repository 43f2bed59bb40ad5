/* cuBLASLt for the emulator: its objects and calls. Every product is one item of its stream. Beside
 * what the library refuses (emulate_blas_rules.cc), the use of objects that are gone aborts, and so
 * does what would keep this project's results from having the same bits in every run: reduction in
 * place. The workspace that an algorithm asked for is filled with NaN.
 *
 * SMP_EMULATE_BLAS_REFUSE=WORD,...: gelu, bias, dgelu, bgrad: there is no algorithm with that in
 * its epilogue; run-gelu, ...: there are, and a product refuses them; run-first, run-second: it
 * refuses the first, the second algorithm of any problem; run: all.
 * SMP_EMULATE_BLAS_VERSION=120901: which version this is. SMP_EMULATE_BLAS_LEFT=N: every product
 * has to be told that there are N multiprocessors for it. */
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>

#include "emulate_blas.h"

struct cublasLtContext {
    int unused;
};

struct emulate_blas_preference {
    uint64_t workspace = 0;
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
    uint32_t alignment[4] = {256, 256, 256, 256};
};

/* Objects that exist. */
static std::set<const void *> &living()
{
    static std::set<const void *> objects;
    return objects;
}

template <typename T> static const T &alive(const T *object)
{
    EMULATE_BLAS_REQUIRE(living().count(object),
                         "an object was used that does not exist (any more)");
    return *object;
}

template <typename T, typename... A> static cublasStatus_t create(T **out, A... value)
{
    *out = new T{value...};
    living().insert(*out);
    return CUBLAS_STATUS_SUCCESS;
}

template <typename T> static cublasStatus_t destroy(T *object)
{
    alive(object);
    living().erase(object);
    delete object;
    return CUBLAS_STATUS_SUCCESS;
}

template <typename T> static cublasStatus_t set(T *field, const void *value, size_t bytes)
{
    EMULATE_BLAS_REQUIRE(value && bytes == sizeof *field, "an attribute of %zu bytes was given %zu",
                         sizeof *field, bytes);
    memcpy(field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

static emulate_blas_problem describe(cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                                     cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                     cublasLtMatrixLayout_t d)
{
    emulate_blas_problem p = {alive(operation), alive(a), alive(b), alive(c), alive(d)};
    emulate_blas_check(p);
    return p;
}

/* The largest power of two, up to 256, that divides an address. */
static uint64_t alignment_of(const void *address)
{
    return ((uintptr_t)address | 256) & -((uintptr_t)address | 256);
}

/* Is it one of the words? */
static bool refused(const char *word)
{
    const char *refuse = getenv("SMP_EMULATE_BLAS_REFUSE");
    const std::string words = std::string(",") + (refuse ? refuse : "") + ",";
    return words.find(std::string(",") + word + ",") != std::string::npos;
}

static bool refuses_to_run(const emulate_blas_problem &p, uint64_t parts)
{
    return refused("run") || (p.has_gelu() && refused("run-gelu")) ||
           (p.has_slope() && refused("run-dgelu")) || (p.has_bias() && refused("run-bias")) ||
           (p.has_gradient() && refused("run-bgrad")) || (parts == 1 && refused("run-first")) ||
           (parts == 2 && refused("run-second"));
}

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    return create(handle, 0);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return destroy(handle);
}

size_t cublasLtGetVersion(void)
{
    const char *version = getenv("SMP_EMULATE_BLAS_VERSION");
    return version ? (size_t)atol(version) : 130000;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "the library was not initialized";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "the function failed to launch on the GPU";
    case CUBLAS_STATUS_INTERNAL_ERROR:
        return "an internal operation failed";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "the functionality requested is not supported";
    }
    return "unknown";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *operation,
                                        cublasComputeType_t compute, cudaDataType_t scale)
{
    EMULATE_BLAS_REQUIRE(scale == CUDA_R_32F, "a scale type that is not fp32");
    return create(operation, compute);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation)
{
    return destroy(operation);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    alive(operation);
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return set(&operation->trans_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return set(&operation->trans_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return set(&operation->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set(&operation->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return set(&operation->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return set(&operation->aux_ld, value, bytes);
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
        return set(&operation->multiprocessors, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
        return set(&operation->scale_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
        return set(&operation->scale_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
        return set(&operation->fast, value, bytes);
    }
    emulate_die("cuBLASLt: attribute %d of an operation is not emulated", (int)attribute);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t ld)
{
    return create(layout, type, (int64_t)rows, (int64_t)columns, ld);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    return destroy(layout);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t bytes)
{
    alive(layout);
    switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
        return set(&layout->batch, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
        return set(&layout->stride, value, bytes);
    }
    emulate_die("cuBLASLt: attribute %d of a layout is not emulated", (int)attribute);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    return create(preference);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    return destroy(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes)
{
    alive(preference);
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return set(&preference->workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return set(&preference->reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return set(&preference->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
                   value, bytes);
    }
    emulate_die("cuBLASLt: attribute %d of a preference is not emulated", (int)attribute);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
                                              cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t *result,
                                              int *returned)
{
    alive(handle);
    const emulate_blas_preference &wish = alive(preference);
    const emulate_blas_problem p = describe(operation, a, b, c, d);
    EMULATE_BLAS_REQUIRE(requested > 0, "%d algorithms were asked for", requested);
    EMULATE_BLAS_REQUIRE(!(wish.reductions & CUBLASLT_REDUCTION_SCHEME_INPLACE),
                         "reduction in place is allowed: its order is not always the same");
    EMULATE_BLAS_REQUIRE(p.d.type == CUDA_R_32F ||
                             !(wish.reductions & CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE),
                         "parts of sums may be rounded to 16 bits");
    *returned = 0;
    if ((p.has_gelu() && refused("gelu")) || (p.has_bias() && refused("bias")) ||
        (p.has_slope() && refused("dgelu")) || (p.has_gradient() && refused("bgrad")))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    EMULATE_BLAS_REQUIRE(p.operation.multiprocessors == 0,
                         "the heuristic was asked with a number of multiprocessors: the algorithm "
                         "would depend on what runs beside");
    for (; *returned < requested && *returned < ALGORITHMS; ++*returned, result++) {
        memset(result, 0, sizeof *result);
        result->workspaceSize = (size_t)(wish.workspace < 1024 ? wish.workspace : 1024);
        result->algo.data[SIGNATURE] = emulate_blas_signature(p);
        result->algo.data[WORKSPACE] = result->workspaceSize;
        for (int i = 0; i < 4; i++)
            result->algo.data[ALIGNMENT_OF_A + i] = wish.alignment[i];
        result->algo.data[ALIGNMENT_OF_BIAS] = alignment_of(p.operation.bias);
        result->algo.data[PARTS] = (uint64_t)*returned + 1;
        result->state = CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void *value, size_t bytes, size_t *written)
{
    const uint32_t parts = (uint32_t)algorithm->data[PARTS];
    uint32_t is = 0;
    EMULATE_BLAS_REQUIRE(bytes == sizeof is && written, "a configuration's attribute of %zu bytes",
                         bytes);
    if (attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM)
        is = parts;
    if (attribute == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME && parts > 1)
        is = parts > ALGORITHMS ? CUBLASLT_REDUCTION_SCHEME_INPLACE
                                : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    memcpy(value, &is, sizeof is);
    *written = sizeof is;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algorithm,
                                       cublasLtMatmulHeuristicResult_t *result)
{
    alive(handle);
    memset(result, 0, sizeof *result);
    if (algorithm->data[SIGNATURE] != emulate_blas_signature(describe(operation, a, b, c, d)))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    result->algo = *algorithm;
    result->workspaceSize = algorithm->data[WORKSPACE];
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                              const void *alpha, const void *a, cublasLtMatrixLayout_t a_layout,
                              const void *b, cublasLtMatrixLayout_t b_layout, const void *beta,
                              const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    int device;
    alive(handle);
    if (cudaGetDevice(&device) != cudaSuccess) /* the device has failed */
        return CUBLAS_STATUS_EXECUTION_FAILED;
    emulate_blas_call item = {describe(operation, a_layout, b_layout, c_layout, d_layout),
                              0,
                              0,
                              a,
                              b,
                              c,
                              d,
                              workspace,
                              workspace_bytes,
                              1};
    memcpy(&item.alpha, alpha, sizeof item.alpha);
    memcpy(&item.beta, beta, sizeof item.beta);
    EMULATE_BLAS_REQUIRE(algorithm, "a product without an algorithm");
    emulate_blas_check_call(item, *algorithm);
    const char *left = getenv("SMP_EMULATE_BLAS_LEFT");
    EMULATE_BLAS_REQUIRE(!left || item.p.operation.multiprocessors == atoi(left),
                         "a product is for %d multiprocessors, expected %s",
                         item.p.operation.multiprocessors, left);
    item.parts = (int)algorithm->data[PARTS];
    if (refuses_to_run(item.p, algorithm->data[PARTS]))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    emulate_enqueue(stream, [item] {
        emulate_blas_multiply(item);
        return true;
    });
    return CUBLAS_STATUS_SUCCESS;
}

} /* extern "C" */
