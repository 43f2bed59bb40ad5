/* Shared by memory.c and memory_lives.c: the memory of a rank while it is being planned. */
#ifndef SMP_SCHEDULE_MEMORY_MEMORY_BUILD_H
#define SMP_SCHEDULE_MEMORY_MEMORY_BUILD_H

#include "schedule/memory/memory.h"

typedef struct smp__memory_build {
    const smp_memory_input *input;
    smp_memory_rank *rank;
    smp_arena *scratch;
    int *chunk_of_stage; /* [n_stage] chunk of this rank, or -1 */
    int64_t top;         /* end of what lives for ever */
} smp__memory_build;

/* Places stash blocks and borders above build->top; fills post and wait and the totals. */
smp_status smp__memory_place_lives(smp__memory_build *build);

#endif
