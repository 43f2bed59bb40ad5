/* How ops are split, of a plan or of a checkpoint: --split-from. */
#ifndef SMP_EXEC_START_SPLIT_FROM_H
#define SMP_EXEC_START_SPLIT_FROM_H

#include "graph/base/arena.h"
#include "schedule/plan/sketch.h"

typedef struct smp__split_from {
    smp_splitting splitting; /* entries may be patterns */
    smp_sketch *sketch;      /* of a plan; NULL: of a checkpoint */
    smp_arena *arena;
} smp__split_from;

/* path: a plan, a checkpoint (FILE.smp), or a directory of them, of which the one saved last.
 * SMP_ERR_INPUT: nothing is split there, or a checkpoint does not say how. It is to be closed in
 * any case. */
smp_status smp__split_from_open(const char *path, smp__split_from *out);
void smp__split_from_close(smp__split_from *from); /* accepts what was not opened */

#endif
