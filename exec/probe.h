/* The profile layer's probe on a CPU rank. */
#ifndef SMP_EXEC_PROBE_H
#define SMP_EXEC_PROBE_H

#include "profile/profile.h"

/* Uses MPI if it is initialised (links between ranks 0 and 1, barriers so that all ranks are busy
 * at the same time). Freed with smp_probe_cpu_destroy. */
smp_status smp_probe_cpu_create(smp_probe **out);
void smp_probe_cpu_destroy(smp_probe *probe);

#endif
