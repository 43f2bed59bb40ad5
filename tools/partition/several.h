/* Several plans: those that are there, or one for each value of an option. */
#ifndef SMP_TOOLS_PARTITION_SEVERAL_H
#define SMP_TOOLS_PARTITION_SEVERAL_H

#include "tools/partition/partition_options.h"

/* Reads the plans of `compare` with their models, prints the table, writes --csv and --svg. */
smp_status smp_compare_plans(const smp_partition_options *options);

/* The same of a plan for each combination of the values of --sweep. Where a combination has no
 * plan, its row says why. Errors: SMP_ERR_NO_FIT: none has one. */
smp_status smp_sweep_plans(const smp_partition_options *options);

#endif
