/* Cutting a sequence into stages: the exact minimax split, and the split that needs least
 * memory. */
#ifndef SMP_PARTITION_CUT_BEST_SPLIT_H
#define SMP_PARTITION_CUT_BEST_SPLIT_H

#include "partition/cut/sequence.h"

typedef enum smp__goal {
    SMP__GOAL_SLOWEST, /* least load of the slowest stage; ties: least sum of loads */
    SMP__GOAL_TOTAL    /* least sum of loads, each at most the bound */
} smp__goal;

/* Where one was found: borders rise strictly from 0 to the number of positions. */
typedef struct smp__split {
    int32_t *border; /* [n_stage + 1]: stage k holds positions border[k] .. border[k + 1] - 1 */
    double slowest_us;
    double total_us;
    bool found;
    bool late;    /* the deadline struck: something better may exist */
    int64_t work; /* intervals looked at so far, over all calls */
} smp__split;

smp_status smp__split_init(smp__split *split, int n_stage, smp_arena *arena);

/* Dynamic program over borders with lo[k] <= border[k] <= hi[k] and the memory limits. SLOWEST
 * looks for loads below `bound`, TOTAL for loads of at most `bound`. Sets *found; border and values
 * only if something was found. O(sum over stages of pairs of borders times degree). */
smp_status smp__split_sweep(const smp__sequence *sequence, const int32_t *lo, const int32_t *hi,
                            smp__goal goal, double bound, smp__split *split);

/* The best split of the sequence with all loads below `bound` (INFINITY: any). If split->found is
 * set on entry, split->border holds a split to start from (its loads need not be below `bound`).
 * *found afterwards: a better one was found. Exact (for the sequence's idea of links) while the
 * pairs of borders that could beat the bound number at most max_pairs; beyond, only borders near
 * the best known ones are tried. */
smp_status smp__split_solve(const smp__sequence *sequence, double bound, int64_t max_pairs,
                            smp__split *split);

/* Among the splits with all loads at most `bound`: the least sum of loads. Same limits. */
smp_status smp__split_total(const smp__sequence *sequence, double bound, int64_t max_pairs,
                            smp__split *split);

/* Windows that hold every split which respects pins and memory (partition/cut/memory_split.c),
 * narrowest as far as memory grows with a stage. False: there is none. lo and hi: [n_stage + 1].
 * O(n * degree). */
bool smp__memory_windows(const smp__sequence *sequence, int32_t *lo, int32_t *hi);

/* Every stage, from the front, takes as much as it can hold. True: that is a split that fits. */
bool smp__split_greedy(const smp__sequence *sequence, int32_t *border);

/* The split whose fullest stage is least full, to one part in a thousand; found unless pins forbid
 * all. *fullest is its largest memory / limit, at most. Exact as smp__split_sweep where walks do
 * not decide and the pairs of borders are not too many. Uses sequence->limit_share. Stops at the
 * deadline. */
smp_status smp__split_memory(smp__sequence *sequence, smp__split *split, double *fullest);

#endif
