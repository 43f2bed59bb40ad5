/* What of the exchanges of a backward pass the weight gradients beside them hide. */
#ifndef SMP_PROFILE_OVERLAP_COSTS_H
#define SMP_PROFILE_OVERLAP_COSTS_H

#include "profile/costs.h"

/* Do exchanges of a group run beside compute? Not where the cores that compute move the data. */
bool smp_group_overlaps(const smp_cluster *cluster);

/* Takes off every exchange's cost what the weight gradients that graph/split/overlap.h puts beside
 * it take, as if the model were one stage. Nothing is hidden unless the graph overlaps, and
 * exchanges do. cost: that of `costs`, still to be changed. */
smp_status smp__overlap_costs(const smp_graph *graph, const smp_cluster *cluster, smp_op_cost *cost,
                              smp_costs *costs);

/* What the backward of a stage takes beyond the costs of its ops: what was counted as hidden by
 * weight gradients of another stage, or in a split backward by any. op [n]: its ops, in order. */
smp_status smp_costs_exposed_us(const smp_costs *costs, const smp_graph *graph, const int32_t *op,
                                int32_t n, bool split, double *us);
#endif
