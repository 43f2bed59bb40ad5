/* What it costs that a rank gets a core from another one, as a probe measures it. */
#ifndef SMP_EXEC_PROBE_PROBE_CORE_H
#define SMP_EXEC_PROBE_PROBE_CORE_H

#include "graph/base/status.h"

/* The median of so many turns of each of two threads, on the core that a rank of this number on its
 * node would have. Calls no MPI. SMP_ERR_FAILED if the second thread cannot be started. */
smp_status smp__probe_core_switch(int node_rank, int turns, double *us);

/* What a core hashes and writes to memory that outlives processes, as ranks keep states
 * (exec/save/checkpoint_keep.h), in a second of its own time: the median of some. */
smp_status smp__probe_keeping(double *bytes_per_s);

#endif
