/* The two ways to treat tied weights, solved once; which is better depends on the number of
 * micro-batches. */
#ifndef SMP_PARTITION_SOLVE_SOLVE_H
#define SMP_PARTITION_SOLVE_SOLVE_H

#include "partition/problem/unit_graph.h"
#include "partition/solve/partitioner.h"

/* Nothing better can exist; or, for a large graph, nothing better by more than 0.2 %. */
static inline bool smp__close_enough(const smp_problem *problem, double bottleneck_us,
                                     double lower_bound_us)
{
    double gap = problem->graph->n_op > 4000 ? 2e-3 : 1e-9;
    return bottleneck_us <= lower_bound_us * (1.0 + gap);
}

/* Tied weights are a choice of two problems rather than a cost in one: kept together they merge
 * units, split they are paid once per step, which the bottleneck per micro-batch does not know. */
typedef struct smp__variants {
    smp_partition *together; /* ties kept together, or no ties; NULL: no pipeline has them so */
    smp_partition *split;    /* NULL: not tried, or as above */
} smp__variants;

smp_status smp__variants_solve(const smp_problem *problem, const char *name, smp__variants *out);
void smp__variants_destroy(smp__variants *variants); /* frees the contents */

/* The better one; a split tie is charged its exchange. Borrowed. */
smp_status smp__variants_choose(const smp_problem *problem, const smp__variants *variants,
                                int microbatches, const smp_partition **out);

#endif
