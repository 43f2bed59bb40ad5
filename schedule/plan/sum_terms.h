/* Terms of the sums of a reach: what its members bring, in the order of the tree of
 * schedule/plan/gradient_blocks.h, and how they are added. A member brings a node of the tree, or
 * some where its gradient blocks make no single one; likewise a sum leaves one, or some where its
 * members' blocks make no single one, which another sum goes on with. */
#ifndef SMP_SCHEDULE_PLAN_SUM_TERMS_H
#define SMP_SCHEDULE_PLAN_SUM_TERMS_H

#include "schedule/plan/gradient_blocks.h"

typedef struct smp_sum_terms {
    int members;
    int n;      /* terms of all members */
    int *first; /* [members + 1]: member i brings terms first[i] .. first[i + 1] - 1 */
    int n_add;
    int *to, *from; /* [n_add]: term `from` is added to term `to`, in this order */
    int n_left;
    int *left; /* [n_left]: terms that hold what is left, in order */
    int width; /* arrays of the member that has most, before or after the sum */
} smp_sum_terms;

/* Neighbouring replicas of a job, `each` to a member. */
typedef struct smp_sum_members {
    int n, first, each; /* members, the first replica of the first one, replicas */
} smp_sum_members;

/* What members bring of `blocks` blocks on `ddp` replicas. On failure it is to be freed too. */
smp_status smp__sum_terms_make(smp_sum_terms *terms, int blocks, int ddp, smp_sum_members of);
void smp__sum_terms_free(smp_sum_terms *terms); /* accepts what was not made */

/* Pieces of a sum: so many elements of every member's part at once, where the arrays of a piece,
 * those that come and those that go, have room for `floats`. A multiple of 32 unless there is room
 * for fewer: a piece is then as aligned as the array. */
int64_t smp__sum_terms_piece(const smp_sum_terms *terms, int64_t floats);

/* Array i of n that a member brings or has left: the last one is `data`, those before it are in
 * `more`, `stride` apart. */
static inline float *smp__sum_array(float *data, float *more, int64_t stride, int i, int n)
{
    return i + 1 == n ? data : more + i * stride;
}

static inline int smp__sum_terms_of(const smp_sum_terms *terms, int member)
{
    return terms->first[member + 1] - terms->first[member];
}

#endif
