/* The job's processes: groups, agreement on errors, waiting with a watchdog. The control plane is
 * MPI; it carries a few numbers per step. Bulk data goes through a transport (exec/transport/transport.h). */
#ifndef SMP_EXEC_TRANSPORT_COMM_H
#define SMP_EXEC_TRANSPORT_COMM_H

#include <mpi.h>
#include <stdbool.h>

#include "graph/base/clock.h"
#include "graph/base/status.h"

enum { SMP_NOTICE_BYTES = 1024 };

typedef struct smp_comm {
    MPI_Comm world;    /* duplicates, owned */
    MPI_Comm pipeline; /* ranks of one replica, by pipeline rank */
    MPI_Comm ddp;      /* ranks with the same stages, by replica */
    MPI_Comm notice;   /* failure notices */
    MPI_Comm node;     /* ranks of this machine */
    int world_rank, world_size;
    int pipeline_rank, pipeline_size;
    int replica, ddp_size;
    int node_rank, node_size; /* among the ranks of this machine */
    bool owns_mpi;            /* we initialised it */
    bool crowded;             /* more ranks on this node than cores: waiting ranks sleep */
    bool failed;              /* a notice was sent or received */
    bool told;                /* one was received: the message is another rank's */
    double timeout_s;         /* 0: never */
    MPI_Request collective;   /* in flight, one at a time, with what it reads and writes: */
    int first;                /* rank that failed first */
    long long bytes;
    struct {
        int code;
        char text[SMP_NOTICE_BYTES];
    } failure;
    struct smp_comm_notice *notices; /* outgoing: MPI may read it until the process ends */
} smp_comm;

/* Call before MPI_Init. Ranks wait by testing and sleeping (smp__comm_pause), so Open MPI must not
 * give the core away by itself: with its mpi_yield_when_idle, which mpirun --oversubscribe sets,
 * every test between two operators would. */
void smp__comm_configure(void);
/* Initialises MPI if need be and the world communicator. Collective. */
smp_status smp__comm_open(smp_comm *comm, double timeout_s);
/* Makes the groups. Collective. */
smp_status smp__comm_split(smp_comm *comm, int pipeline_rank, int replica);
/* Collective unless the job has failed; then only local resources are freed. */
void smp__comm_close(smp_comm *comm);

/* SMP_ERR_FAILED with the call's name and MPI's message unless the code is MPI_SUCCESS. */
smp_status smp__comm_check(int code, const char *call);

/* The largest tag of a message in the pipeline. */
int smp__comm_max_tag(const smp_comm *comm);

/* Every rank passes its own status; every rank returns the first failure (lowest rank) and has its
 * message. Collective. */
smp_status smp__comm_agree(smp_comm *comm, smp_status status);
/* Rank 0's bytes to every rank; *data is malloc'ed on the others. Collective. */
smp_status smp__comm_broadcast(smp_comm *comm, char **data, size_t *bytes);

/* Tells every other rank that this one failed (message: smp_last_error), so that their waits end
 * with SMP_ERR_PEER. Never blocks. Returns `status`. */
smp_status smp__comm_notify(smp_comm *comm, smp_status status);

/* A wait in progress: spins, then yields or sleeps, looks for failure notices, gives up after
 * timeout_s. Zero-initialise before a wait. */
typedef struct smp_wait {
    long polls;
    double begin_s;  /* monotonic, of the first pause after spinning */
    bool patient;    /* the others may have long work to do: wait 30 times as long */
    double looked_s; /* when notices were last looked for */
} smp_wait;

/* One round of waiting for what the callback describes (called on time-out only). SMP_ERR_PEER: a
 * notice came, or time is up. */
typedef void (*smp_wait_describe)(const void *context, char *buffer, size_t size);
smp_status smp__comm_pause(smp_comm *comm, smp_wait *wait, smp_wait_describe describe,
                           const void *context);
/* The executor's one way to wait: rounds of it until `test`, which must not block and may make
 * progress, says done or fails. */
typedef smp_status (*smp_wait_test)(void *context, bool *done);
smp_status smp__comm_wait_until(smp_comm *comm, smp_wait *wait, smp_wait_test test,
                                smp_wait_describe describe, void *context);

/* In-place sum of doubles over all ranks, waited for with the watchdog. Entries that only one rank
 * sets are exact. Collective. */
smp_status smp__comm_sum(smp_comm *comm, double *values, int count);
/* The same at the start of a step over the ranks of `group`, which may still have work to do. */
smp_status smp__comm_sum_first(smp_comm *comm, MPI_Comm group, double *values, int count);

#endif
