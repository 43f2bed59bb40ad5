/* What a job runs on: device, precision, memory, transport. Collective where not said. */
#ifndef SMP_EXEC_JOB_CHOOSE_DEVICE_H
#define SMP_EXEC_JOB_CHOOSE_DEVICE_H

#include "exec/state/handle.h"

smp_status smp__choose_device(smp *s); /* sets device, target, device_note; needs the graph */
/* Sets transport, transport_note; needs the lanes. */
smp_status smp__choose_transport(smp *s, const smp_transport_options *options);
smp_status smp__device_open(smp *s);
/* SMP_ERR_NO_FIT if the arena and `extra` do not fit the device, with those of the ranks that share
 * it. */
smp_status smp__device_check_memory(smp *s);
/* After the warm-up: what libraries have taken of a device that no other rank uses. */
smp_status smp__device_note_libraries(smp *s);

/* A word of the options that is "fp32" or "bf16", or NULL: fp32. Not collective. */
smp_status smp__option_bf16(const char *what, const char *text, bool *out);

#endif
