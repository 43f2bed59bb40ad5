/* Held-out data, all of it once. */
#ifndef SMP_TOOLS_RUN_EVALUATION_H
#define SMP_TOOLS_RUN_EVALUATION_H

#include "tools/run/trainer.h"

/* The mean over the whole set, each target once, printed. The losses of micro-batches are added in
 * the order of the samples: the micro-batch size decides the last bits, and nothing else of the
 * plan does. With keep_best the next save has the loss, and is due if that is the lowest so far.
 * Collective. */
smp_status smp__evaluate_held_out(smp__trainer *t, int64_t step);
/* Finds the lowest loss that the directory has. Collective, after resuming. */
smp_status smp__best_find(smp__trainer *t);

#endif
