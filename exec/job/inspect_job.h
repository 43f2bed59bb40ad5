/* What a program may look at between steps, besides the calls of smp.h. */
#ifndef SMP_EXEC_JOB_INSPECT_JOB_H
#define SMP_EXEC_JOB_INSPECT_JOB_H

#include "exec/state/handle.h"
#include "schedule/trace/run_record.h"

/* Writes a page of the last step, predicted above measured, and of the run. Needs record_trace and
 * a plan with `cluster:`. run: of rank 0, which writes; may be NULL. Collective. */
smp_status smp__report_write(smp *s, const char *path, const smp_run_record *run);

#endif
