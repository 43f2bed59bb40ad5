/* The registered partitioners. */
#ifndef SMP_PARTITION_SOLVE_PARTITIONER_REGISTRY_H
#define SMP_PARTITION_SOLVE_PARTITIONER_REGISTRY_H

#include "partition/solve/partitioner.h"

extern const smp_partitioner smp__partitioner_equal_layers;
extern const smp_partitioner smp__partitioner_equal_parameters;
extern const smp_partitioner smp__partitioner_exact;
extern const smp_partitioner smp__partitioner_linear;
extern const smp_partitioner smp__partitioner_metis_kway;
extern const smp_partitioner smp__partitioner_metis_recursive;
extern const smp_partitioner smp__partitioner_refine;

#endif
