/* Sums of host memory over the members of a communicator, block by block: every member gets what
 * the others have of its block, adds it up in one tree, and gives the sums to the others. The tree
 * is that of gradient blocks (schedule/plan/gradient_blocks.h): neighbours in pairs, the sums in
 * pairs and so on, so the bits depend on the order of the members alone. Each half is started, then
 * tested; one is in flight at a time, in the same order everywhere.
 *
 * In bf16 half of the bytes are sent. A number takes the place of its float on both sides: packed
 * at the front of a block before it is sent, received at its end and widened from the front on. */
#ifndef SMP_EXEC_TRANSPORT_REDUCE_BLOCKS_H
#define SMP_EXEC_TRANSPORT_REDUCE_BLOCKS_H

#include <mpi.h>
#include <stdbool.h>

#include "graph/base/status.h"

enum { SMP__PIECE_FLOATS = 1 << 20 }; /* of all members' blocks together: they stay in caches */

/* Of member i: count floats from offset on. */
typedef struct smp__block {
    int64_t offset;
    int count;
} smp__block;

typedef struct smp__blocks {
    MPI_Comm comm; /* the caller's */
    int members, own;
    smp__block *block; /* [members], for the caller to fill: at most SMP__PIECE_FLOATS / members */
    MPI_Request *request; /* [2 * members] */
    int n_request;
    float *parts; /* [SMP__PIECE_FLOATS] */
    bool bf16;    /* for the caller to set: sums as smp_sum.bf16 says */
    float *came;  /* `data` of a gather in bf16 that is not done */
} smp__blocks;

smp_status smp__blocks_open(smp__blocks *b, MPI_Comm comm);
void smp__blocks_close(smp__blocks *b); /* accepts what was not opened */

/* Sends every member its block of data; in bf16 it is lost here. */
smp_status smp__blocks_scatter(smp__blocks *b, float *data);
/* After that: the sums of the own block, in data. */
void smp__blocks_fold(smp__blocks *b, float *data);
/* Sends the own block to all and gets theirs. */
smp_status smp__blocks_gather(smp__blocks *b, float *data);
smp_status smp__blocks_test(smp__blocks *b, bool *done);

#endif
