/* Model inputs for the kernels. */
#ifndef SMP_EXEC_INPUTS_STEP_INPUTS_H
#define SMP_EXEC_INPUTS_STEP_INPUTS_H

#include "exec/state/handle.h"

smp_status smp__inputs_build(smp *s);
/* Bytes of the copies in device memory, 0: none; bytes in host memory; and where both are. */
int64_t smp__inputs_bytes(const smp *s);
int64_t smp__inputs_host_bytes(const smp *s);
void smp__inputs_place(smp *s, char *device, char *host);
/* The caller's arrays of a step: checked and on their way to the device. */
smp_status smp__inputs_begin(smp *s, const void *const *inputs);

#endif
