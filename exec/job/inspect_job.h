/* What a program may look at between steps, besides the calls of smp.h. */
#ifndef SMP_EXEC_JOB_INSPECT_JOB_H
#define SMP_EXEC_JOB_INSPECT_JOB_H

#include "exec/state/handle.h"

/* Writes a page of the last step, predicted above measured. Needs record_trace and a plan with
 * `cluster:`. Collective; rank 0 writes. */
smp_status smp__report_write(smp *s, const char *path);

#endif
