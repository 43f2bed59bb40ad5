/* Any assignment of units made a pipeline. */
#ifndef SMP_PARTITION_PROBLEM_LEGAL_H
#define SMP_PARTITION_PROBLEM_LEGAL_H

#include "partition/problem/unit_graph.h"

typedef enum smp__repair {
    SMP__PUSH, /* a unit moves to the latest stage that it reads from */
    SMP__PULL  /* a unit moves to the earliest stage that reads from it */
} smp__repair;

/* Moves each unit to the latest stage of those that it reads from, if that is later than its own.
 * O(n + nets). */
void smp__follow_inputs(const smp__units *units, int32_t *stage);

/* stage: [units->n], in 0..n_stage-1. Moves units into the ranges that pins leave, then along the
 * tensors until all flow forward, and fills empty stages from their neighbours. O(n + nets). */
smp_status smp__legalize(const smp_problem *problem, const smp__units *units, smp__repair repair,
                         int32_t *stage);

/* A pipeline without any search: the units in `order` (NULL: their own), shared out by speed. */
smp_status smp__share_out(const smp_problem *problem, const smp__units *units, const int32_t *order,
                          int32_t *stage);

#endif
