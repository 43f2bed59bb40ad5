/* A sum of host memory over replicas of several machines in two hops: first those of one machine
 * add up, each a part of it, then each part is added up between the machines, and both are given
 * back. What goes between machines shrinks by as many replicas as share one. The tree is that of
 * sum_terms.h over all replicas, where each has one term, and those of a machine are neighbours and
 * a power of two.
 * Parts that stay where they are added up, or are gathered from there, go one way alone: of the
 * members' parts, by machine and place on it, a machine's are a row, those of a place a column.
 *
 * Hierarchical all-reduce as in BlueConnect (Cho et al., MLSys 2019), gathers as in MiCS (Zhang et
 * al., VLDB 2022). */
#ifndef SMP_EXEC_TRANSPORT_TWO_HOPS_H
#define SMP_EXEC_TRANSPORT_TWO_HOPS_H

#include "exec/transport/comm.h"
#include "exec/transport/reduce_blocks.h"

typedef enum smp__hop {
    SMP__HOP_SCATTER, /* on the machine */
    SMP__HOP_SCATTER_ACROSS,
    SMP__HOP_GATHER_ACROSS,
    SMP__HOP_GATHER,
    SMP__HOP_SCATTER_ROW,
    SMP__HOP_SCATTER_COLUMN,
    SMP__HOP_GATHER_COLUMN,
    SMP__HOP_GATHER_ROW,
    SMP__HOP_DONE
} smp__hop;

typedef struct smp__two_hops {
    smp__blocks near, far;
    smp__hop hop;
    const smp__block *part; /* [near * far], the caller's; of them: */
    int row;                /* at work */
} smp__two_hops;

/* near, far: the replicas of this machine, those with this rank's part; MPI_COMM_NULL: not used. */
smp_status smp__two_hops_open(smp__two_hops *h, MPI_Comm near, MPI_Comm far);
void smp__two_hops_close(smp__two_hops *h); /* accepts what was not opened */

/* What follows is sent in bf16, or not (smp_sum.bf16); before it is started. */
void smp__two_hops_bf16(smp__two_hops *h, bool bf16);
/* Adds up data[begin .. begin + count - 1], at most SMP__PIECE_FLOATS; one piece at a time. */
smp_status smp__two_hops_start(smp__two_hops *h, float *data, int64_t begin, int64_t count);
/* Adds up or gathers a block of each member's part, each where it is held, as
 * smp__blocks_scatter and _fold, or smp__blocks_gather: [near * far], the caller's until done. */
smp_status smp__two_hops_scatter(smp__two_hops *h, float *data, const smp__block *part);
smp_status smp__two_hops_gather(smp__two_hops *h, float *data, const smp__block *part);
smp_status smp__two_hops_test(smp__two_hops *h, float *data, bool *done);

#endif
