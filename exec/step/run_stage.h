/* The kernels of one action. */
#ifndef SMP_EXEC_STEP_RUN_STAGE_H
#define SMP_EXEC_STEP_RUN_STAGE_H

#include "exec/state/handle.h"

smp_status smp__stage_forward(smp *s, int chunk, int microbatch);
smp_status smp__stage_backward(smp *s, int chunk, int microbatch); /* B */
smp_status smp__stage_input(smp *s, int chunk, int microbatch);    /* I */
smp_status smp__stage_weight(smp *s, int chunk, int microbatch);   /* W */

#endif
