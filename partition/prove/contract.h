/* Units that cost nothing, joined to a neighbour where no pipeline loses by it. */
#ifndef SMP_PARTITION_PROVE_CONTRACT_H
#define SMP_PARTITION_PROVE_CONTRACT_H

#include "partition/problem/unit_graph.h"

/* *label: [n_op] of the arena, for the problem's `together`, which it contains; NULL where nothing
 * is joined. Of the pipelines of at most n_stage stages one of least bottleneck keeps these labels.
 * O(ops + nets). */
smp_status smp__contract(const smp_problem *problem, const smp__units *units, smp_arena *arena,
                         int32_t **label);

#endif
