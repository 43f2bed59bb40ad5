/* Which splitting takes the least time: for every op a choice, with the costs of bringing tensors
 * from the ways in which they are made into those in which they are read. */
#ifndef SMP_GRAPH_SPLIT_SPLIT_CHOOSE_H
#define SMP_GRAPH_SPLIT_SPLIT_CHOOSE_H

#include "graph/split/graph_split.h"

/* Microseconds, forward and backward together, not negative; INFINITY: not to be had. */
typedef struct smp_split_costs {
    void *context;
    double (*op_us)(void *context, int32_t op, smp_split_choice choice);
    /* One conversion of a tensor of the whole graph, as smp_graph_split makes it. */
    double (*move_us)(void *context, int32_t tensor, smp_spread from, smp_spread to);
    /* The same for tensors whose conversions all cost the same, else different or NULL, so that
     * equal layers are looked at once. May be NULL. */
    const void *(*move_like)(void *context, int32_t tensor);
    double far_us; /* as much or more is no time: it keeps a choice away; 0: there is no such */
} smp_split_costs;

/* choice: [n_op]; where fixed (NULL: nowhere) is true it stays as it is. us: what smp_graph_split's
 * graph takes. exact: no splitting takes less; false where so many tensors are alive at a time that
 * only the best beginnings were followed. SMP_ERR_INPUT: the fixed ones do not go together.
 *
 * Dynamic programming over the ops in order (as the intra-operator pass of Alpa, Zheng et al. 2022,
 * on chains): a state says in which ways each tensor that is still read exists on the devices, and
 * which part of each weight that is used again they have; of equal states the cheapest goes on.
 * O(ops * states * choices), but for ops that follow equal ones in equal states. */
smp_status smp_split_choose(const smp_graph *graph, int devices, const smp_split_costs *costs,
                            const bool *fixed, smp_split_choice *choice, double *us, bool *exact);

#endif
