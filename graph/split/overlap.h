/* What runs beside exchanges of a backward pass: weight gradients, which nothing waits for. */
#ifndef SMP_GRAPH_SPLIT_OVERLAP_H
#define SMP_GRAPH_SPLIT_OVERLAP_H

#include "graph/model/op.h"

/* op [n]: those of a stage, in order. beside[i]: the one of them beside whose exchange the weight
 * gradient of op[i] is made, an index below i; -1: right before its input gradient. All -1 unless
 * graph->overlap. Nobody's sum changes its order: gradients of a weight are added by micro-batch,
 * those of its uses apart.
 *
 * Going backward, an exchange that may be begun and ended (backward_input_begin) takes what matrix
 * products have left since the exchange before it. Exchanges one after the other with no product
 * in between share that evenly, what came first to the first. A product whose output is over four
 * times as large as what is exchanged, as that of a large vocabulary, is not put off. O(n). */
void smp_overlap_find(const smp_graph *graph, const int32_t *op, int32_t n, int64_t batch,
                      int32_t *beside);

#endif
