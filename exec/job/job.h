/* Building and freeing everything after the groups exist. */
#ifndef SMP_EXEC_JOB_JOB_H
#define SMP_EXEC_JOB_JOB_H

#include "exec/state/handle.h"

smp_status smp__job_build(smp *s);
void smp__job_free(smp *s);

#endif
