/* Groups of ranks: communicators made and freed. */
#include "exec/transport/comm.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "exec/transport/mpi_lifetime.h"
#include "exec/transport/own_core.h"

/* Ranks in containers of their own do not see each other. */
static smp_status find_processes(smp_comm *comm)
{
    const int own = (int)getpid();
    void *all;
    SMP_TRY(smp__comm_gather_node(comm, &own, sizeof(own), &all));
    comm->node_pid = all;
    if (!smp__comm_node_lives(comm)) {
        free(comm->node_pid);
        comm->node_pid = NULL;
    }
    return SMP_OK;
}

bool smp__comm_node_lives(const smp_comm *comm)
{
    for (int i = 0; comm->node_pid && i < comm->node_size; i++)
        if (kill((pid_t)comm->node_pid[i], 0) != 0 && errno == ESRCH)
            return false;
    return true;
}

static smp_status open_node(smp_comm *comm)
{
    /* in a library unwatched, since MPI has no other: all ranks have just agreed to come */
    smp__watchdog_begin(SMP__WATCHED_START, "MPI_Comm_split_type");
    const int code =
        MPI_Comm_split_type(comm->world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &comm->node);
    smp__watchdog_end();
    SMP_TRY(smp__comm_check(code, "MPI_Comm_split_type"));
    MPI_Comm_size(comm->node, &comm->node_size);
    MPI_Comm_rank(comm->node, &comm->node_rank);
    comm->crowded = comm->node_size > sysconf(_SC_NPROCESSORS_ONLN);
    return find_processes(comm);
}

smp_status smp__comm_open(smp_comm *comm, smp_comm_limits limit)
{
    *comm = (smp_comm){.world = MPI_COMM_NULL,
                       .pipeline = MPI_COMM_NULL,
                       .ddp = MPI_COMM_NULL,
                       .joint = MPI_COMM_NULL,
                       .shard = MPI_COMM_NULL,
                       .across = MPI_COMM_NULL,
                       .near = MPI_COMM_NULL,
                       .far = MPI_COMM_NULL,
                       .tensor = MPI_COMM_NULL,
                       .messages = MPI_COMM_NULL,
                       .copy = MPI_COMM_NULL,
                       .notice = MPI_COMM_NULL,
                       .node = MPI_COMM_NULL,
                       .limit = limit};
    SMP_TRY(smp__mpi_open());
    smp__mpi_enter();
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

void smp__comm_take_core(smp_comm *comm)
{
    comm->own_core = comm->crowded;
    if (comm->own_core)
        smp__own_core_take(comm->node_rank);
}

/* In a library unwatched, since MPI has no other: all ranks have just agreed to come. */
static smp_status split(MPI_Comm from, int color, int key, MPI_Comm *out)
{
    smp__watchdog_begin(SMP__WATCHED_START, "MPI_Comm_split");
    const int code = MPI_Comm_split(from, color, key, out);
    smp__watchdog_end();
    SMP_TRY(smp__comm_check(code, "MPI_Comm_split"));
    return smp__comm_check(MPI_Comm_set_errhandler(*out, MPI_ERRORS_RETURN),
                           "MPI_Comm_set_errhandler");
}

smp_status smp__comm_split(smp_comm *comm, smp_comm_place place)
{
    const int replica = place.replica, shard = place.shard, near = place.near;
    const int tensor = place.tensor, own = place.tensor_rank;
    const int most = place.rank_begin ? place.tensor_most : tensor;
    comm->shard_size = shard;
    comm->shard_rank = replica % shard;
    comm->pipeline_rank = place.pipeline_rank;
    comm->replica = replica;
    comm->tensor_size = tensor;
    comm->tensor_rank = own;
    comm->tensor_most = most;
    comm->rank_begin = place.rank_begin;
    SMP_TRY(split(comm->world, replica * most + own, place.pipeline_rank, &comm->pipeline));
    SMP_TRY(split(comm->world, place.pipeline_rank * most + own, replica, &comm->ddp));
    SMP_TRY(split(comm->ddp, 0, replica, &comm->joint));
    SMP_TRY(split(comm->ddp, replica / shard, replica, &comm->shard));
    SMP_TRY(split(comm->ddp, replica % shard, replica, &comm->across));
    if (near > 1) {
        const int among = (shard > near ? replica / shard * near : 0) + replica % near;
        SMP_TRY(split(comm->ddp, replica / near, replica, &comm->near));
        SMP_TRY(split(comm->ddp, among, replica, &comm->far));
    }
    MPI_Comm_size(comm->pipeline, &comm->line_size);
    MPI_Comm_rank(comm->pipeline, &comm->line_rank);
    comm->pipeline_size = place.rank_begin ? place.pipeline : comm->line_size;
    MPI_Comm_size(comm->ddp, &comm->ddp_size);
    comm->messages = comm->pipeline;
    if (place.rank_begin)
        SMP_TRY(split(comm->world, replica, place.rank_begin[place.pipeline_rank] + own,
                      &comm->messages));
    SMP_TRY(split(comm->world, replica * comm->pipeline_size + place.pipeline_rank, own,
                  &comm->tensor));
    return split(comm->world, replica / shard * comm->pipeline_size + place.pipeline_rank,
                 replica % shard * tensor + own, &comm->copy);
}

int smp__comm_ends(const smp_comm *comm, int other, bool outgoing, int *first)
{
    const int *begin = comm->rank_begin, own = comm->tensor_size, index = comm->tensor_rank;
    *first = other;
    if (!begin)
        return 1;
    const int others = begin[other + 1] - begin[other];
    *first = begin[other] + index * others / own;
    if (!outgoing)
        return 1;
    const int from = (index * others + own - 1) / own, to = ((index + 1) * others + own - 1) / own;
    *first = begin[other] + from;
    return to - from;
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

/* MPI_Finalize waits unwatched. Nobody asks for a status any more, so who finds that a rank does
 * not come says it; who was told leaves time for that: mpirun ends all when the first has ended. */
static void agree_to_end(smp_comm *comm)
{
    const smp_status status = smp__comm_agree(comm, SMP_OK);
    if (status == SMP_OK)
        return;
    if (smp__comm_was_told(status))
        sleep(SMP_TELLER_S);
    else
        fprintf(stderr, "smp-run: %s\n", smp_last_error());
}

void smp__comm_close(smp_comm *comm)
{
    int initialised = 0, finalised = 0;
    MPI_Initialized(&initialised);
    MPI_Finalized(&finalised);
    if (!initialised || finalised)
        return;
    if (comm->own_core)
        smp__own_core_give_back();
    comm->own_core = false;
    if (smp__mpi_owned() && comm->node != MPI_COMM_NULL && !comm->failed)
        agree_to_end(comm);
    /* After a failure other ranks may never answer again: freeing communicators and MPI_Finalize
     * are collective and would hang. The process ends without them. */
    if (comm->failed)
        return;
    free_comm(&comm->copy);
    free_comm(&comm->tensor);
    free_comm(&comm->far);
    free_comm(&comm->near);
    free_comm(&comm->across);
    free_comm(&comm->shard);
    free_comm(&comm->joint);
    free_comm(&comm->ddp);
    if (comm->messages != comm->pipeline)
        free_comm(&comm->messages);
    free_comm(&comm->pipeline);
    free_comm(&comm->notice);
    free_comm(&comm->node);
    free_comm(&comm->world);
    free(comm->node_pid);
    free(comm->peer);
    free(comm->piece);
    smp__mpi_leave();
}
