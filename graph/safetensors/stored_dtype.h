/* Types of values in files of weights, and their conversion to float. */
#ifndef SMP_GRAPH_SAFETENSORS_STORED_DTYPE_H
#define SMP_GRAPH_SAFETENSORS_STORED_DTYPE_H

#include <stddef.h>
#include <stdint.h>

typedef struct smp_stored_dtype {
    const char *name; /* as safetensors writes it: "BF16" */
    int bytes;
    /* n values, of any alignment. Of F64 the nearest float, else without loss. NULL: none that a
     * weight is made of. */
    void (*to_float)(const void *from, int64_t n, float *to);
} smp_stored_dtype;

extern const smp_stored_dtype smp_stored_f32, smp_stored_bf16;
/* NULL: not a type of the format that takes whole bytes. */
const smp_stored_dtype *smp_stored_dtype_find(const char *name);

#endif
