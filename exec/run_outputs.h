/* The files that a run will write. */
#ifndef SMP_EXEC_RUN_OUTPUTS_H
#define SMP_EXEC_RUN_OUTPUTS_H

#include "exec/trainer.h"

/* What the end of the job will write can be written: found now, not after hours. */
smp_status smp__outputs_check(const smp__trainer *t);

#endif
