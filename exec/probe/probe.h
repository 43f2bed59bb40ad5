/* The profile layer's probe on a rank of a job, on any device. */
#ifndef SMP_EXEC_PROBE_PROBE_H
#define SMP_EXEC_PROBE_PROBE_H

#include "graph/model/target.h"
#include "profile/profile.h"

/* Opens the device of target->backend. Uses MPI if it is initialised (links between ranks 0 and 1,
 * barriers so that all ranks are busy at the same time); then collective. offload_to: folder of the
 * file that stands for host memory, as smp-run has it; NULL: memory. (*out)->device is the device's
 * name as a profile has it: "cpu", or the card's. Freed with smp_probe_destroy. */
smp_status smp_probe_create(const smp_target *target, const char *offload_to, smp_probe **out);
void smp_probe_destroy(smp_probe *probe); /* accepts NULL */

#endif
