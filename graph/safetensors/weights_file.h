/* A file of weights, whatever its format: a list of named tensors, and their values as floats.
 * Formats: safetensors (one file, or an index that names several), and llm.c's of GPT-2. Nothing
 * in a file is trusted: what is in the list lies inside of its file, and has the length that its
 * shape and type say. */
#ifndef SMP_GRAPH_SAFETENSORS_WEIGHTS_FILE_H
#define SMP_GRAPH_SAFETENSORS_WEIGHTS_FILE_H

#include <stdbool.h>

#include "graph/base/arena.h"
#include "graph/base/text.h"
#include "graph/safetensors/stored_dtype.h"

enum { SMP_STORED_DIMS = 8 };

typedef struct smp_stored_shape {
    int n_dim;
    int64_t dim[SMP_STORED_DIMS];
} smp_stored_shape;

/* False: more than 2^60 elements, or a negative dimension. */
bool smp_stored_elements(const smp_stored_shape *shape, int64_t *elements);
/* "768x2304", "a number" without dimensions; into a caller's buffer, which is returned. */
enum { SMP_SHAPE_TEXT = SMP_STORED_DIMS * 21 };
char *smp_stored_shape_text(const smp_stored_shape *shape, char buffer[SMP_SHAPE_TEXT]);
bool smp_stored_shape_equal(const smp_stored_shape *a, const smp_stored_shape *b);

typedef struct smp_stored_tensor {
    const char *name;
    const smp_stored_dtype *dtype;
    smp_stored_shape shape;
    int64_t elements;
    int64_t at;   /* bytes from the beginning of its file */
    int32_t file; /* in smp_weights_file.file */
} smp_stored_tensor;

typedef struct smp_weights_file {
    const char *path; /* as given */
    int32_t n_tensor;
    smp_stored_tensor *tensor; /* in the order of the file */
    int32_t n_file;
    const char **file; /* paths of those that have the values */

    smp_arena *arena;
    smp_map *by_name;
    size_t tensor_capacity, file_capacity;
    int fd;       /* of the file read last, or -1 */
    int32_t open; /* ... which that is */
} smp_weights_file;

/* path: a file, or a folder with model.safetensors or model.safetensors.index.json, as Hugging
 * Face's save_pretrained writes it. Reads heads alone, no values. SMP_ERR_INPUT with file, byte and
 * reason; also for safetensors where the build lacks Jansson. *out: smp_weights_file_close, which
 * takes NULL. */
smp_status smp_weights_file_open(const char *path, smp_weights_file **out);
void smp_weights_file_close(smp_weights_file *file);

/* -1: no tensor of that name. */
int32_t smp_weights_file_find(const smp_weights_file *file, const char *name);

/* Elements [begin, begin + n) of a tensor that are to be weights; its dtype has to_float.
 * SMP_ERR_INPUT: the file is no longer what it was. */
smp_status smp_weights_file_read(smp_weights_file *file, int32_t tensor, int64_t begin, int64_t n,
                                 float *values);

#endif
