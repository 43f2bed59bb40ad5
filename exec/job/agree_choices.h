/* All ranks take the same of several ways to compute something. */
#ifndef SMP_EXEC_JOB_AGREE_CHOICES_H
#define SMP_EXEC_JOB_AGREE_CHOICES_H

#include "exec/state/handle.h"

/* Runs the kernels, each time until the device is idle, until every rank has run what all take: of
 * several ways to compute something (graph/math/choice.h) and of the algorithms of products
 * (agree_gemms.h) nobody takes what one rank has refused. `run` is collective and returns the
 * same on all ranks. Notes in device_note which preferred way is not taken, and why.
 * SMP_ERR_FAILED: there is none left. Collective; O(choices of all ranks) memory and time. */
smp_status smp__agree_kernels(smp *s, smp_status (*run)(smp *));

#endif
