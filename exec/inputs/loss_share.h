/* What each micro-batch counts in the loss. */
#ifndef SMP_EXEC_INPUTS_LOSS_SHARE_H
#define SMP_EXEC_INPUTS_LOSS_SHARE_H

#include "exec/state/handle.h"

/* Finds out whose values decide, and who looks at them. After smp__inputs_build. */
smp_status smp__loss_share_build(smp *s);
/* At the start of a step: counts the rows of the samples given, on the rank with the loss those of
 * all replicas, and in training enqueues the gradients. Collective where ranks have to tell. */
smp_status smp__loss_share_begin(smp *s, const void *const *inputs);
/* The loss whose targets decide what counts; NULL: every sample counts alike. */
const smp_op *smp__counting_loss(const smp *s);
/* The mean over the global batch of losses [n] that are means over rows [n]; 0 without any row. */
double smp__loss_mean(const double *loss, const double *rows, int n);

#endif
