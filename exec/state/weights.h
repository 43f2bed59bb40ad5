/* Weights of this rank: initial values, norm of the gradients, update, hash. */
#ifndef SMP_EXEC_STATE_WEIGHTS_H
#define SMP_EXEC_STATE_WEIGHTS_H

#include "exec/state/handle.h"

smp_status smp__weights_init(smp *s);
/* Enqueued: the bf16 copies of all weights, or of memory->param[index]. */
smp_status smp__weights_round(smp *s);
smp_status smp__weight_round(smp *s, int32_t index);
/* Enqueued: the sums of squares of the gradients; then, when the device is idle, the global norm of
 * them (collective). */
smp_status smp__weights_square(smp *s);
smp_status smp__weights_norm(smp *s, double *norm);
/* Enqueued: the optimizer, and zero for the accumulators. */
smp_status smp__weights_update(smp *s, int64_t step, float lr, float grad_scale);
/* A hash of the weights of this rank's replica, the same for every split. Collective. */
smp_status smp__weights_hash(smp *s, uint64_t *hash);

#endif
