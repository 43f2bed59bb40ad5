/* Layers of a model, as the names of its ops tell: an op belongs to a layer if its name up to the
 * first '.' ends in a digit ("h0.attn": layer "h0"), or has a number between dots, as modules of
 * lists have ("model.layers.0.attn": layer "model.layers.0"). */
#ifndef SMP_SCHEDULE_PLAN_LAYER_NAMES_H
#define SMP_SCHEDULE_PLAN_LAYER_NAMES_H

#include <stdbool.h>
#include <stddef.h>

#include "graph/model/graph.h"

/* Length of the layer's name at the head of an op's name; 0: the op names no layer. */
size_t smp_layer_length(const char *name);
/* Length of what layers of a kind have in common: without the number. */
size_t smp_layer_kind_length(const char *name);
/* Do two ops name the same layer, a layer of one kind? */
bool smp_same_layer(const char *a, const char *b);
bool smp_same_layer_kind(const char *a, const char *b);
/* Marks the ops that begin a layer, and the first after the last layer: [n_op]. What names none
 * between two layers belongs to the first. Returns how many; 0: no op names a layer. */
int32_t smp_layers_begin(const smp_graph *graph, bool *begins);

#endif
