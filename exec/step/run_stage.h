/* The kernels of one action. */
#ifndef SMP_EXEC_STEP_RUN_STAGE_H
#define SMP_EXEC_STEP_RUN_STAGE_H

#include "exec/state/handle.h"

/* What an action enqueues, item by item: forward calls; instructions of B or I, of W. */
typedef enum smp__stage_part {
    SMP__STAGE_FORWARD,
    SMP__STAGE_INPUT,
    SMP__STAGE_WEIGHT,
    SMP__STAGE_PARTS
} smp__stage_part;

typedef struct smp__sequence {
    smp__stage_part part;
    int chunk, microbatch;
} smp__sequence;

int32_t smp__sequence_length(const smp *s, const smp__sequence *q);
/* *n: items that are enqueued, 2 where the next is one kernel with it. Nothing is looked at. */
smp_status smp__sequence_enqueue(smp *s, const smp__sequence *q, int32_t item, int32_t *n);
/* Is it the same in every training step of a whole batch? Not if it draws random numbers, or
 * exchanges something with other devices. */
bool smp__sequence_is_fixed(const smp *s, const smp__sequence *q, int32_t item);
/* May the sum of a bucket of gradients begin after it? */
bool smp__sequence_starts_sums(const smp *s, const smp__sequence *q, int32_t item);

smp_status smp__stage_forward(smp *s, int chunk, int microbatch);
smp_status smp__stage_backward(smp *s, int chunk, int microbatch); /* B */
smp_status smp__stage_input(smp *s, int chunk, int microbatch);    /* I */
smp_status smp__stage_weight(smp *s, int chunk, int microbatch);   /* W */

#endif
