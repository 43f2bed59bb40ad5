/* Topological orders of units.
 *
 * An order is an array of units by position. Any legal pipeline is the split of some order, so the
 * orders decide what the best split can find. */
#ifndef SMP_PARTITION_PROBLEM_ORDER_H
#define SMP_PARTITION_PROBLEM_ORDER_H

#include "partition/problem/unit_graph.h"

typedef enum smp__order_kind {
    SMP__ORDER_FILE,    /* of the model, as far as groups allow */
    SMP__ORDER_FORWARD, /* depth first from the sources: a branch is finished before the next */
    SMP__ORDER_DEMAND,  /* depth first from the sinks: an op stands just before what needs it */
    SMP__ORDER_LEVELS,  /* breadth first */
    SMP__ORDER_NARROW,  /* greedy: the ready unit after which the fewest bytes are alive */
    SMP__ORDER_RANDOM,  /* a random ready unit */
    SMP__N_ORDER
} smp__order_kind;

/* Fills order[n]. Ties between children or ready units are broken by unit index if seed is 0, else
 * at random. O((n + nets) log n). */
smp_status smp__order_make(const smp__units *units, smp__order_kind kind, uint64_t seed,
                           int32_t *order);

/* Among the ready units the one with the smallest (key, unit) first: the topological order closest
 * to sorting by key. */
smp_status smp__order_by_key(const smp__units *units, const double *key, int32_t *order);

/* Stable sort of an order by stage[unit], where stage rises along nets: stays topological. */
smp_status smp__order_by_stage(const smp__units *units, int n_stage, const int32_t *stage,
                               int32_t *order);

/* Moves units so that the order can be cut at stages that respect lo..hi: sorts it by the stage
 * that the cumulative compute suggests, plus `shift`, clamped to the range. Clamping is monotone,
 * so the order stays topological. */
smp_status smp__order_clamp(const smp__units *units, int n_stage, const int32_t *lo,
                            const int32_t *hi, double shift, int32_t *order);

/* True if every unit reads the one before it: there is no other order. */
bool smp__order_is_unique(const smp__units *units);

#endif
