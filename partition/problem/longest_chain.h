/* The longest chain of ops that a micro-batch goes through, and what can stand beside it. */
#ifndef SMP_PARTITION_PROBLEM_LONGEST_CHAIN_H
#define SMP_PARTITION_PROBLEM_LONGEST_CHAIN_H

#include "graph/base/arena.h"
#include "graph/model/graph.h"

/* Whether the backward pass of the op that makes a tensor waits for that of one that reads it. */
bool smp__passes_gradient(const smp_graph *graph, int32_t tensor, int32_t reader);

/* Ops on the chain have positions from 1. In any pipeline an op beside it is not in front of the op
 * at after[op], and not after that at until[op]. */
typedef struct smp__chain {
    int32_t n_op, length;
    const bool *on; /* [n_op] */
    const int32_t
        *after; /* [n_op] on the chain: the position; else that of the last op before it, 0: none */
    const int32_t *until; /* [n_op] likewise of the first op after it; length + 1: none */
} smp__chain;

/* weight: [n_op], what an op adds to a chain's length. In training only gradients that are passed
 * on make a chain. Arrays live in the arena. */
smp_status smp__chain_find(const smp_graph *graph, const double *weight, smp_arena *arena,
                           smp__chain *out);

/* The most that ops beside the chain can weigh together that lie between two neighbours of the
 * chain: what a stage holds at most that has no op of the chain. weight: [n_op]. */
smp_status smp__chain_most_beside(const smp__chain *chain, const double *weight, smp_arena *arena,
                                  double *most);

#endif
