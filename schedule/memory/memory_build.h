/* The memory of a rank while it is being planned: shared by memory.c, memory_states.c,
 * memory_lives.c and memory_host.c. */
#ifndef SMP_SCHEDULE_MEMORY_MEMORY_BUILD_H
#define SMP_SCHEDULE_MEMORY_MEMORY_BUILD_H

#include "schedule/memory/memory.h"

typedef struct smp__memory_build {
    const smp_memory_input *input;
    smp_memory_rank *rank;
    smp_arena *scratch;
    int *chunk_of_stage; /* [n_stage] chunk of this rank, or -1 */
    int levels;          /* of gradients, beside the block in progress */
    int64_t top;         /* end of what lives for ever */
    int64_t host_top;    /* the same in the host area */
    smp_memory_region *region;
    smp_memory_bucket *bucket;
} smp__memory_build;

/* Room for `bytes` at the end of what lives for ever. */
smp_status smp__memory_place(smp__memory_build *build, int64_t bytes, int64_t *offset);
/* Weights, gradients, optimizer states. */
smp_status smp__memory_place_states(smp__memory_build *build);

/* How a border's data leaves the rank: to the neighbouring stage, beyond it, or both; 0: it does
 * not. chunk_of_stage: [n_stage] chunk of this rank, or -1. */
enum { SMP__LEAVES_DIRECT = 1, SMP__LEAVES_JUMPING = 2 };
unsigned smp__border_leaves(const smp_flow *flow, const int *chunk_of_stage, int stage,
                            const smp_border *border);

/* Positions in the program of what travels of one (chunk, micro-batch); -1: never. */
typedef struct smp__stash_copies {
    int64_t store, load;
    int64_t stored_by; /* complete before this one */
    int64_t backward;  /* B or I */
} smp__stash_copies;

/* Places all that travels in the host area above build->host_top and lists the stores; *travel:
 * [chunks * microbatches] in scratch. */
smp_status smp__memory_place_in_host(smp__memory_build *build, smp__stash_copies **travel);

/* Places stash blocks and borders above build->top; fills post and wait and the totals. */
smp_status smp__memory_place_lives(smp__memory_build *build);

#endif
