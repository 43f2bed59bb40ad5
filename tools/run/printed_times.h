/* Where the time of a step went, as text or JSON. */
#ifndef SMP_TOOLS_RUN_PRINTED_TIMES_H
#define SMP_TOOLS_RUN_PRINTED_TIMES_H

#include "graph/base/status.h"
#include "schedule/trace/run_record.h"

/* A step that is so much longer or shorter than predicted was misjudged, which is said. */
#define SMP__MISJUDGED 0.15

/* To standard output. steps: that they are the mean of, which is > 0. Of many ranks the text has
 * the first ones, JSON all. */
smp_status smp__print_times(const smp_rank_time *rank, int n_rank, int64_t steps, bool json);

#endif
