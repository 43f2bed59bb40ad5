/* What the calls of this room keep of a job. */
#ifndef SMP_EXEC_JOB_SETUP_H
#define SMP_EXEC_JOB_SETUP_H

#include "graph/base/arena.h"

struct smp__setup {
    smp_arena *strings;                    /* of the options, and what lives as long */
    struct smp__found *found;              /* choose_device.h */
    struct smp__group_memory *group_calls; /* group_calls.c */
    struct smp__elastic *elastic;          /* exec/elastic/elastic_program.c; NULL: not begun */
};

#endif
