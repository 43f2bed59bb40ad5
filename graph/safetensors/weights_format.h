/* What readers of the formats of weights share: they fill in the list of a smp_weights_file. */
#ifndef SMP_GRAPH_SAFETENSORS_WEIGHTS_FORMAT_H
#define SMP_GRAPH_SAFETENSORS_WEIGHTS_FORMAT_H

#include <string.h>

#include "graph/safetensors/weights_file.h"

typedef struct smp__weights_format {
    /* Is it this format's, from its path and first bytes (n of them, at most 8)? */
    bool (*knows)(const char *path, const unsigned char *first, size_t n);
    /* Adds its tensors. */
    smp_status (*read)(smp_weights_file *file);
} smp__weights_format;

extern const smp__weights_format smp__format_index, smp__format_llmc, smp__format_safetensors;

enum { SMP__SAFETENSORS_LENGTH_BYTES = 8, SMP__SAFETENSORS_MOST_HEADER = 100000000 };

/* Adds a path whose values tensors are going to have; its number. The text is copied. */
smp_status smp__weights_add_file(smp_weights_file *file, const char *path, int32_t *number);
/* Adds a tensor; its name is copied. SMP_ERR_INPUT: there is one of that name. */
smp_status smp__weights_add_tensor(smp_weights_file *file, const smp_stored_tensor *tensor);

/* All of these bytes, or SMP_ERR_INPUT. */
smp_status smp__weights_pread(int fd, const char *path, void *to, int64_t n, int64_t at);

/* The tensors of safetensors file `number`. */
smp_status smp__safetensors_read(smp_weights_file *file, int32_t number);
/* Its head alone: n bytes of JSON, for a file of `length` bytes. */
smp_status smp__safetensors_parse(smp_weights_file *file, int32_t number, const char *text,
                                  size_t n, int64_t length);

/* Jansson's reason ends with the text that it stopped at, which may be of anybody's file. */
static inline void smp__json_hide(char *reason)
{
    char *near = strstr(reason, " near '");
    if (near)
        *near = '\0';
}

#endif
