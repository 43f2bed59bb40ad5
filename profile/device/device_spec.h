/* Devices in cluster files. Internal to the room. */
#ifndef SMP_PROFILE_DEVICE_DEVICE_SPEC_H
#define SMP_PROFILE_DEVICE_DEVICE_SPEC_H

#include "profile/device/cluster.h"

/* A `device:` of a cluster file; all of *spec lives in the arena. SMP_ERR_INPUT with
 * file:line:column, of the cluster file or the description that it names. */
smp_status smp__device_read(const struct smp_yaml_node *node, smp_arena *arena,
                            smp_device_spec *spec);

#endif
