/* Huge graphs, made smaller before they are partitioned. */
#ifndef SMP_PARTITION_PROBLEM_COARSE_H
#define SMP_PARTITION_PROBLEM_COARSE_H

#include "partition/problem/problem.h"

/* True if a coarser problem is as good: millions of ops, far more than stages, and nothing that
 * ties single ops to a place or, but for a few side by side, to each other. O(n_op). */
bool smp__coarse_is_enough(const smp_problem *problem);

/* label: [n_op], for smp_problem.together. Runs of about sixteen consecutive ops, ended where few
 * bytes are alive; none holds more than a five-hundredth of a stage's share of the work, but for
 * what problem->together wants together. O(graph). */
void smp__coarse_label_runs(const smp_problem *problem, int32_t *label);

/* A lower bound for the problem itself, whatever is kept together: fair share, largest op.
 * O(n_op). */
double smp__coarse_bound(const smp_problem *problem, const char **name);

#endif
