/* What a rank says when the job is ended from outside: mpirun sends SIGTERM to the others when a
 * rank has died. */
#ifndef SMP_EXEC_JOB_ON_SIGTERM_H
#define SMP_EXEC_JOB_ON_SIGTERM_H

#include "smp.h"

/* From now on SIGTERM prints rank, stage, micro-batch and action in progress to standard error and
 * ends the process with exit code 1. `s` must live until the process ends or the next call; NULL:
 * back to the default. */
void smp__on_sigterm(const smp *s);

#endif
