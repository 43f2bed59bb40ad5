/* Registry of transports. */
#include "exec/transport.h"

#include <string.h>

extern const smp_transport smp_transport_mpi;

static const smp_transport *const transports[] = {&smp_transport_mpi, NULL};

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
