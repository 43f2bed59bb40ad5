/* How a model is split over devices, as plans say it: a choice, as text, for each op that is. */
#ifndef SMP_GRAPH_SPLIT_SPLITTING_H
#define SMP_GRAPH_SPLIT_SPLITTING_H

#include "graph/split/graph_split.h"

typedef struct smp_split_entry {
    const char *op, *as; /* a name; see graph/split/split_text.h */
    smp_where where;     /* in a file, for messages; may be empty */
} smp_split_entry;

typedef struct smp_splitting {
    int devices; /* that compute each op together; 0, 1: every one alone */
    int32_t n_entry;
    const smp_split_entry *entry; /* [n_entry]; an op without one is computed whole by all */
    bool overlap; /* weight gradients are put off to run beside exchanges (graph/split/overlap.h) */
} smp_splitting;

/* The graph of device `index`, owned by the caller; `whole` has to outlive it. SMP_ERR_INPUT: an op
 * that the model lacks or that is named twice, a choice that its kind does not allow. */
smp_status smp_splitting_split(const smp_splitting *splitting, int index, const smp_graph *whole,
                               smp_graph **out);
/* *graph becomes that of device `index`, and owns the whole one; as it is for one device. On
 * failure it is as before. */
smp_status smp_splitting_apply(const smp_splitting *splitting, int index, smp_graph **graph);

/* The entries of the ops that are not whole, in op order, in `arena`. choice: [n_op]. */
smp_status smp_splitting_make(const smp_graph *whole, int devices, const smp_split_choice *choice,
                              smp_arena *arena, smp_splitting *out);

#endif
