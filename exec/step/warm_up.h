/* What is slow the first time, done before the weights are there. */
#ifndef SMP_EXEC_STEP_WARM_UP_H
#define SMP_EXEC_STEP_WARM_UP_H

#include "exec/state/handle.h"

smp_status smp__warm_up(smp *s);

#endif
