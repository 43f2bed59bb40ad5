/* Sums of host memory over the members of a communicator, block by block: every member gets what
 * the others have of its block, adds it up in one tree (sum_terms.h), and gives the sums to the
 * others, so the bits depend on the order of the members' terms alone. Each half is started, then
 * tested; one is in flight at a time, in the same order everywhere.
 *
 * In bf16 half of the bytes are sent. A number takes the place of its float on both sides: packed
 * at the front of a block before it is sent, received at its end and widened from the front on. */
#ifndef SMP_EXEC_TRANSPORT_REDUCE_BLOCKS_H
#define SMP_EXEC_TRANSPORT_REDUCE_BLOCKS_H

#include <mpi.h>
#include <stdbool.h>

#include "schedule/plan/sum_terms.h"

enum { SMP__PIECE_FLOATS = 1 << 20 }; /* of all members' terms together: they stay in caches */

/* A block of member i: count floats from offset on. */
typedef struct smp__block {
    int64_t offset;
    int count;
} smp__block;

typedef struct smp__blocks {
    MPI_Comm comm; /* the caller's */
    int members, own;
    const smp_sum_terms *terms;
    smp_sum_terms single; /* of sums to which each member brings one */
    int64_t most;         /* elements of a block */
    smp__block *block;    /* [members], for the caller to fill */
    MPI_Request *request;
    int n_request;
    float *parts; /* [SMP__PIECE_FLOATS] */
    float *more;  /* for the caller to set, where there are several terms: as smp_sum.more */
    int64_t stride;
    bool bf16;   /* for the caller to set: sums as smp_sum.bf16 says */
    float *came; /* `data` of a gather in bf16 that is not done */
} smp__blocks;

/* terms: of the sums, the caller's; NULL: one of each member. */
smp_status smp__blocks_open(smp__blocks *b, MPI_Comm comm, const smp_sum_terms *terms);
void smp__blocks_close(smp__blocks *b); /* accepts what was not opened */

/* Sends every member its block of data; in bf16 it is lost here. */
smp_status smp__blocks_scatter(smp__blocks *b, float *data);
/* After that: the sums of the own block, in data. */
void smp__blocks_fold(smp__blocks *b, float *data);
/* Sends the own block to all and gets theirs. */
smp_status smp__blocks_gather(smp__blocks *b, float *data);
smp_status smp__blocks_test(smp__blocks *b, bool *done);

#endif
