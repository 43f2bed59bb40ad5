/* cuDNN, opened when a GPU is, if it is there: only its backend interface, which describes a
 * computation as a graph of descriptors with attributes. */
#ifndef SMP_GRAPH_CUDA_CUDA_DNN_H
#define SMP_GRAPH_CUDA_CUDA_DNN_H

#include <cuda_runtime_api.h>

#include "graph/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cuDNN's front end refuses bf16 attention on 9.10.0 and 9.10.1 as buggy; earlier versions want
 * hidden scores to be finite. */
enum { SMP__DNN_OLDEST = 91002 };

/* *handle: a cudnnHandle_t on the stream; NULL where cuDNN is missing or was when SMP was built. */
smp_status smp__dnn_open(void **handle, cudaStream_t stream);
void smp__dnn_close(void *handle); /* accepts NULL */

#ifdef __cplusplus
}
#endif

#if defined(SMP_HAVE_CUDNN) && !defined(SMP_EMULATED)
#include <cudnn.h>

#define SMP__DNN_CALLS(X)                                                                          \
    X(cudnnCreate)                                                                                 \
    X(cudnnDestroy)                                                                                \
    X(cudnnSetStream)                                                                              \
    X(cudnnGetVersion)                                                                             \
    X(cudnnGetErrorString)                                                                         \
    X(cudnnBackendCreateDescriptor)                                                                \
    X(cudnnBackendDestroyDescriptor)                                                               \
    X(cudnnBackendSetAttribute)                                                                    \
    X(cudnnBackendGetAttribute)                                                                    \
    X(cudnnBackendFinalize)                                                                        \
    X(cudnnBackendExecute)

#ifdef __cplusplus
extern "C" {
#endif

typedef struct smp__dnn_calls {
#define SMP__DNN_FIELD(name) __typeof__(&name) name;
    SMP__DNN_CALLS(SMP__DNN_FIELD)
#undef SMP__DNN_FIELD
} smp__dnn_calls;

extern smp__dnn_calls smp__dnn; /* filled by smp__dnn_open */
smp_status smp__dnn_check(cudnnStatus_t code, const char *call);

#ifdef __cplusplus
}
#endif
#endif

#endif
