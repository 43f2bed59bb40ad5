/* An ONNX file in memory: the model as protobuf-c unpacks it, and where its nodes stand in it.
 * Nothing in a file is trusted: its wire format is walked before anything is unpacked, nesting has
 * a limit, and what the unpacked model takes beyond the bytes of the file has one too, so that a
 * small file cannot become a large one. */
#ifndef SMP_GRAPH_ONNX_ONNX_FILE_H
#define SMP_GRAPH_ONNX_ONNX_FILE_H

#include <stdint.h>

#include "graph/base/arena.h"
#include "onnx.pb-c.h"

typedef struct smp_onnx_file {
    const char *path; /* as given */
    Onnx__ModelProto *model;
    int64_t *node_at; /* [model->graph->n_node] bytes from the beginning of the file */
    /* Counts of the allocator of what is unpacked. */
    size_t bytes_taken, bytes_limit;
    size_t bytes; /* of the file */
} smp_onnx_file;

/* SMP_ERR_INPUT with file, byte and reason: no model, broken, nested or grown beyond the limits.
 * *out: smp_onnx_file_close, which takes NULL. */
smp_status smp_onnx_file_open(const char *path, smp_onnx_file **out);
/* Reads bytes that the caller has; they are not kept. path is copied, for messages. */
smp_status smp_onnx_file_parse(const char *path, const uint8_t *data, size_t bytes,
                               smp_onnx_file **out);
void smp_onnx_file_close(smp_onnx_file *file);

#endif
