/* A tensor that forward passes copy out as soon as it is made, since its memory is used again. */
#ifndef SMP_EXEC_STEP_TAP_H
#define SMP_EXEC_STEP_TAP_H

#include "exec/state/handle.h"

typedef struct smp__tap {
    int chunk, call, slot; /* of this rank, that make it; chunk -1: another rank does */
    int64_t bytes;         /* of a micro-batch, as it lies here */
    char *values;          /* [microbatches][bytes], of the host */
} smp__tap;

/* Has to run by itself what a fused kernel would keep to itself. */
bool smp__tap_parts_pair(const smp *s, int chunk, int call);

/* Enqueued after the call, the copy of micro-batch `microbatch` of a forward pass. */
smp_status smp__tap_take(smp *s, int chunk, int call, int microbatch);

#endif
