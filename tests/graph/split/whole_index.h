/* The plainest map from a device's part of a tensor to the whole: by coordinates. */
#ifndef SMP_TESTS_GRAPH_SPLIT_WHOLE_INDEX_H
#define SMP_TESTS_GRAPH_SPLIT_WHOLE_INDEX_H

#include "graph/model/graph.h"

/* Where element `e` of a device's part of something stands in the whole. */
static inline int64_t whole_index(const smp_shape *part, smp_part of, int64_t e)
{
    if (of.spread.way != SMP_SPLIT)
        return e;
    int64_t at[SMP_MAX_DIMS], index = 0;
    for (int k = part->n_dim - 1; k >= 0; k--) {
        at[k] = e % part->dim[k];
        e /= part->dim[k];
    }
    for (int k = 0; k < part->n_dim; k++) {
        int64_t size = part->dim[k], coordinate = at[k];
        if (k == of.spread.dim) {
            int64_t run = size / of.spread.blocks;
            coordinate = smp_split_part(of.spread.blocks, of.count, at[k] / run, of.index) * run +
                         at[k] % run;
            size *= of.count;
        }
        index = index * size + coordinate;
    }
    return index;
}

#endif
