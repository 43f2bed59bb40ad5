/* What a CUDA kernel of an operator gets besides its call: the `device` of smp_op_call and of
 * `prepare`. Made by exec/cuda/device_cuda.c; one per process. Kernels are enqueued on `stream`
 * and nothing else, so a rank's operators run in the order in which they are called, and all of
 * them may use the one workspace. */
#ifndef SMP_GRAPH_CUDA_CUDA_H
#define SMP_GRAPH_CUDA_CUDA_H

#include <cuda_runtime_api.h>

#include "graph/base/status.h"
#include "graph/math/choice.h"
#include "graph/model/target.h"

typedef struct smp_cuda {
    cudaStream_t stream;
    void *blas; /* cublasLtHandle_t */
    struct smp_gemms
        *products;          /* how matrix products are computed (graph/math/gemm_algorithms.h) */
    void *dnn;              /* cudnnHandle_t on the same stream; NULL: no cuDNN here */
    const char *dnn_device; /* without a handle: plans are made, not run, for the device that this
                               describes, in cuDNN's JSON; NULL: none */
    void *workspace;        /* of cuBLASLt and cuDNN, 256-byte aligned */
    int64_t workspace_bytes;
    smp_precision precision;
    int multiprocessors;
    int taken_multiprocessors; /* by messages that travel beside */
    int capability;            /* 90: compute capability 9.0 */
    int shared_bytes;          /* of shared memory that a block may ask for */
    smp__choices *choices;
} smp_cuda;

/* Shared memory of a block on every GPU from compute capability 8.0 on: 8.6, 8.9 and 12.0 have no
 * more, 8.0 has 163 KiB, 9.0 227. A kernel that wants more has a smaller variant. */
enum { SMP_CUDA_SHARED_LEAST = 99 << 10 };

#ifdef __cplusplus
extern "C" {
#endif

/* SMP_ERR_FAILED with the call's name and CUDA's message unless the code is cudaSuccess. */
smp_status smp__cuda_check(cudaError_t code, const char *call);
/* SMP_CUDA(cudaEventRecord, event, stream): the status of a call. */
#define SMP_CUDA(call, ...) smp__cuda_check(call(__VA_ARGS__), #call)
/* The error of the last launch, if any: what every kernel call of an operator ends with. */
smp_status smp__cuda_launched(const char *kernel);

#ifdef __cplusplus
}
#endif

#endif
