/* The header of a file in NumPy's format. */
#ifndef SMP_TOOLS_RUN_NPY_HEAD_H
#define SMP_TOOLS_RUN_NPY_HEAD_H

#include "graph/base/text.h"

enum { SMP__NPY_DIMS = 8 };

/* Version 1.0, C order; descr: "<f4". The values are to follow. */
smp_status smp__npy_write_head(smp_writer *file, const char *descr, const int64_t *dim, int n_dim);

#endif
