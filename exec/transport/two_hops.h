/* A sum of host memory over replicas of several machines in two hops: first those of one machine
 * add up, each a part of it, then each part is added up between the machines, and both are given
 * back. What goes between machines shrinks by as many replicas as share one. The tree is that of
 * reduce_blocks.h over all replicas, where those of a machine are neighbours and a power of two.
 *
 * Hierarchical all-reduce as in BlueConnect (Cho et al., MLSys 2019). */
#ifndef SMP_EXEC_TRANSPORT_TWO_HOPS_H
#define SMP_EXEC_TRANSPORT_TWO_HOPS_H

#include "exec/transport/comm.h"
#include "exec/transport/reduce_blocks.h"

typedef enum smp__hop {
    SMP__HOP_SCATTER, /* on the machine */
    SMP__HOP_SCATTER_ACROSS,
    SMP__HOP_GATHER_ACROSS,
    SMP__HOP_GATHER,
    SMP__HOP_DONE
} smp__hop;

typedef struct smp__two_hops {
    smp__blocks near, far;
    smp__hop hop;
} smp__two_hops;

/* near, far: the replicas of this machine, those with this rank's part; MPI_COMM_NULL: not used. */
smp_status smp__two_hops_open(smp__two_hops *h, MPI_Comm near, MPI_Comm far);
void smp__two_hops_close(smp__two_hops *h); /* accepts what was not opened */

/* Adds up data[begin .. begin + count - 1], at most SMP__PIECE_FLOATS; one piece at a time. */
smp_status smp__two_hops_start(smp__two_hops *h, const float *data, int64_t begin, int64_t count);
smp_status smp__two_hops_test(smp__two_hops *h, float *data, bool *done);

#endif
