/* What every choice of a splitting costs, for smp_split_choose: the costs of the ops that
 * smp_graph_split would make, and a price for memory. */
#ifndef SMP_PROFILE_SPLIT_PRICES_H
#define SMP_PROFILE_SPLIT_PRICES_H

#include "graph/split/split_choose.h"
#include "profile/costs.h"

typedef struct smp_split_prices smp_split_prices;

/* Prices for a whole graph, for its target, on groups of devices (smp_cluster_group). profile:
 * NULL, or one of the whole graph on that target. microbatches: in a step, which share the sums of
 * gradients that come once in it. O(distinct ops * choices * ops). */
smp_status smp_split_prices_make(const smp_graph *graph, const smp_cluster *groups,
                                 const smp_profile *profile, int64_t microbatch_size,
                                 int64_t microbatches, smp_split_prices **out);
void smp_split_prices_destroy(smp_split_prices *prices);

/* From now on a byte that a device keeps costs so much besides: of weights with all that is kept of
 * each element (smp_weight_element_bytes), and of what a micro-batch leaves for its backward. 0 and
 * 0 at first. */
void smp_split_prices_weigh(smp_split_prices *prices, double us_per_weight_byte,
                            double us_per_stash_byte);

/* From now on products that exchange in pieces (ops with weights, smp_op_exchange.beside) are taken
 * where nothing else goes, or, as at first, as they cost. What a price cannot know: an exchange by
 * an op of its own may be hidden behind weight gradients (graph/split/overlap.h). */
void smp_split_prices_avoid_pieces(smp_split_prices *prices, bool avoid);

/* Per micro-batch: forward and backward, with what is exchanged in ops; what a step has once, the
 * sums of gradients of which each device has a summand and the optimizer's updates, divided by the
 * micro-batches; and memory. Added up over a
 * splitting that is what smp_costs_build finds for its graph, but for
 *  - the memory of a weight with several uses, of which each has an equal part;
 *  - memory for the backward, of which each op that reads a tensor there has an equal part, in the
 *    way in which it reads it: more, where one way serves several, and less, where they differ;
 *  - on a GPU, products and what is fused to them, taken to be fused in their parts too. */
const smp_split_costs *smp_split_prices_costs(const smp_split_prices *prices);

#endif
