/* Control plane over MPI. A rank that fails sends a notice to every other rank and stays silent;
 * ranks look for notices whenever they wait, so a failure anywhere ends every wait. A rank that
 * hangs sends nothing: the time-out of the ranks that wait for it ends the job. */
#define _GNU_SOURCE /* CPU affinity */
#include "exec/transport/comm.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { NOTICE_TAG = 1, SPIN = 200, SPIN_CROWDED = 4 };

static const double MIN_NAP_S = 10e-6, MAX_NAP_S = 50e-6;
static const double PATIENCE = 30.0; /* between steps ranks plan, read data, write checkpoints */
static const double LOOK_EVERY_S = 1e-3; /* for failure notices and the time-out */

struct smp_comm_notice {
    char text[SMP_NOTICE_BYTES];
    MPI_Request *request;
    int n;
};

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

/* Unwatched: the processes have just been started, and mpirun ends a job whose process dies in
 * MPI_Init. */
smp_status smp__comm_open(smp_comm *comm, double timeout_s)
{
    *comm = (smp_comm){.world = MPI_COMM_NULL,
                       .pipeline = MPI_COMM_NULL,
                       .ddp = MPI_COMM_NULL,
                       .notice = MPI_COMM_NULL,
                       .node = MPI_COMM_NULL,
                       .timeout_s = timeout_s};
    int initialised = 0;
    MPI_Initialized(&initialised);
    int finalised = 0;
    MPI_Finalized(&finalised);
    if (finalised)
        return smp_fail(SMP_ERR_FAILED, "MPI has been finalised: a program that has more than one "
                                        "job calls MPI_Init and MPI_Finalize itself");
    if (!initialised) {
        smp__comm_configure();
        if (MPI_Init(NULL, NULL) != MPI_SUCCESS)
            return smp_fail(SMP_ERR_FAILED, "MPI_Init failed");
        comm->owns_mpi = true;
    }
    if (MPI_Comm_dup(MPI_COMM_WORLD, &comm->world) != MPI_SUCCESS ||
        MPI_Comm_dup(MPI_COMM_WORLD, &comm->notice) != MPI_SUCCESS)
        return smp_fail(SMP_ERR_FAILED, "MPI_Comm_dup failed");
    MPI_Comm_set_errhandler(comm->world, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(comm->notice, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm->world, &comm->world_rank);
    MPI_Comm_size(comm->world, &comm->world_size);

    if (MPI_Comm_split_type(comm->world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &comm->node) !=
        MPI_SUCCESS)
        return smp_fail(SMP_ERR_FAILED, "MPI_Comm_split_type failed");
    MPI_Comm_size(comm->node, &comm->node_size);
    MPI_Comm_rank(comm->node, &comm->node_rank);
    comm->crowded = comm->node_size > sysconf(_SC_NPROCESSORS_ONLN);
    if (comm->crowded)
        bind_to_core(comm->node_rank);
    return SMP_OK;
}

/* Unwatched: all ranks have just agreed to come. */
smp_status smp__comm_split(smp_comm *comm, int pipeline_rank, int replica)
{
    comm->pipeline_rank = pipeline_rank;
    comm->replica = replica;
    if (MPI_Comm_split(comm->world, replica, pipeline_rank, &comm->pipeline) != MPI_SUCCESS ||
        MPI_Comm_split(comm->world, pipeline_rank, replica, &comm->ddp) != MPI_SUCCESS)
        return smp_fail(SMP_ERR_FAILED, "MPI_Comm_split failed");
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
    /* After a failure other ranks may never answer again: freeing communicators and MPI_Finalize
     * are collective and would hang. The process ends without them. */
    if (comm->failed)
        return;
    free_comm(&comm->ddp);
    free_comm(&comm->pipeline);
    free_comm(&comm->notice);
    free_comm(&comm->node);
    free_comm(&comm->world);
    if (comm->owns_mpi)
        MPI_Finalize();
}

smp_status smp__comm_notify(smp_comm *comm, smp_status status)
{
    if (comm->failed || comm->notice == MPI_COMM_NULL)
        return status;
    comm->failed = true;
    struct smp_comm_notice *notice = calloc(1, sizeof(*notice));
    MPI_Request *request = calloc((size_t)comm->world_size, sizeof(*request));
    if (!notice || !request) { /* the others' time-out will find out */
        free(notice);
        free(request);
        return status;
    }
    snprintf(notice->text, sizeof(notice->text), "%s", smp_last_error());
    notice->request = request;
    for (int rank = 0; rank < comm->world_size; rank++)
        if (rank != comm->world_rank)
            MPI_Isend(notice->text, SMP_NOTICE_BYTES, MPI_CHAR, rank, NOTICE_TAG, comm->notice,
                      &request[notice->n++]);
    /* The sends need progress and their buffer must outlive them: give them a moment, then keep
     * the buffer for the rest of the process. */
    int done = 0;
    for (double until = smp_clock_s() + 0.2; !done && smp_clock_s() < until;)
        MPI_Testall(notice->n, request, &done, MPI_STATUSES_IGNORE);
    comm->notices = notice;
    return status;
}

static smp_status look_for_notice(smp_comm *comm)
{
    int found = 0;
    MPI_Status from;
    MPI_Iprobe(MPI_ANY_SOURCE, NOTICE_TAG, comm->notice, &found, &from);
    if (!found)
        return SMP_OK;
    char text[SMP_NOTICE_BYTES];
    MPI_Recv(text, SMP_NOTICE_BYTES, MPI_CHAR, from.MPI_SOURCE, NOTICE_TAG, comm->notice,
             MPI_STATUS_IGNORE);
    comm->failed = comm->told = true;
    return smp_fail(SMP_ERR_PEER, "rank %d says: %.900s", from.MPI_SOURCE, text);
}

/* More ranks than cores: whoever polls takes the core from a rank that computes. So sleep, for a
 * tenth of the time waited so far: a wait gets at most that much longer and costs few wake-ups. */
static void nap(double waited_s)
{
    double nap_s = 0.1 * waited_s;
    nap_s = nap_s < MIN_NAP_S ? MIN_NAP_S : nap_s > MAX_NAP_S ? MAX_NAP_S : nap_s;
    struct timespec time = {.tv_sec = 0, .tv_nsec = (long)(1e9 * nap_s)};
    nanosleep(&time, NULL);
}

smp_status smp__comm_pause(smp_comm *comm, smp_wait *wait, smp_wait_describe describe,
                           const void *context)
{
    if (wait->polls++ < (comm->crowded ? SPIN_CROWDED : SPIN))
        return SMP_OK;
    double now = smp_clock_s();
    if (wait->begin_s == 0.0)
        wait->begin_s = wait->looked_s = now;
    if (now - wait->looked_s > LOOK_EVERY_S) {
        wait->looked_s = now;
        SMP_TRY(look_for_notice(comm));
        double limit_s = comm->timeout_s * (wait->patient ? PATIENCE : 1.0);
        if (limit_s > 0.0 && now - wait->begin_s > limit_s) {
            char what[256] = "";
            describe(context, what, sizeof(what));
            return smp_fail(SMP_ERR_PEER, "no progress for %g s: rank %d waits for %s", limit_s,
                            comm->world_rank, what);
        }
    }
    if (comm->crowded)
        nap(now - wait->begin_s);
    else
        sched_yield();
    return SMP_OK;
}

smp_status smp__comm_wait_until(smp_comm *comm, smp_wait *wait, smp_wait_test test,
                                smp_wait_describe describe, void *context)
{
    for (bool done = false;;) {
        SMP_TRY(test(context, &done));
        if (done)
            return SMP_OK;
        SMP_TRY(smp__comm_pause(comm, wait, describe, context));
    }
}

typedef struct collective_wait {
    smp_comm *comm;
    const char *what; /* who is waited for */
} collective_wait;

static void describe_collective(const void *context, char *buffer, size_t size)
{
    snprintf(buffer, size, "%s", ((const collective_wait *)context)->what);
}

static smp_status test_collective(void *context, bool *done)
{
    const collective_wait *wait = context;
    int flag = 0;
    if (MPI_Test(&wait->comm->collective, &flag, MPI_STATUS_IGNORE) != MPI_SUCCESS)
        return smp_fail(SMP_ERR_FAILED, "MPI failed in a collective for %s", wait->what);
    *done = flag;
    return SMP_OK;
}

/* Waits for a collective. After a failure it stays in flight: the job is over and its memory must
 * stay. */
static smp_status finish(smp_comm *comm, int started, bool patient, const char *what)
{
    collective_wait context = {comm, what};
    smp_status status = SMP_OK;
    if (started != MPI_SUCCESS)
        status = smp_fail(SMP_ERR_FAILED, "MPI failed to start a collective for %s", what);
    else
        status = smp__comm_wait_until(comm, &(smp_wait){.patient = patient}, test_collective,
                                      describe_collective, &context);
    return status == SMP_OK ? SMP_OK : smp__comm_notify(comm, status);
}

static smp_status broadcast(smp_comm *comm, void *data, int count, MPI_Datatype type, int root)
{
    int started = MPI_Ibcast(data, count, type, root, comm->world, &comm->collective);
    return finish(comm, started, true, "the other ranks");
}

smp_status smp__comm_agree(smp_comm *comm, smp_status status)
{
    if (comm->failed) /* not all ranks would come */
        return status == SMP_OK ? SMP_ERR_PEER : status;
    comm->first = status == SMP_OK ? comm->world_size : comm->world_rank;
    int started = MPI_Iallreduce(MPI_IN_PLACE, &comm->first, 1, MPI_INT, MPI_MIN, comm->world,
                                 &comm->collective);
    SMP_TRY(finish(comm, started, true, "the other ranks to agree"));
    if (comm->first == comm->world_size)
        return SMP_OK;
    bool mine = comm->first == comm->world_rank;
    comm->failure.code = (int)status;
    if (mine)
        snprintf(comm->failure.text, sizeof(comm->failure.text), "%s", smp_last_error());
    SMP_TRY(broadcast(comm, &comm->failure, (int)sizeof(comm->failure), MPI_BYTE, comm->first));
    return mine ? status : smp_fail((smp_status)comm->failure.code, "%s", comm->failure.text);
}

smp_status smp__comm_broadcast(smp_comm *comm, char **data, size_t *bytes)
{
    comm->bytes = comm->world_rank == 0 ? (long long)*bytes : 0;
    SMP_TRY(broadcast(comm, &comm->bytes, 1, MPI_LONG_LONG, 0));
    long long count = comm->bytes;
    smp_status status = SMP_OK;
    if (count >= INT32_MAX)
        status = smp_fail(SMP_ERR_FAILED, "a plan of %lld bytes is too long to broadcast", count);
    char *buffer = NULL;
    if (status == SMP_OK && comm->world_rank != 0) {
        buffer = malloc((size_t)count + 1);
        if (!buffer)
            status = smp_fail_memory((size_t)count + 1);
    }
    status = smp__comm_agree(comm, status);
    if (status == SMP_OK)
        status = broadcast(comm, comm->world_rank == 0 ? *data : buffer, (int)count, MPI_CHAR, 0);
    if (status != SMP_OK) {
        if (!comm->failed)
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

smp_status smp__comm_sum(smp_comm *comm, double *values, int count)
{
    if (comm->world_size == 1)
        return SMP_OK;
    int started = MPI_Iallreduce(MPI_IN_PLACE, values, count, MPI_DOUBLE, MPI_SUM, comm->world,
                                 &comm->collective);
    return finish(comm, started, false, "the other ranks at the end of the step");
}

smp_status smp__comm_sum_first(smp_comm *comm, MPI_Comm group, double *values, int count)
{
    int started =
        MPI_Iallreduce(MPI_IN_PLACE, values, count, MPI_DOUBLE, MPI_SUM, group, &comm->collective);
    return finish(comm, started, true, "the other ranks at the start of the step");
}
