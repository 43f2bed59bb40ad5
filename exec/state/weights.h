/* Weights of this rank: initial values, norm of the gradients, update, hash; those of the model as
 * files have them. */
#ifndef SMP_EXEC_STATE_WEIGHTS_H
#define SMP_EXEC_STATE_WEIGHTS_H

#include "exec/state/handle.h"
#include "graph/safetensors/weights_match.h"

/* What updates take of each weight, by names of the model's file; memory for norms. Before the plan
 * of memory, after which smp__pieces_build follows. */
smp_status smp__weights_open(smp *s);
void smp__weights_close(smp *s);
/* So many bytes of `host` are for what the device measures; where they are. */
int64_t smp__weights_host_bytes(const smp *s);
smp_status smp__weights_place(smp *s, char *host);
smp_status smp__weights_init(smp *s);
/* Enqueued: the copies in 16 bits of all weights, of memory->region[index], or of what holds
 * memory->param[index]. */
smp_status smp__weights_round(smp *s);
/* Weights have been updated, each rank its part of them, and not gathered since. */
bool smp__weights_are_stale(const smp *s);
void smp__weights_gathered(smp *s);
smp_status smp__region_round(smp *s, int32_t index);
smp_status smp__weight_round(smp *s, int32_t index);
/* Enqueued: the sums of squares of the gradients; then, when the device is idle, the global norm of
 * them (collective). The norm is finite if every gradient is, and every change of a running
 * statistic, which is no part of it: squares of floats do not overflow a double. `also` becomes its
 * sum over all ranks. */
smp_status smp__weights_square(smp *s);
smp_status smp__weights_norm(smp *s, double also[SMP__STEP_SUMS], double *norm);
/* Enqueued: the optimizer. Updates of states in host memory are begun (exec/state/updates.h). */
smp_status smp__weights_update(smp *s, int64_t step, float lr, float grad_scale);

/* The update of this rank's own part of memory->param[index]; trust 1 or what was found. */
smp_update smp__update_of(const smp *s, int32_t index, int64_t step, float lr, float grad_scale);
/* For optimizers with trust ratios: makes room in [smp__trust_host_bytes] of `host`; frees it;
 * before an update measures all weights and finds the ratios, the same for every plan; the
 * directions then stand in the place of the gradients. Collective over tensor and shard groups;
 * waits for the device. */
int64_t smp__trust_host_bytes(const smp *s);
smp_status smp__trust_build(smp *s, char *host);
void smp__trust_free(smp *s);
smp_status smp__weights_trust(smp *s, int64_t step, float lr, float grad_scale);
/* SMP_ERR_FAILED names a weight of this rank, or a state of the optimizer, that is not finite.
 * Every weight is looked at by one rank. */
smp_status smp__weights_check(smp *s);

#endif
