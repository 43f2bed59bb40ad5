/* A state in memory of which something is damaged: each machine looks at all that it has of it, so
 * that another one's copy takes the place of what is wrong. */
#ifndef SMP_EXEC_SAVE_KEPT_VERIFY_H
#define SMP_EXEC_SAVE_KEPT_VERIFY_H

#include "exec/save/kept_fetch.h"

/* What is damaged of state chosen[i] lies nowhere from now on. *list is made anew; *i: where that
 * state is now, or -1: without that it is not whole. Collective. */
smp_status smp__kept_verify(smp *s, smp__kept_list *list, int *i);

#endif
