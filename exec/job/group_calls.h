/* Memory for the calls of smp.h that a program makes over a group of ranks. */
#ifndef SMP_EXEC_JOB_GROUP_CALLS_H
#define SMP_EXEC_JOB_GROUP_CALLS_H

#include "exec/state/handle.h"

/* Not collective. */
smp_status smp__group_calls_build(smp *s);
void smp__group_calls_free(smp *s);

#endif
