/* What actions enqueue between exchanges, sums and random numbers, captured before the first step
 * and enqueued at once in every one: CUDA graphs, for a host whose launches take longer than the
 * device. Kernels, arguments and order are those without, so bits do not depend on what is captured
 * where. */
#ifndef SMP_EXEC_STEP_CAPTURES_H
#define SMP_EXEC_STEP_CAPTURES_H

#include "exec/step/run_stage.h"
#include "graph/base/text.h"

/* After the warm-up, of a job that trains on a device which can do it, where the plan's figures say
 * that it pays, or SMP_GRAPHS=on; not with SMP_GRAPHS=off, another value is SMP_ERR_INPUT. What the
 * device refuses on any rank is no error: then no rank captures anything. Collective. */
smp_status smp__captures_make(smp *s);
void smp__captures_free(smp *s); /* of an idle device */

/* Enqueues what stands captured from this item on: *n items; 0: nothing does. */
smp_status smp__captures_replay(smp *s, const smp__sequence *q, int32_t item, int32_t *n);

/* How many graphs this rank launches in a step, and how many launches they stand for. */
int64_t smp__captures_count(const smp *s, int64_t *launches);
/* Appends ", 8 graphs for 506 launches a step", of this rank; or why nothing is captured that
 * should be; or nothing. */
void smp__captures_describe(const smp *s, smp_text *text);

#endif
