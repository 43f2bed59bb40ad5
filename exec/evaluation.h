/* Held-out data, all of it once. */
#ifndef SMP_EXEC_EVALUATION_H
#define SMP_EXEC_EVALUATION_H

#include "exec/trainer.h"

/* The mean over the whole set, each target once, printed. The losses of micro-batches are added in
 * the order of the samples: the micro-batch size decides the last bits, and nothing else of the
 * plan does. Collective. */
smp_status smp__evaluate_held_out(smp__trainer *t, int64_t step);

#endif
