/* The header of a NumPy .npy file: what exec/data/data_npy.c needs to know of it. */
#ifndef SMP_EXEC_DATA_NPY_HEADER_H
#define SMP_EXEC_DATA_NPY_HEADER_H

#include "graph/model/graph.h"

enum { SMP_NPY_MAX_DIMS = SMP_MAX_DIMS + 1, SMP_NPY_MAX_DESCR = 32 };

typedef struct smp_npy_header {
    char descr[SMP_NPY_MAX_DESCR]; /* "<f4" */
    int n_dim;
    int64_t dim[SMP_NPY_MAX_DIMS];
    int64_t bytes; /* from the start of the file to the first value */
} smp_npy_header;

/* Reads the header of the file whose `bytes` bytes lie at `data`; C order only. Nothing is known of
 * the values that follow. SMP_ERR_INPUT names `path` and the byte that is wrong. */
smp_status smp__npy_header_read(const char *path, const unsigned char *data, int64_t bytes,
                                smp_npy_header *out);

#endif
