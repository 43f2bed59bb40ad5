/* The environment of the process, which belongs to the host program. Libraries are told by
 * variables, and some set their own for what they start: around such a call it is saved and
 * restored. */
#ifndef SMP_GRAPH_BASE_ENVIRONMENT_H
#define SMP_GRAPH_BASE_ENVIRONMENT_H

#include "graph/base/arena.h"

typedef struct smp_environment {
    smp_arena *arena;
    char **entry; /* "NAME=value", NULL at the end */
} smp_environment;

smp_status smp_environment_save(smp_environment *saved);
/* Every variable is again what it was, and what was saved is freed. After a failed save:
 * nothing. */
void smp_environment_restore(smp_environment *saved);

#endif
