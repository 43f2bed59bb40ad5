/* Which algorithm of the device's library computes each matrix product: the same on all ranks. */
#ifndef SMP_EXEC_JOB_AGREE_GEMMS_H
#define SMP_EXEC_JOB_AGREE_GEMMS_H

#include "exec/state/handle.h"

/* All are collective, and nothing where a device has one way only. */

/* Before kernels are prepared: what the plan has chosen is asked for, if every rank has the card
 * and the library that it was chosen on. Else smp__found.products_note says why not. */
smp_status smp__gemms_ask(smp *s);
/* After that: one list of algorithms for each product, that of the lowest rank that has it. */
smp_status smp__gemms_list(smp *s);
/* After kernels have run: what was refused on one rank is taken on none. *again: kernels have to
 * run again, on all ranks; else it is settled. In: they do for another reason. */
smp_status smp__gemms_settle(smp *s, bool *again);

#endif
