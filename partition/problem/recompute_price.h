/* What recomputing a part of a stage's stash costs, before anyone chose its ops: the cheap and
 * large go first (norms, GELU, attention probabilities), so the first bytes cost little and the
 * last ones most. One convex curve of the whole model stands for every stage; it is a model of the
 * cost, no bound. */
#ifndef SMP_PARTITION_PROBLEM_RECOMPUTE_PRICE_H
#define SMP_PARTITION_PROBLEM_RECOMPUTE_PRICE_H

#include "partition/problem/problem.h"

enum { SMP__PRICE_PIECES = 8 };

/* From (0, 0) by straight pieces, ever steeper, to (1, 1). */
typedef struct smp__price {
    double saved[SMP__PRICE_PIECES];   /* where a piece ends: share of the stash, */
    double forward[SMP__PRICE_PIECES]; /* share of the forward time that makes it again */
} smp__price;

/* O(n_op); nothing to do where the problem leaves no choice. */
void smp__price_make(const smp_problem *problem, smp__price *out);

/* Share of a stage's forward time that makes `share` (0..1) of its stash again. */
static inline double smp__price_at(const smp__price *price, double share)
{
    double from = 0.0, before = 0.0;
    if (share <= 0.0 || share >= 1.0)
        return share >= 1.0 ? 1.0 : 0.0;
    int i = 0;
    for (; i < SMP__PRICE_PIECES - 1 && price->saved[i] <= share; i++) {
        from = price->saved[i];
        before = price->forward[i];
    }
    return before + (share - from) / (price->saved[i] - from) * (price->forward[i] - before);
}

#endif
