/* The devices, the fastest first: "auto" takes the first that can run the job. */
#include "exec/device/device.h"

#include <stdio.h>
#include <string.h>

#include "graph/base/built.h"

/* device_<name>.c defines smp__device_<name>. */
#define DEVICES(X)                                                                                 \
    SMP__IF_CUDA(X(cuda))                                                                          \
    X(cpu)

#define DECLARE(name) extern const smp_device smp__device_##name;
DEVICES(DECLARE)

#define ENTRY(name) &smp__device_##name,
static const smp_device *const devices[] = {DEVICES(ENTRY) NULL};

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

void smp_device_profile_name(const smp_device *device, void *context, char *name)
{
    const char *text = device->host_memory ? device->name : device->describe(context);
    const int length = (int)strcspn(text, ",\n");
    snprintf(name, SMP_DEVICE_NAME_BYTES, "%.*s", length, text);
    if (smp_backend_of_device(name) != device->backend)
        snprintf(name, SMP_DEVICE_NAME_BYTES, "%s: %.*s", smp_backend_name(device->backend), length,
                 text);
}

smp_status smp_device_backend(const char *name, smp_backend *out)
{
    if (smp_backend_find(name, out))
        return SMP_OK;
    const char *names[SMP_N_BACKEND + sizeof devices / sizeof *devices];
    int n = 0;
    for (; n < SMP_N_BACKEND; n++)
        names[n] = smp_backend_name((smp_backend)n);
    for (int i = 0; devices[i]; i++)
        if (!smp_backend_find(devices[i]->name, out))
            names[n++] = devices[i]->name;
    names[n++] = "auto";
    return smp_fail_choice((smp_where){0}, "device", name, names, n);
}
