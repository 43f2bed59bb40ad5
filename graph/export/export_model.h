/* A trained model as an ONNX file: forward as in an evaluation, for any number of samples. */
#ifndef SMP_GRAPH_EXPORT_EXPORT_MODEL_H
#define SMP_GRAPH_EXPORT_EXPORT_MODEL_H

#include "graph/model/graph.h"

/* Puts the values of a weight of the model, all of them, into `values`. */
typedef smp_status smp_onnx_values(void *context, int32_t param, float *values);

typedef struct smp_onnx_export {
    const smp_graph *graph; /* whole, as read */
    /* Tensors that become outputs (smp_graph_find_made); none: the one that it finds for NULL. */
    const char *const *tensor;
    int n_tensor;
    /* Weights in a file of their own whatever their size: PATH.data, or PATH.data2 where the model
     * that is replaced has the former, which then goes. Without, that is so where a protobuf of
     * all, which has a limit of 2 GiB, cannot hold them. */
    bool apart;
    smp_onnx_values *values;
    void *context;
} smp_onnx_export;

typedef struct smp_onnx_exported {
    int64_t nodes, weights, bytes; /* of the weights */
    char apart[8];                 /* how the name of their file goes on: ".data"; "": none */
} smp_onnx_exported;

/* Both files are written completely or not at all: until the model is replaced, which comes last,
 * the old one has its weights. It takes the
 * memory of one weight if they lie apart, else of all of them, twice.
 * SMP_ERR_INPUT: an operator that has no meaning in ONNX, named with the reason; a tensor that
 * nothing makes. What `values` returns. */
smp_status smp_onnx_export_write(const smp_onnx_export *export, const char *path,
                                 smp_onnx_exported *out);

#endif
