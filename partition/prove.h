/* Bounds and exact search in order of what they cost, on a partition that is there already. */
#ifndef SMP_PARTITION_PROVE_H
#define SMP_PARTITION_PROVE_H

#include "partition/exact.h"
#include "partition/partitioner.h"

/* What smp_partition_prove does, within limits; an improved partition gets `solver` as its name. */
smp_status smp__prove(const smp_problem *problem, const smp__exact_limits *limits,
                      const char *solver, smp_partition **partition);

#endif
