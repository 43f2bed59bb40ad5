/* Registry of devices, the fastest first. */
#include "exec/device/device.h"

#include <string.h>

#ifdef SMP_HAVE_CUDA
extern const smp_device smp_device_cuda;
#endif
extern const smp_device smp_device_cpu;

static const smp_device *const devices[] = {
#ifdef SMP_HAVE_CUDA
    &smp_device_cuda,
#endif
    &smp_device_cpu,
    NULL,
};

const smp_device *const *smp_devices(void)
{
    return devices;
}

const smp_device *smp_device_find(const char *name)
{
    for (int i = 0; devices[i]; i++)
        if (strcmp(devices[i]->name, name) == 0)
            return devices[i];
    return NULL;
}
