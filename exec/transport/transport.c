/* The transports, and the choice among them. */
#include "exec/transport/transport.h"

#include <stdio.h>
#include <string.h>

#ifdef SMP_HAVE_CUDA
#define WITH_CUDA(entry) entry
#else
#define WITH_CUDA(entry)
#endif
#ifdef SMP_HAVE_NCCL
#define WITH_NCCL(entry) entry
#else
#define WITH_NCCL(entry)
#endif

/* The best first. transport_<name>.c defines smp__transport_<name>. */
#define TRANSPORTS(X)                                                                              \
    WITH_NCCL(X(nccl))                                                                             \
    WITH_CUDA(X(staged))                                                                           \
    X(mpi)

#define DECLARE(name) extern const smp_transport smp__transport_##name;
TRANSPORTS(DECLARE)

#define ENTRY(name) &smp__transport_##name,
static const smp_transport *const transports[] = {TRANSPORTS(ENTRY) NULL};

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

const smp_transport *smp_transport_choose(const smp_transport_options *options, char *why,
                                          size_t size)
{
    smp_comm *comm = options->comm;
    size_t used = 0;
    if (why && size > 0)
        why[0] = '\0';
    for (int i = 0; transports[i]; i++) {
        smp_status status = transports[i]->suits(options);
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

MPI_Comm smp__transport_reach(const smp_comm *comm, smp_reach reach)
{
    const bool shards = comm->shard_size > 1, groups = comm->shard_size < comm->ddp_size;
    if (reach == SMP_REACH_ALL)
        return comm->ddp_size > 1 ? comm->ddp : MPI_COMM_NULL;
    if (reach == SMP_REACH_GROUP)
        return shards ? comm->shard : MPI_COMM_NULL;
    return shards && groups ? comm->across : MPI_COMM_NULL;
}
