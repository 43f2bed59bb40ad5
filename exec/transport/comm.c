/* Groups of ranks: MPI opened, its communicators made and freed. */
#define _GNU_SOURCE /* CPU affinity */
#include "exec/transport/comm.h"

#include <sched.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

/* Ranks that share cores keep to one core each, dealt out in turn as smp_cluster_core_of says: short
 * waits would otherwise move them around, and the prediction could not know where. Their sleeps
 * last some microseconds, not fifty more. */
static void bind_to_core(int node_rank)
{
    cpu_set_t allowed, own;
    int wanted = -1;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0 && CPU_COUNT(&allowed) > 1)
        wanted = node_rank % CPU_COUNT(&allowed);
    for (int cpu = 0; wanted >= 0 && cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed) && wanted-- == 0) {
            CPU_ZERO(&own);
            CPU_SET(cpu, &own);
            sched_setaffinity(0, sizeof(own), &own); /* a hint: a refusal costs time only */
        }
    struct sched_param none = {0};
    sched_setscheduler(0, SCHED_BATCH, &none);
    prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
}

void smp__comm_configure(void)
{
    setenv("OMPI_MCA_mpi_yield_when_idle", "0", 1);
}

static smp_status init_mpi(smp_comm *comm)
{
    int initialised = 0, finalised = 0;
    MPI_Initialized(&initialised);
    MPI_Finalized(&finalised);
    if (finalised)
        return smp_fail(SMP_ERR_FAILED, "MPI has been finalised: a program that has more than one "
                                        "job calls MPI_Init and MPI_Finalize itself");
    if (initialised)
        return SMP_OK;
    smp__comm_configure();
    /* unwatched: mpirun ends a job whose process dies in MPI_Init */
    int threads; /* this one alone calls MPI, beside others that do not */
    SMP_TRY(
        smp__comm_check(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &threads), "MPI_Init"));
    comm->owns_mpi = true;
    return SMP_OK;
}

static smp_status open_node(smp_comm *comm)
{
    /* unwatched, since MPI has no other: all ranks have just agreed to come */
    SMP_TRY(smp__comm_check(
        MPI_Comm_split_type(comm->world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &comm->node),
        "MPI_Comm_split_type"));
    MPI_Comm_size(comm->node, &comm->node_size);
    MPI_Comm_rank(comm->node, &comm->node_rank);
    comm->crowded = comm->node_size > sysconf(_SC_NPROCESSORS_ONLN);
    if (comm->crowded)
        bind_to_core(comm->node_rank);
    return SMP_OK;
}

smp_status smp__comm_open(smp_comm *comm, double timeout_s)
{
    *comm = (smp_comm){.world = MPI_COMM_NULL,
                       .pipeline = MPI_COMM_NULL,
                       .ddp = MPI_COMM_NULL,
                       .notice = MPI_COMM_NULL,
                       .node = MPI_COMM_NULL,
                       .timeout_s = timeout_s};
    SMP_TRY(init_mpi(comm));
    MPI_Comm_rank(MPI_COMM_WORLD, &comm->world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &comm->world_size);
    comm->peer = calloc((size_t)comm->world_size, sizeof(*comm->peer));
    comm->piece = malloc(SMP_SHARE_BYTES);
    SMP_TRY(smp__comm_duplicate(comm, MPI_COMM_WORLD, &comm->notice));
    SMP_TRY(smp__comm_duplicate(comm, MPI_COMM_WORLD, &comm->world));
    SMP_TRY(smp__comm_agree(comm,
                            comm->peer && comm->piece ? SMP_OK : smp_fail_memory(SMP_SHARE_BYTES)));
    return open_node(comm);
}

/* Unwatched, since MPI has no other: all ranks have just agreed to come. */
smp_status smp__comm_split(smp_comm *comm, int pipeline_rank, int replica)
{
    comm->pipeline_rank = pipeline_rank;
    comm->replica = replica;
    SMP_TRY(smp__comm_check(MPI_Comm_split(comm->world, replica, pipeline_rank, &comm->pipeline),
                            "MPI_Comm_split"));
    SMP_TRY(smp__comm_check(MPI_Comm_split(comm->world, pipeline_rank, replica, &comm->ddp),
                            "MPI_Comm_split"));
    MPI_Comm_set_errhandler(comm->pipeline, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(comm->ddp, MPI_ERRORS_RETURN);
    MPI_Comm_size(comm->pipeline, &comm->pipeline_size);
    MPI_Comm_size(comm->ddp, &comm->ddp_size);
    return SMP_OK;
}

smp_status smp__comm_check(int code, const char *call)
{
    if (code == MPI_SUCCESS)
        return SMP_OK;
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(code, text, &length);
    return smp_fail(SMP_ERR_FAILED, "%s: %.*s", call, length, text);
}

int smp__comm_max_tag(const smp_comm *comm)
{
    int *bound = NULL, found = 0;
    MPI_Comm_get_attr(comm->pipeline, MPI_TAG_UB, &bound, &found);
    return found ? *bound : 32767; /* the least that the standard grants */
}

static void free_comm(MPI_Comm *comm)
{
    if (*comm != MPI_COMM_NULL)
        MPI_Comm_free(comm);
}

void smp__comm_close(smp_comm *comm)
{
    int initialised = 0, finalised = 0;
    MPI_Initialized(&initialised);
    MPI_Finalized(&finalised);
    if (!initialised || finalised)
        return;
    if (comm->owns_mpi && comm->node != MPI_COMM_NULL) /* MPI_Finalize waits unwatched */
        smp__comm_agree(comm, SMP_OK);
    /* After a failure other ranks may never answer again: freeing communicators and MPI_Finalize
     * are collective and would hang. The process ends without them. */
    if (comm->failed)
        return;
    free_comm(&comm->ddp);
    free_comm(&comm->pipeline);
    free_comm(&comm->notice);
    free_comm(&comm->node);
    free_comm(&comm->world);
    free(comm->peer);
    free(comm->piece);
    if (comm->owns_mpi)
        MPI_Finalize();
}
