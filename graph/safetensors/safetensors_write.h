/* Writing safetensors: the head of a file, and the index of several. */
#ifndef SMP_GRAPH_SAFETENSORS_SAFETENSORS_WRITE_H
#define SMP_GRAPH_SAFETENSORS_SAFETENSORS_WRITE_H

#include "graph/safetensors/weights_file.h"

/* The length and the JSON of a file of n tensors, whose values follow in their order without a
 * gap; padded so that they are aligned. A function of its arguments alone.
 * path: for the message. SMP_ERR_FAILED: a longer head than readers of the format take. */
typedef struct smp_written_tensor {
    const char *name;
    smp_stored_shape shape;
    const smp_stored_dtype *dtype; /* NULL: F32 */
} smp_written_tensor;
smp_status smp_safetensors_head(const char *path, const smp_written_tensor *tensor, int32_t n,
                                smp_text *out);

/* The same for the index, of fp32 tensors: file[i] is that of tensor i. */
smp_status smp_safetensors_index(const smp_written_tensor *tensor, const char *const *file,
                                 int32_t n, smp_text *out);

#endif
