/* A product of the emulated cuBLASLt: what is asked for, whether the library would do it, and doing
 * it. */
#ifndef SMP_TESTS_EMULATE_EMULATE_BLAS_H
#define SMP_TESTS_EMULATE_EMULATE_BLAS_H

#include "cublasLt.h"
#include "emulate.h"

struct emulate_blas_operation {
    cublasComputeType_t compute;
    int32_t trans_a = CUBLAS_OP_N, trans_b = CUBLAS_OP_N;
    uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    void *bias = nullptr;
    void *aux = nullptr;
    int64_t aux_ld = 0;
    int32_t multiprocessors = 0;
    const float *scale_a = nullptr, *scale_b = nullptr; /* of fp8 */
    int8_t fast = 0;
};

struct emulate_blas_layout {
    cudaDataType_t type;
    int64_t rows, columns, ld;
    int32_t batch = 1;
    int64_t stride = 0;
};

#define EMULATE_BLAS_REQUIRE(condition, ...)                                                       \
    do {                                                                                           \
        if (!(condition))                                                                          \
            emulate_die("cuBLASLt: " __VA_ARGS__);                                                 \
    } while (0)

struct emulate_blas_problem {
    emulate_blas_operation operation;
    emulate_blas_layout a, b, c, d;

    bool has_bias() const
    {
        return operation.epilogue == CUBLASLT_EPILOGUE_BIAS ||
               operation.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    }
    bool has_gelu() const
    {
        return operation.epilogue == CUBLASLT_EPILOGUE_GELU_AUX ||
               operation.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    }
    bool has_slope() const /* of GELU, whose input is read */
    {
        return operation.epilogue == CUBLASLT_EPILOGUE_DGELU;
    }
    bool has_gradient() const /* of a bias: sums over k of B */
    {
        return operation.epilogue == CUBLASLT_EPILOGUE_BGRADB;
    }
    bool is_fp8() const
    {
        return a.type == CUDA_R_8F_E4M3 || a.type == CUDA_R_8F_E5M2;
    }
    int64_t k() const
    {
        return operation.trans_a == CUBLAS_OP_T ? a.rows : a.columns;
    }
};

struct emulate_blas_call {
    emulate_blas_problem p;
    float alpha, beta;
    const void *a, *b, *c;
    void *d, *workspace;
    size_t workspace_bytes;
    int parts; /* of k, whose sums are added one after the other */
};

/* Of cublasLtMatmulAlgo_t.data; what the heuristic decided on and a call must keep to. */
enum { SIGNATURE, WORKSPACE, ALIGNMENT_OF_A, ALIGNMENT_OF_BIAS = ALIGNMENT_OF_A + 4, PARTS };
/* Algorithms of a problem: they split k into 1, 2, 3 parts. */
enum { ALGORITHMS = 3 };

/* emulate_blas_rules.cc. They abort if the library would refuse, or might do anything. */
void emulate_blas_check(const emulate_blas_problem &p);
void emulate_blas_check_call(const emulate_blas_call &call, const cublasLtMatmulAlgo_t &algorithm);
/* Of everything but the pointers. */
uint64_t emulate_blas_signature(const emulate_blas_problem &p);

/* emulate_blas_product.cc: as an item of a stream. */
void emulate_blas_multiply(const emulate_blas_call &call);

#endif
