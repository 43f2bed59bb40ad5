/* The devices, the fastest first: "auto" takes the first that can run the job. */
#include "exec/device/device.h"

#include <string.h>

#ifdef SMP_HAVE_CUDA
#define WITH_CUDA(entry) entry
#else
#define WITH_CUDA(entry)
#endif

/* device_<name>.c defines smp__device_<name>. */
#define DEVICES(X)                                                                                 \
    WITH_CUDA(X(cuda))                                                                             \
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

smp_status smp_device_backend(const char *name, smp_backend *out)
{
    if (smp_backend_find(name, out))
        return SMP_OK;
    smp_text known = {0};
    for (int i = 0; i < SMP_N_BACKEND; i++)
        smp_text_append_choice(&known, smp_backend_name((smp_backend)i), i, SMP_N_BACKEND + 1);
    smp_text_append_choice(&known, "auto", SMP_N_BACKEND, SMP_N_BACKEND + 1);
    smp_fail(SMP_ERR_INPUT, "device '%s': expected %s", name, known.data ? known.data : "another");
    smp_text_free(&known);
    return SMP_ERR_INPUT;
}
