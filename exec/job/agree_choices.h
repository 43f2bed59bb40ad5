/* All ranks take the same of several ways to compute something. */
#ifndef SMP_EXEC_JOB_AGREE_CHOICES_H
#define SMP_EXEC_JOB_AGREE_CHOICES_H

#include "exec/state/handle.h"

/* After the first run of the kernels, with the device idle: what one rank has refused nobody takes
 * (graph/model/choice.h). Notes in device_note which preferred way is not taken, and why.
 * SMP_ERR_FAILED: there is none left. Collective; O(choices of all ranks) memory and time. */
smp_status smp__agree_choices(smp *s);

#endif
