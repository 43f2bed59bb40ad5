/* cuBLASLt, opened when a GPU is: smp__blas.cublasLtMatmul(...) is the library's function. */
#ifndef SMP_GRAPH_CUDA_CUDA_BLAS_H
#define SMP_GRAPH_CUDA_CUDA_BLAS_H

#include <cublasLt.h>

#include "graph/base/status.h"

#define SMP__BLAS_CALLS(X)                                                                         \
    X(cublasLtCreate)                                                                              \
    X(cublasLtDestroy)                                                                             \
    X(cublasLtGetVersion)                                                                          \
    X(cublasLtGetStatusString)                                                                     \
    X(cublasLtMatmulDescCreate)                                                                    \
    X(cublasLtMatmulDescDestroy)                                                                   \
    X(cublasLtMatmulDescSetAttribute)                                                              \
    X(cublasLtMatrixLayoutCreate)                                                                  \
    X(cublasLtMatrixLayoutDestroy)                                                                 \
    X(cublasLtMatrixLayoutSetAttribute)                                                            \
    X(cublasLtMatmulPreferenceCreate)                                                              \
    X(cublasLtMatmulPreferenceDestroy)                                                             \
    X(cublasLtMatmulPreferenceSetAttribute)                                                        \
    X(cublasLtMatmulAlgoConfigGetAttribute)                                                        \
    X(cublasLtMatmulAlgoCheck)                                                                     \
    X(cublasLtMatmulAlgoGetHeuristic)                                                              \
    X(cublasLtMatmul)

#ifdef __cplusplus
extern "C" {
#endif

typedef struct smp__blas_calls {
#define SMP__BLAS_FIELD(name) __typeof__(&name) name;
    SMP__BLAS_CALLS(SMP__BLAS_FIELD)
#undef SMP__BLAS_FIELD
} smp__blas_calls;

extern smp__blas_calls smp__blas; /* filled by smp__blas_open */
smp_status smp__blas_open(void);
smp_status smp__blas_check(cublasStatus_t code, const char *call);
/* "cuBLASLt 13.1.0" */
void smp__blas_name(char *text, size_t size);

#ifdef __cplusplus
}
#endif

#endif
