/* What the baselines that cut the file order into equal parts share. */
#ifndef SMP_PARTITION_SOLVE_BASELINE_H
#define SMP_PARTITION_SOLVE_BASELINE_H

#include "partition/problem/unit_graph.h"

/* The pipeline nearest to a wish. wish: [units->n] stage, 0..n_stage-1, for each unit; overwritten.
 * Units follow what they read, keep to their pins, and a stage that would be empty takes a unit of
 * its neighbours. Sets lower_bound_us, bound and solver. O(n_op + nets). */
smp_status smp__baseline_finish(const smp_problem *problem, const smp__units *units, int32_t *wish,
                                const char *solver, smp_partition **out);

#endif
