/* Collectives of the control plane, each waited for with the watchdog. After a failure one stays in
 * flight: the job is over, and what MPI may still read or write lies in memory that stays. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/transport/comm.h"

/* The tag of messages in comm->world that are not a collective's; another one:
 * exec/job/group_calls.c. */
enum { HAND_TAG = 1 };

typedef struct request_wait {
    smp_comm *comm;
    MPI_Request *request;
    const char *what; /* who is waited for, and what for */
} request_wait;

static void describe_request(const void *context, char *buffer, size_t size)
{
    snprintf(buffer, size, "%s", ((const request_wait *)context)->what);
}

static smp_status test_request(void *context, bool *done)
{
    const request_wait *wait = context;
    int flag = 0;
    int code = MPI_Test(wait->request, &flag, MPI_STATUS_IGNORE);
    *done = flag;
    return smp__comm_check(code, wait->what);
}

static smp_status wait_for(smp_comm *comm, MPI_Request *request, bool patient, const char *what)
{
    if (comm->failed) /* not all ranks would come */
        return SMP_ERR_PEER;
    request_wait context = {comm, request, what};
    smp_status status = smp__comm_wait_until(comm, &(smp_wait){.patient = patient}, test_request,
                                             describe_request, &context);
    return status == SMP_OK ? SMP_OK : smp__comm_notify(comm, status);
}

static smp_status finish(smp_comm *comm, int started, bool patient, const char *what)
{
    smp_status status = smp__comm_check(started, what);
    comm->came++;
    if (status != SMP_OK)
        return smp__comm_notify(comm, status);
    return wait_for(comm, &comm->collective, patient, what);
}

smp_status smp__comm_finish(smp_comm *comm, int started, const char *what)
{
    return finish(comm, started, true, what);
}

smp_status smp__comm_finish_request(smp_comm *comm, MPI_Request *request, const char *what)
{
    return wait_for(comm, request, true, what);
}

smp_status smp__comm_duplicate(smp_comm *comm, MPI_Comm group, MPI_Comm *copy)
{
    SMP_TRY(smp__comm_finish(comm, MPI_Comm_idup(group, &comm->made, &comm->collective),
                             "the other ranks to open the job"));
    *copy = comm->made;
    return smp__comm_check(MPI_Comm_set_errhandler(*copy, MPI_ERRORS_RETURN),
                           "MPI_Comm_set_errhandler");
}

static smp_status broadcast(smp_comm *comm, void *data, int count, MPI_Datatype type, int root)
{
    char what[64];
    int started = MPI_Ibcast(data, count, type, root, comm->world, &comm->collective);
    snprintf(what, sizeof(what), "what rank %d has for all", root);
    return smp__comm_finish(comm, started, what);
}

/* Whose failure it is, unless that goes without saying: rank 0 reads the input that all use. */
static void name_rank(const smp_comm *comm, smp_status status)
{
    const bool common =
        comm->world_rank == 0 && status != SMP_ERR_FAILED && status != SMP_ERR_NO_MEMORY;
    int named = -1; /* by an agreement within this one */
    if (comm->world_size > 1 && !common && sscanf(smp_last_error(), "rank %d", &named) != 1)
        smp_fail_context(status, "rank %d", comm->world_rank);
}

smp_status smp__comm_agree(smp_comm *comm, smp_status status)
{
    if (comm->failed) /* not all ranks would come */
        return status == SMP_OK ? SMP_ERR_PEER : status;
    comm->first = status == SMP_OK ? comm->world_size : comm->world_rank;
    int started = MPI_Iallreduce(MPI_IN_PLACE, &comm->first, 1, MPI_INT, MPI_MIN, comm->world,
                                 &comm->collective);
    SMP_TRY(smp__comm_finish(comm, started, "the other ranks to agree"));
    if (comm->first == comm->world_size)
        return SMP_OK;
    bool mine = comm->first == comm->world_rank;
    comm->failure.code = (int)status;
    if (mine)
        name_rank(comm, status);
    if (mine)
        snprintf(comm->failure.text, sizeof(comm->failure.text), "%s", smp_last_error());
    SMP_TRY(broadcast(comm, &comm->failure, (int)sizeof(comm->failure), MPI_BYTE, comm->first));
    return mine ? status : smp_fail((smp_status)comm->failure.code, "%s", comm->failure.text);
}

