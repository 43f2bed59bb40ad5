/* Replicas that smp_replicas_check has found to differ, and what an export would find wrong. */
#ifndef SMP_EXEC_STATE_DRIFT_H
#define SMP_EXEC_STATE_DRIFT_H

#include <stdbool.h>

#include "graph/base/status.h"

/* Has it found that they differ? Until all of them are loaded again, which is to follow the second.
 */
bool smp__replicas_differ(const smp *s);
void smp__replicas_forget(smp *s);
/* What this rank then has of the weight that differs and of its states: *values is malloc'ed, NULL
 * where nothing differs. Later: how far that is from what is there now, as a share of it. Not
 * collective. */
smp_status smp__drift_keep(smp *s, float **values);
smp_status smp__drift_distance(smp *s, const float *values, double *distance);

/* Are there rules that fit the model, and, where the path is a folder, can it be? Makes it. Not
 * collective; what smp_export_weights_as would find. In export_weights.c. */
smp_status smp__export_check(const smp *s, const char *path, const smp_weights_options *options);

#endif
