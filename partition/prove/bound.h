/* What no bottleneck can be below, from cheap to dear. All bounds ignore memory limits. */
#ifndef SMP_PARTITION_PROVE_BOUND_H
#define SMP_PARTITION_PROVE_BOUND_H

#include "partition/prove/max_flow.h"
#include "partition/prove/window.h"

/* Compute alone. O(n log n). *name: what proves it, static text. */
smp_status smp__bound_by_compute(const smp_problem *problem, const smp__units *units,
                                 smp_arena *scratch, const char **name, double *bound_us);

/* What cuts may take: edges of networks looked at, and the time (see smp_problem.deadline_s). */
typedef struct smp__cut_limits {
    int64_t work;
    double deadline_s;
} smp__cut_limits;

/* The unavoidable transfers of the largest units: the least load of a stage with such a unit,
 * whatever else it holds, is a minimum cut. */
smp_status smp__bound_by_op_cuts(const smp__window *window, double known_us,
                                 smp__cut_limits *limits, double *bound_us);

/* Minimum cuts between what is surely before and what is surely after each border. */
typedef struct smp__cuts smp__cuts;

smp_status smp__cuts_create(smp__window *window, smp__cuts **out);
void smp__cuts_destroy(smp__cuts *cuts); /* accepts NULL */

/* Sets the window for a target and narrows it by the transfers that the cuts prove, as long as that
 * helps. *refuted: no pipeline has all loads below the target. */
smp_status smp__cuts_narrow(smp__cuts *cuts, double target_us, smp__cut_limits *limits,
                            bool *refuted);

/* The largest target between low_us and high_us that is refuted so, to about a thousandth of what
 * is between them; low_us if none is. */
smp_status smp__bound_by_cuts(smp__cuts *cuts, double low_us, double high_us,
                              smp__cut_limits *limits, double *bound_us);

#endif
