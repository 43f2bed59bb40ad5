/* What SIGTERM and SIGUSR1 do to a rank. mpirun passes SIGUSR1 on to all ranks, and sends them
 * SIGTERM when it gets it, or when a rank has died. */
#ifndef SMP_EXEC_JOB_ON_SIGNAL_H
#define SMP_EXEC_JOB_ON_SIGNAL_H

#include <signal.h>
#include <stdbool.h>

#include "smp.h"

/* From now on, where the job `saves`, both ask for its end: see smp__signal_asked. Where it does
 * not, and after a rank of this machine has died, they print rank, stage, micro-batch and action in
 * progress to standard error and end the process with exit code 1. `s` must live until the process
 * ends or the next call. NULL: there is no job yet, SIGUSR1 asks for its end; and without `saves`
 * back to the defaults. To be called by the thread that computes, which gets a stack for signals:
 * see smp_step in smp.h. */
void smp__on_signal(smp *s, bool saves);

/* The signal that asks for the end, 0: none. Ranks agree on it at the end of a step
 * (smp__step_sums_end_asked). */
const volatile sig_atomic_t *smp__signal_asked(void);

#endif
