/* How a model is split over devices, as plans say it: a choice, as text, for each op that is. */
#ifndef SMP_GRAPH_SPLIT_SPLITTING_H
#define SMP_GRAPH_SPLIT_SPLITTING_H

#include "graph/split/graph_split.h"

typedef struct smp_split_entry {
    const char *op, *as; /* a name; see graph/split/split_text.h */
    smp_where where;     /* in a file, for messages; may be empty */
} smp_split_entry;

/* An op that fewer devices compute than most, as its stage is theirs. */
typedef struct smp_split_fewer {
    const char *op; /* a name; one that the model lacks stands for nothing */
    int devices;
} smp_split_fewer;

typedef struct smp_splitting {
    int devices; /* that compute each op together, of the largest group; 0, 1: every one alone */
    int32_t n_entry;
    const smp_split_entry *entry; /* [n_entry]; an op without one is computed whole by all */
    bool overlap; /* weight gradients are put off to run beside exchanges (graph/split/overlap.h) */
    int32_t n_fewer;
    const smp_split_fewer *fewer; /* [n_fewer]; all other ops: `devices` */
} smp_splitting;

/* How many devices compute each op: *devices is [n_op]. O(entries of `fewer`). */
void smp_splitting_devices(const smp_splitting *splitting, const smp_graph *whole, int *devices);

/* The graph of device `index`, owned by the caller; `whole` has to outlive it. Of a smaller group
 * it has the part of device `index` modulo its devices. SMP_ERR_INPUT: an op that the model lacks
 * or that is named twice, a choice that its kind does not allow. */
smp_status smp_splitting_split(const smp_splitting *splitting, int index, const smp_graph *whole,
                               smp_graph **out);
/* *graph becomes that of device `index`, and owns the whole one; as it is for one device. On
 * failure it is as before. */
smp_status smp_splitting_apply(const smp_splitting *splitting, int index, smp_graph **graph);

/* The entries of the ops that are not whole, in op order, in `arena`. choice: [n_op]. */
smp_status smp_splitting_make(const smp_graph *whole, int devices, const smp_split_choice *choice,
                              smp_arena *arena, smp_splitting *out);

#endif
