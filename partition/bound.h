/* What no pipeline can beat, from cheap to dear. All bounds ignore memory limits. */
#ifndef SMP_PARTITION_BOUND_H
#define SMP_PARTITION_BOUND_H

#include "partition/window.h"

/* Compute alone. O(n log n). *name: what proves it, static text. */
double smp__bound_by_compute(const smp_problem *problem, const smp__units *units,
                             smp_arena *scratch, const char **name);

#endif
