/* The values that an int32 input of a model may take. */
#ifndef SMP_EXEC_DATA_INDEX_RANGE_H
#define SMP_EXEC_DATA_INDEX_RANGE_H

#include "graph/model/graph.h"

/* The tightest bounds of the ops that read the input itself. */
typedef struct smp__index_range {
    const char *input;
    int64_t min, max;
    const smp_op *min_op, *max_op; /* what sets the bound; NULL: int32 itself */
} smp__index_range;

smp__index_range smp__index_range_of(const smp_graph *graph, int input);

/* "input 'tokens' takes 0 to 255 (embedding 'wte')", for a value outside; returns the buffer. */
char *smp__index_range_format(char *buffer, size_t size, const smp__index_range *range,
                              int64_t value);

#endif
