/* The weights of a checkpoint without a job: for programs that make something else of them. */
#ifndef SMP_EXEC_CHECKPOINT_CHECKPOINT_VALUES_H
#define SMP_EXEC_CHECKPOINT_CHECKPOINT_VALUES_H

#include "exec/checkpoint/checkpoint_folder.h"
#include "graph/model/graph.h"

typedef struct smp__checkpoint_values {
    const smp_graph *graph; /* whole */
    int fd;                 /* -1: closed */
    int states;
    int64_t base; /* bytes before the header */
    int64_t step;
    char path[SMP__CHECKPOINT_PATH_BYTES];
} smp__checkpoint_values;

/* Opens what was saved last in a directory, or what evaluated best. SMP_ERR_INPUT: there is none,
 * it is of another model, or its header is damaged: nothing is passed over, as nothing is resumed.
 * smp__checkpoint_values_close, also after an error. */
smp_status smp__checkpoint_values_open(const char *directory, bool best, const smp_graph *graph,
                                       smp__checkpoint_values *out);
/* All values of a weight, checked piece by piece. */
smp_status smp__checkpoint_values_read(smp__checkpoint_values *from, int32_t param, float *values);
void smp__checkpoint_values_close(smp__checkpoint_values *from);

#endif
