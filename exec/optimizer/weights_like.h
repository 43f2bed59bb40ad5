/* Settings of single weights: --weights-like 'PATTERN:KEY=VALUE,...'. */
#ifndef SMP_EXEC_OPTIMIZER_WEIGHTS_LIKE_H
#define SMP_EXEC_OPTIMIZER_WEIGHTS_LIKE_H

#include "exec/optimizer/optimizer.h"
#include "graph/model/graph.h"

/* settings: [graph->n_param], those of the options, and over them what the weights_like that match
 * the weight's name say, in their order. `graph` is the whole one. SMP_ERR_INPUT, with the entry
 * and the character in it: what is not of the form, a pattern that matches no weight, or none but
 * running statistics, a key that is unknown or that the optimizer does not read, a value out of
 * range. */
smp_status smp_weights_like(const smp_optimizer_options *options, const smp_optimizer *optimizer,
                            const smp_graph *graph, smp_update_settings *settings);

#endif
