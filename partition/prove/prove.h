/* Bounds and exact search in order of what they cost, on a partition that is there already. */
#ifndef SMP_PARTITION_PROVE_PROVE_H
#define SMP_PARTITION_PROVE_PROVE_H

#include "partition/prove/exact.h"

/* Raises (*partition)->lower_bound_us by exact search and replaces *partition, which is a partition
 * of this problem, where the search finds a better one. Bounded in time and memory; what was proven
 * until then stays valid. With tied weights the bound holds whether they are kept together or not.
 * Writes *partition only on success. */
smp_status smp_partition_prove(const smp_problem *problem, smp_partition **partition);

/* What smp_partition_prove does, within limits; an improved partition gets `solver` as its name. */
smp_status smp__prove(const smp_problem *problem, const smp__exact_limits *limits,
                      const char *solver, smp_partition **partition);

#endif
