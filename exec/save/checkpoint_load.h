/* Loading another checkpoint than the one saved last. */
#ifndef SMP_EXEC_SAVE_CHECKPOINT_LOAD_H
#define SMP_EXEC_SAVE_CHECKPOINT_LOAD_H

#include "smp.h"

/* smp_load of the one whose evaluation had the lowest loss (of equals, what was saved first), or
 * SMP_ERR_INPUT: none was evaluated, or it is damaged. Collective. */
smp_status smp__load_best(smp *s, const char *path);

#endif
