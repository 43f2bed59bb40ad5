/* The inside of what measures and updates a rank's weights. */
#ifndef SMP_EXEC_STATE_WEIGHTS_STATE_H
#define SMP_EXEC_STATE_WEIGHTS_STATE_H

#include "exec/state/weights.h"

/* Norms of whole weights, where the optimizer has trust ratios; else NULL. */
struct smp__trust {
    double *square; /* in `host`: [2][pieces] of this rank, of weights and of their directions */
    double *pieces; /* [2][pieces] of the shard group */
    double *sum;    /* [tensor_size][2][graph->n_param] */
    float *ratio;   /* [memory->n_param] of the step in progress */
    double *kept;   /* [memory->n_param]: what the optimizer keeps for each weight, or NULL */
};

struct smp__weights {
    smp_update_settings *settings; /* [weights of the whole graph] */
    bool nearest_states;           /* those in bf16 are not rounded at random */
    int64_t *piece_begin;          /* [memory->n_param + 1] pieces of weights */
    double *square; /* in `host`: sums of squares of this rank's pieces; see shards.h */
    double *pieces; /* [piece_begin[n_param]] a number for each, of the shard group */
    double *norm;   /* [tensor_size][graph->n_param], then [SMP__STEP_SUMS]: global norm */
    struct smp__trust trust;
    bool stale;            /* updated, each rank its part, and not gathered since */
    bool drifted;          /* replicas differ: smp_replicas_check */
    int32_t drifted_param; /* ... first in memory->param[]; -1: not in what this rank has */
};

#endif
