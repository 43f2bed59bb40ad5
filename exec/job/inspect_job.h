/* What a program may look at between steps, besides the calls of smp.h. */
#ifndef SMP_EXEC_JOB_INSPECT_JOB_H
#define SMP_EXEC_JOB_INSPECT_JOB_H

#include "schedule/plan/plan.h"
#include "schedule/trace/trace.h"

/* Writes the file `path` of the events of a step, measured: [n], of all ranks. */
typedef smp_status smp__event_writer(const smp_plan *plan, const smp_graph *graph, const char *path,
                                     const smp_trace_event *measured, int64_t n, const void *data);

/* Has rank 0 write the events of the last step; data: for its writer. Needs record_trace.
 * Collective. */
smp_status smp__events_write(smp *s, const char *path, smp__event_writer *writer, const void *data);

#endif
