/* The model as a line of layers, as frameworks cut it: the embedding (all ops before the first
 * layer), the layers, the head (all ops after the last one). An op belongs to the layer that its
 * name tells (schedule/plan/layer_names.h), or to the one before it if it stands between layers. */
#ifndef SMP_SCHEDULE_EXPORT_LAYER_LINE_H
#define SMP_SCHEDULE_EXPORT_LAYER_LINE_H

#include "schedule/plan/plan.h"

typedef struct smp__layer_line {
    int32_t n; /* units: embedding, layers, head */
    int32_t n_layer;
    bool embedding, head;    /* the first / last unit is one */
    const char *other_layer; /* a layer of another kind than the first: but for its number it has
                                another name; NULL: none */
    const char *const *name; /* [n] */
    const int32_t *stage;    /* [n] rising */
    smp_arena *arena;
} smp__layer_line;

/* SMP_ERR_INPUT if the model has no layers, the ops of a unit lie in several stages, or units and
 * stages disagree in order. format: for the message. Freed by destroying line->arena. O(ops). */
smp_status smp__layer_line_of(const smp_plan *plan, const smp_graph *graph, const char *format,
                              smp__layer_line *line);

#endif
