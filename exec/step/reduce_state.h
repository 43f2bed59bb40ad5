/* The inside of what sums gradients over replicas and over stages that share a weight. */
#ifndef SMP_EXEC_STEP_REDUCE_STATE_H
#define SMP_EXEC_STEP_REDUCE_STATE_H

#include "exec/step/messages.h"
#include "exec/step/sum_list.h"

struct smp__reducer {
    smp__sum_list *scatter; /* [chunks] R: first the chunk's regions, in their order */
    smp__sum_list *across;  /* [chunks] A */
    smp__sum_list *gather;  /* [chunks] G */
    smp__tie_message *tie;
    int n_tie;
    smp_sum_terms terms[SMP_N_REACH]; /* of sums over replicas, by reach */
    int *waiting;     /* [blocks of a replica]: sums that wait for others before that block */
    int32_t *weights; /* [n_region] of a chunk's region; */
    int32_t *left;    /* and those to which the last backward has still to add */
};

#endif
