/* What memory, and links of several kinds, add to the bottleneck whatever the partition: a bound by
 * prices. */
#ifndef SMP_PARTITION_PROVE_PRICED_H
#define SMP_PARTITION_PROVE_PRICED_H

#include "partition/problem/problem.h"

/* A value that the backward pass reads: the stage of the op that reads it keeps it for each of its
 * live micro-batches, unless `maker` lies there too and is made again; and if weight gradients read
 * it, in any case for each late one. */
typedef struct smp__kept {
    int32_t maker;
    bool for_weight;
    int64_t bytes; /* of one micro-batch, at most what is reserved */
    double share;  /* of the maker's forward time; of all values of an op together at most 1 */
} smp__kept;

/* What every pipeline reserves at least. */
typedef struct smp__least_memory {
    const int64_t *state_bytes; /* [n_op] for ever, where the op lies */
    const int64_t
        *kept_begin; /* [n_op + 1] into kept, by reader; NULL: nothing is known to be kept */
    const smp__kept *kept;
    const double
        *recompute_us; /* [n_op] a forward more, on device 0; NULL: nothing is made again */
    const int64_t
        *late_bytes; /* [n_op] kept where the op lies for each late micro-batch; NULL as well */
    /* [n_stage] At one action of the stage's rank: micro-batches between their forward and their
     * backward, and those whose weight gradients have still to be made after it. */
    const int *live, *late;
    const int64_t *limit; /* [pipeline] bytes of the rank; INT64_MAX: any */
} smp__least_memory;

/* No partition that fits has a smaller bottleneck; of the problem compute, devices, links and pins
 * count. target_us: the bottleneck of one that fits. work: steps of the innermost loop;
 * 0 where that is too little. O(work + ops + edges). */
smp_status smp__bound_by_prices(const smp_problem *problem, const smp__least_memory *memory,
                                double target_us, double work, double *bound_us);

#endif
