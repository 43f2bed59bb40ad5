/* Registry of transports, and the choice among them. */
#include "exec/transport/transport.h"

#include <stdio.h>
#include <string.h>

extern const smp_transport smp_transport_mpi;
#ifdef SMP_HAVE_CUDA
extern const smp_transport smp_transport_staged;
#endif
#ifdef SMP_HAVE_NCCL
extern const smp_transport smp_transport_nccl;
#endif

static const smp_transport *const transports[] = {
#ifdef SMP_HAVE_NCCL
    &smp_transport_nccl,
#endif
#ifdef SMP_HAVE_CUDA
    &smp_transport_staged,
#endif
    &smp_transport_mpi, NULL};

const smp_transport *const *smp_transports(void)
{
    return transports;
}

const smp_transport *smp_transport_find(const char *name)
{
    for (int i = 0; transports[i]; i++)
        if (strcmp(transports[i]->name, name) == 0)
            return transports[i];
    return NULL;
}

const smp_transport *smp_transport_choose(smp_comm *comm, const smp_device *device,
                                          void *device_context, char *why, size_t size)
{
    size_t used = 0;
    if (why && size > 0)
        why[0] = '\0';
    for (int i = 0; transports[i]; i++) {
        smp_status status = transports[i]->suits(comm, device, device_context);
        status = smp__comm_agree(comm, status);
        if (status == SMP_OK)
            return transports[i];
        if (comm->failed)
            return NULL;
        if (why && used < size) {
            int n = snprintf(why + used, size - used, "%s%s: %s", used > 0 ? "; " : "",
                             transports[i]->name, smp_last_error());
            used += n > 0 ? (size_t)n : 0;
        }
    }
    return NULL;
}
