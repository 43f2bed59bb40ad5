/* On which machines the ranks of a job are, and what that means for a state kept in memory: each
 * machine that has a replica of a part keeps all of it, so its ranks alone share in writing it. */
#ifndef SMP_EXEC_SAVE_MACHINES_H
#define SMP_EXEC_SAVE_MACHINES_H

#include "exec/checkpoint/byte_spans.h"
#include "exec/save/regroup.h"
#include "exec/state/handle.h"

/* Who shares in writing what several ranks have. */
typedef struct smp__sharers {
    int turn, n;        /* of a weight that is not split: this rank, of so many */
    smp__copies copies; /* of one that is */
} smp__sharers;
/* All ranks that have it. */
smp__sharers smp__sharers_all(const smp *s);

typedef struct smp__machines {
    int n, own;  /* machines, and that of this rank: by their lowest ranks */
    int *of;     /* [world_size] machine of each rank, then the number of each on its machine */
    int *number; /* in the same memory, as those below */
    int *first;  /* [n] the lowest rank of each machine */
    int *size;   /* [n] its ranks */
    smp__sharers here; /* those of this machine */
} smp__machines;

/* Collective. */
smp_status smp__machines_open(smp *s, smp__machines *out);
void smp__machines_free(smp__machines *machines);

/* The sets of all ranks, [world_size], malloc'ed: smp__machines_free_sets. Collective. */
smp_status smp__machines_gather(smp *s, const smp__spans *own, smp__spans **sets);
void smp__machines_free_sets(const smp *s, smp__spans *sets);
/* What the ranks of each machine together have: [n], malloc'ed: smp__machines_free_united. */
smp_status smp__machines_unite(const smp *s, const smp__machines *machines, const smp__spans *sets,
                               smp__spans **united);
void smp__machines_free_united(const smp__machines *machines, smp__spans *united);

#endif
