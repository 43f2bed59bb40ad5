/* The choice among the transports of a device. */
#include "exec/transport/transport.h"

#include <stdio.h>
#include <string.h>

const smp_transport *smp_transport_find(const char *name)
{
    for (int i = 0; smp_devices()[i]; i++)
        for (const smp_transport *const *t = smp_devices()[i]->transports; *t; t++)
            if (strcmp((*t)->name, name) == 0)
                return *t;
    return NULL;
}

const smp_transport *smp_transport_choose(const smp_transport_options *options, char *why,
                                          size_t size)
{
    smp_comm *comm = options->comm;
    size_t used = 0;
    if (why && size > 0)
        why[0] = '\0';
    for (const smp_transport *const *t = options->device->transports; *t; t++) {
        smp_status status = smp_transport_suits(*t, options);
        status = smp__comm_agree(comm, status);
        if (status == SMP_OK)
            return *t;
        if (comm->failed)
            return NULL;
        if (why && used < size) {
            int n = snprintf(why + used, size - used, "%s%s: %s", used > 0 ? "; " : "", (*t)->name,
                             smp_last_error());
            used += n > 0 ? (size_t)n : 0;
        }
    }
    return NULL;
}

MPI_Comm smp__transport_reach(const smp_comm *comm, smp_reach reach)
{
    const bool shards = comm->shard_size > 1, groups = comm->shard_size < comm->ddp_size;
    if (reach == SMP_REACH_ALL)
        return comm->ddp_size > 1 ? comm->ddp : MPI_COMM_NULL;
    if (reach == SMP_REACH_GROUP)
        return shards ? comm->shard : MPI_COMM_NULL;
    return shards && groups ? comm->across : MPI_COMM_NULL;
}
