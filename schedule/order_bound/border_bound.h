/* What a step in a rule's order takes at least where ops are whole
 * (schedule/order_bound/border_bound.c). */
#ifndef SMP_SCHEDULE_ORDER_BOUND_BORDER_BOUND_H
#define SMP_SCHEDULE_ORDER_BOUND_BORDER_BOUND_H

#include "schedule/order_bound/path_bound.h"

typedef struct smp__border_problem {
    const smp__path_problem *in; /* no stage beside */
    int n_mean;                  /* means of paths to begin with */
    const smp__path *mean;
    /* The longest path where the stages weigh that much, [stages]. */
    void (*longest)(void *context, const smp__op_times *load, smp__path *path);
    void *context;
} smp__border_problem;

/* Raises the bound, to most_us at most. Where ops stand beside the
 * chain only if each stage runs ahead of the next one (path_bound.c). */
smp_status smp__border_bound(const smp__border_problem *problem, smp_arena *arena,
                             smp__whole_ops *whole);

#endif