smp_status smp__comm_share(smp_comm *comm, void *data, int64_t bytes, int root)
{
    char *at = data;
    for (int64_t done = 0; done < bytes; done += SMP_SHARE_BYTES) {
        int64_t n = bytes - done < SMP_SHARE_BYTES ? bytes - done : SMP_SHARE_BYTES;
        if (comm->world_rank == root)
            memcpy(comm->piece, at + done, (size_t)n);
        SMP_TRY(broadcast(comm, comm->piece, (int)n, MPI_BYTE, root));
        if (comm->world_rank != root)
            memcpy(at + done, comm->piece, (size_t)n);
    }
    return SMP_OK;
}

static smp_status hand_piece(smp_comm *comm, int bytes, int from, int to)
{
    char what[64];
    const bool sends = comm->world_rank == from;
    int started = sends ? MPI_Isend(comm->piece, bytes, MPI_BYTE, to, HAND_TAG, comm->world,
                                    &comm->collective)
                        : MPI_Irecv(comm->piece, bytes, MPI_BYTE, from, HAND_TAG, comm->world,
                                    &comm->collective);
    snprintf(what, sizeof(what), sends ? "rank %d to take what this one has" : "what rank %d has",
             sends ? to : from);
    smp_status status = smp__comm_check(started, what);
    return status == SMP_OK ? wait_for(comm, &comm->collective, true, what)
                            : smp__comm_notify(comm, status);
}

smp_status smp__comm_hand(smp_comm *comm, void *data, int64_t bytes, int from, int to)
{
    char *at = data;
    if (from == to || (comm->world_rank != from && comm->world_rank != to))
        return SMP_OK;
    for (int64_t done = 0; done < bytes; done += SMP_SHARE_BYTES) {
        int64_t n = bytes - done < SMP_SHARE_BYTES ? bytes - done : SMP_SHARE_BYTES;
        if (comm->world_rank == from)
            memcpy(comm->piece, at + done, (size_t)n);
        SMP_TRY(hand_piece(comm, (int)n, from, to));
        if (comm->world_rank == to)
            memcpy(at + done, comm->piece, (size_t)n);
    }
    return SMP_OK;
}

smp_status smp__comm_broadcast(smp_comm *comm, char **data, size_t *bytes)
{
    comm->bytes = comm->world_rank == 0 ? (long long)*bytes : 0;
    SMP_TRY(broadcast(comm, &comm->bytes, 1, MPI_LONG_LONG, 0));
    const long long count = comm->bytes;
    smp_status status = SMP_OK;
    char *buffer = NULL;
    if (comm->world_rank != 0) {
        buffer = malloc((size_t)count + 1);
        if (!buffer)
            status = smp_fail_memory((size_t)count + 1);
    }
    status = smp__comm_agree(comm, status);
    if (status == SMP_OK)
        status = smp__comm_share(comm, comm->world_rank == 0 ? *data : buffer, count, 0);
    if (status != SMP_OK) {
        free(buffer);
        return status;
    }
    if (comm->world_rank != 0) {
        buffer[count] = '\0';
        *data = buffer;
        *bytes = (size_t)count;
    }
    return SMP_OK;
}

smp_status smp__comm_max(smp_comm *comm, int *value)
{
    comm->greatest = *value;
    int started = MPI_Iallreduce(MPI_IN_PLACE, &comm->greatest, 1, MPI_INT, MPI_MAX, comm->world,
                                 &comm->collective);
    SMP_TRY(smp__comm_finish(comm, started, "the other ranks to say what they have"));
    *value = comm->greatest;
    return SMP_OK;
}

smp_status smp__comm_gather_node(smp_comm *comm, const void *own, int bytes, void **all)
{
    size_t total = (size_t)bytes * (size_t)comm->node_size;
    char *buffer = malloc(total + (size_t)bytes); /* all, then own; MPI keeps it after a failure */
    smp_status status = smp__comm_agree(comm, buffer ? SMP_OK : smp_fail_memory(total));
    if (status != SMP_OK) {
        free(buffer);
        return status;
    }
    memcpy(buffer + total, own, (size_t)bytes);
    SMP_TRY(smp__comm_finish(comm,
                             MPI_Iallgather(buffer + total, bytes, MPI_BYTE, buffer, bytes,
                                            MPI_BYTE, comm->node, &comm->collective),
                             "the other ranks of this machine"));
    *all = buffer;
    return SMP_OK;
}

