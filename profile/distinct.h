/* Ops that cannot differ in time: same kind, attributes, input shapes and types, weight shapes, and
 * wanted gradients. Internal to the layer. */
#ifndef SMP_PROFILE_DISTINCT_H
#define SMP_PROFILE_DISTINCT_H

#include "graph/model/op.h"

typedef struct smp__distinct {
    int32_t n;               /* classes, in order of their first op */
    const int32_t *class_of; /* [n_op] */
    const int32_t *first;    /* [n] lowest op of each class */
} smp__distinct;

/* Everything in `arena`. */
smp_status smp__distinct_ops(const smp_graph *graph, smp_arena *arena, smp__distinct *out);

#endif
