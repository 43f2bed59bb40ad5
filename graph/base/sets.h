/* Disjoint sets of indices (Tarjan 1975, with path halving). parent[i] == i at the start; the
 * lowest member stands for its set, so results follow the order of indices. */
#ifndef SMP_GRAPH_BASE_SETS_H
#define SMP_GRAPH_BASE_SETS_H

#include <stdint.h>

static inline int32_t smp_set_find(int32_t *parent, int32_t i)
{
    while (parent[i] != i) {
        parent[i] = parent[parent[i]];
        i = parent[i];
    }
    return i;
}

static inline void smp_set_join(int32_t *parent, int32_t a, int32_t b)
{
    a = smp_set_find(parent, a);
    b = smp_set_find(parent, b);
    if (a < b)
        parent[b] = a;
    else
        parent[a] = b;
}

#endif