/* Where the bytes of each rank in count[ranks] begin, which is written after them. SMP_ERR_FAILED
 * if MPI cannot count them all. */
static smp_status place_parts(int *count, int ranks, size_t *total)
{
    *total = 0;
    for (int rank = 0; rank < ranks; rank++) {
        count[ranks + rank] = (int)*total;
        *total += (size_t)count[rank];
        if (*total > INT_MAX)
            return smp_fail(SMP_ERR_FAILED, "what %d ranks have: more than %d bytes", ranks,
                            INT_MAX);
    }
    return SMP_OK;
}

smp_status smp__comm_gather(smp_comm *comm, const void *own, size_t bytes, char **all,
                            size_t *total)
{
    static const char what[] = "what the other ranks have";
    const int ranks = comm->world_size;
    char *buffer = NULL; /* all, then own; MPI keeps both after a failure */
    int *count = malloc((2 * (size_t)ranks + 1) * sizeof *count);
    SMP_TRY(smp__comm_agree(comm, count ? SMP_OK : smp_fail_memory((size_t)ranks * 8)));
    count[2 * ranks] = bytes < INT_MAX ? (int)bytes : INT_MAX;
    SMP_TRY(smp__comm_finish(comm,
                             MPI_Iallgather(&count[2 * ranks], 1, MPI_INT, count, 1, MPI_INT,
                                            comm->world, &comm->collective),
                             what));
    smp_status status = place_parts(count, ranks, total);
    if (status == SMP_OK && !(buffer = malloc(*total + bytes + 1)))
        status = smp_fail_memory(*total);
    status = smp__comm_agree(comm, status);
    if (status == SMP_OK) {
        memcpy(buffer + *total + 1, own, bytes);
        SMP_TRY(smp__comm_finish(comm,
                                 MPI_Iallgatherv(buffer + *total + 1, (int)bytes, MPI_BYTE, buffer,
                                                 count, count + ranks, MPI_BYTE, comm->world,
                                                 &comm->collective),
                                 what));
        buffer[*total] = '\0';
        *all = buffer;
    } else {
        free(buffer);
    }
    free(count);
    return status;
}

smp_status smp__comm_sum(smp_comm *comm, double *values, int count)
{
    if (comm->world_size == 1)
        return SMP_OK;
    int started = MPI_Iallreduce(MPI_IN_PLACE, values, count, MPI_DOUBLE, MPI_SUM, comm->world,
                                 &comm->collective);
    SMP_TRY(finish(comm, started, false, "the other ranks at the end of the step"));
    return smp__comm_entered(comm);
}

smp_status smp__comm_sum_group(smp_comm *comm, MPI_Comm group, double *values, int count,
                               const char *what)
{
    SMP_TRY(smp__comm_check(
        MPI_Iallreduce(MPI_IN_PLACE, values, count, MPI_DOUBLE, MPI_SUM, group, &comm->collective),
        "MPI_Iallreduce"));
    return wait_for(comm, &comm->collective, false, what);
}

smp_status smp__comm_nodes(smp_comm *comm, int **out)
{
    const int ranks = comm->world_size, own = comm->world_rank;
    void *here; /* the ranks of this node, by rising rank */
    SMP_TRY(smp__comm_gather_node(comm, &own, sizeof own, &here));
    const int first = *(const int *)here;
    free(here);
    int *node_of = calloc((size_t)ranks, sizeof *node_of);
    double *lowest = calloc((size_t)ranks, sizeof *lowest);
    smp_status status = node_of && lowest ? SMP_OK : smp_fail_memory((size_t)ranks * 12);
    status = smp__comm_agree(comm, status);
    if (status == SMP_OK) {
        lowest[own] = first;
        status = smp__comm_sum(comm, lowest, ranks);
    }
    for (int rank = 0; status == SMP_OK && rank < ranks; rank++)
        node_of[rank] = (int)lowest[rank];
    if (!comm->failed) /* MPI may still add to it */
        free(lowest);
    if (status == SMP_OK)
        *out = node_of;
    else
        free(node_of);
    return status;
}
