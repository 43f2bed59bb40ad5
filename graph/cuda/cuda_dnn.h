/* cuDNN, opened when a GPU is, if it is there: only its backend interface, which describes a
 * computation as a graph of descriptors with attributes, and what puts such a graph together. */
#ifndef SMP_GRAPH_CUDA_CUDA_DNN_H
#define SMP_GRAPH_CUDA_CUDA_DNN_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#include "graph/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cuDNN's front end refuses bf16 attention on 9.10.0 and 9.10.1 as buggy; earlier versions want
 * hidden scores to be finite. */
enum { SMP__DNN_OLDEST = 91002, SMP__DNN_NAME_BYTES = 32 };

/* *handle: a cudnnHandle_t on the stream; NULL where cuDNN is missing or was when SMP was built. */
smp_status smp__dnn_open(void **handle, cudaStream_t stream);
void smp__dnn_close(void *handle); /* accepts NULL */
/* "cuDNN 9.19.0", of the library that is open; empty if none is. */
void smp__dnn_name(char name[SMP__DNN_NAME_BYTES]);

#ifdef __cplusplus
}
#endif

#if defined(SMP_HAVE_CUDNN) && !defined(SMP_EMULATED)
#include <cudnn.h>

#include "graph/model/op.h"

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

typedef cudnnBackendDescriptor_t smp__dnn_descriptor;

typedef struct smp__dnn_shape {
    int64_t dim[4], stride[4];
} smp__dnn_shape;

/* A graph of operations being put together. After the first failure nothing more happens. */
enum { SMP__DNN_MADE = 192, SMP__DNN_OPS = 32 };
typedef struct smp__dnn_graph {
    cudnnHandle_t handle;
    smp__dnn_descriptor device; /* what plans are made for, where there is no handle */
    bool failed;
    int64_t bound, inner; /* tensors so far */
    int n_made, n_op;
    smp__dnn_descriptor made[SMP__DNN_MADE], op[SMP__DNN_OPS];
} smp__dnn_graph;

/* For the device of the handle; without one, for that which the text describes in cuDNN's JSON.
 * Is there neither, or no cuDNN that is new enough, it has failed. */
void smp__dnn_graph_open(smp__dnn_graph *graph, cudnnHandle_t handle, const char *device);
/* Tensors: an array and a number of fp32, which a call binds in the order in which they are made;
 * and what stays inside of the kernel. */
smp__dnn_descriptor smp__dnn_array(smp__dnn_graph *graph, cudnnDataType_t type,
                                   const smp__dnn_shape *shape);
smp__dnn_descriptor smp__dnn_number(smp__dnn_graph *graph);
smp__dnn_descriptor smp__dnn_inner(smp__dnn_graph *graph, cudnnDataType_t type,
                                   const smp__dnn_shape *shape);
/* Forward, x and filters give y; the input's gradient: filters and y, its gradient, give x; the
 * weight's: x and y give filters. Pairs are (height, width). */
typedef struct smp__dnn_convolution_op {
    smp_op_part part;
    smp__dnn_descriptor x, filters, y;
    int64_t stride[2], padding[2], dilation[2];
} smp__dnn_convolution_op;

void smp__dnn_convolve(smp__dnn_graph *graph, const smp__dnn_convolution_op *op);
void smp__dnn_matmul(smp__dnn_graph *graph, smp__dnn_descriptor x, smp__dnn_descriptor y,
                     smp__dnn_descriptor product);
void smp__dnn_reduce(smp__dnn_graph *graph, cudnnReduceTensorOp_t mode, smp__dnn_descriptor x,
                     smp__dnn_descriptor y);
void smp__dnn_reshape(smp__dnn_graph *graph, smp__dnn_descriptor x, smp__dnn_descriptor y);
/* y = mode(x, z, t); z and t may be NULL. axis: of GEN_INDEX, otherwise -1. */
void smp__dnn_pointwise(smp__dnn_graph *graph, cudnnPointwiseMode_t mode, cudnnDataType_t type,
                        int64_t axis, smp__dnn_descriptor x, smp__dnn_descriptor z,
                        smp__dnn_descriptor t, smp__dnn_descriptor y);
/* The first plan, in the order of cuDNN's heuristics, whose results are the same in every run and
 * that needs no more than so many bytes; NULL if there is none. The graph is gone then. Destroyed
 * with cudnnBackendDestroyDescriptor. */
smp__dnn_descriptor smp__dnn_graph_plan(smp__dnn_graph *graph, int64_t workspace_bytes);
int64_t smp__dnn_plan_workspace(smp__dnn_descriptor plan); /* bytes; INT64_MAX: it does not say */
/* address: [n] of all that a call binds. */
smp_status smp__dnn_plan_run(smp__dnn_descriptor plan, cudnnHandle_t handle, int n,
                             void *const *address, void *workspace, const char *what);

#ifdef __cplusplus
}
#endif
#endif

#endif
