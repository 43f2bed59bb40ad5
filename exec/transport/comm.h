/* The job's processes: groups, agreement on errors, waiting with a watchdog. The control plane is
 * MPI; it carries a few numbers per step. Bulk data goes through a transport (transport.h). */
#ifndef SMP_EXEC_TRANSPORT_COMM_H
#define SMP_EXEC_TRANSPORT_COMM_H

#include <mpi.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "graph/base/clock.h"
#include "graph/base/status.h"

enum { SMP_NOTICE_BYTES = 1024, SMP_SHARE_BYTES = 1 << 18 };

/* How long a rank waits without progress; 0: for ever. */
typedef struct smp_comm_limits {
    double step_s;  /* in a step, once all ranks are in it */
    double start_s; /* before that, until the first step has begun everywhere */
    double save_s;  /* between steps and after the last one */
} smp_comm_limits;

/* Outside of steps: what is given; below 0: ten minutes, less where a wait in a step is short. */
static inline double smp__comm_patience(double given_s, double step_s)
{
    enum { DEFAULT_S = 600, STEPS = 30 };
    const double least_s = step_s > 0.0 ? STEPS * step_s : DEFAULT_S;
    return given_s >= 0.0 ? given_s : least_s < DEFAULT_S ? least_s : DEFAULT_S;
}

typedef struct smp_comm {
    MPI_Comm world;    /* duplicates, owned */
    MPI_Comm pipeline; /* ranks of one replica with one tensor_rank, by pipeline rank */
    MPI_Comm ddp;      /* ranks with the same stages, by replica */
    MPI_Comm joint;    /* the same, for sums in the middle of operators */
    MPI_Comm shard;    /* of those, the ones that hold one copy of what is sharded, by replica */
    MPI_Comm across;   /* of those, the ones with this rank's part, by replica */
    MPI_Comm near;     /* replicas that add up first, by replica; MPI_COMM_NULL: in one hop */
    MPI_Comm far;      /* those with this rank's place among them; near * far: smp_hops_size */
    MPI_Comm tensor;   /* ranks that compute every op together, by tensor_rank; all other groups
                          but world, copy, notice and node are of ranks with one tensor_rank */
    MPI_Comm messages; /* between stages: `pipeline`, or where groups differ all ranks of one
                          replica, by pipeline rank, then tensor_rank */
    MPI_Comm copy;     /* ranks that together have one copy of this rank's stages, tensor x shard:
                          by shard_rank, then tensor_rank */
    MPI_Comm notice;   /* failure notices */
    MPI_Comm node;     /* ranks of this machine */
    int world_rank, world_size;
    int pipeline_rank, pipeline_size; /* where groups differ not all have a rank in `pipeline` */
    int line_rank, line_size;         /* in `pipeline` */
    int replica, ddp_size;
    int shard_size, shard_rank; /* replica % shard_size: which part is this rank's */
    int tensor_size, tensor_rank;
    int tensor_most;          /* of all groups */
    int node_rank, node_size; /* among the ranks of this machine */
    int *node_pid;            /* [node_size]; NULL: not visible from here */
    bool crowded;             /* more ranks on this node than cores: waiting ranks sleep soon */
    bool own_core;            /* the calling thread is bound until the end */
    bool failed;              /* a notice was sent or received */
    bool told;                /* one was received: the message is another rank's */
    smp_comm_limits limit;
    /* The signal that asks the job to end, 0: none yet; NULL: no rank looks, or all have agreed. */
    const volatile sig_atomic_t *signalled;
    double waited_s;            /* by this rank so far, in smp__comm_wait_until */
    bool moved;                 /* another rank has made progress since this was last looked at */
    long long came;             /* collectives that this rank has started: how far it has come */
    bool entering;              /* a step has begun here, perhaps not yet everywhere */
    long long entered;          /* comm.came when it had begun here */
    long long steps;            /* begun by this rank */
    long long witnessed;        /* ... by the rank that this one is witness of */
    struct smp_comm_peer *peer; /* [world_size] */
    MPI_Request collective;     /* in flight, one at a time, with what it reads and writes: */
    MPI_Comm made;
    int first; /* rank that failed first */
    int greatest;
    long long bytes;
    char *piece; /* [SMP_SHARE_BYTES] */
    struct {
        int code;
        char text[SMP_NOTICE_BYTES];
    } failure;
    const int *rank_begin;           /* of the plan, the caller's; NULL: groups are alike */
    struct smp_comm_notice *notices; /* outgoing: MPI may read it until the process ends */
} smp_comm;

/* What is known of another rank after a time-out. */
typedef struct smp_comm_peer {
    long long came;      /* comm.came of the rank, when it answered; -1: no answer */
    long long witnessed; /* comm.witnessed of it */
    long long progress;  /* what it had noted (smp__progress_note) */
    bool known;          /* it has answered once */
    bool asks;           /* it has run out of time itself */
    long long reply[3];  /* to it: MPI may read it until the process ends */
} smp_comm_peer;

/* Initialises MPI if need be and the world communicator. Collective. */
smp_status smp__comm_open(smp_comm *comm, smp_comm_limits limit);
/* If the machine is crowded, the calling thread keeps to its own core until the group is closed. */
void smp__comm_take_core(smp_comm *comm);
/* Where a rank stands. shard: replicas in one of those groups; near: replicas that add up first, 0:
 * no such; tensor: ranks that compute every op together, of which this is number tensor_rank. Where
 * that differs, rank_begin is the plan's, for `pipeline` ranks, and tensor_most the most. */
typedef struct smp_comm_place {
    int pipeline_rank, replica, shard, near, tensor, tensor_rank;
    int pipeline, tensor_most;
    const int *rank_begin;
} smp_comm_place;
/* Makes the groups. Collective. */
smp_status smp__comm_split(smp_comm *comm, smp_comm_place place);
/* Whom this rank sends what `other`, another pipeline rank, needs, or (incoming) has it from:
 * *first in comm.messages, and how many from there on. What is sent is whole on all of a group
 * where groups differ: everyone receives it once, and not every one of a larger group sends. */
int smp__comm_ends(const smp_comm *comm, int other, bool outgoing, int *first);
/* Collective unless the job has failed; then only local resources are freed. */
void smp__comm_close(smp_comm *comm);

/* SMP_ERR_FAILED with the call's name and MPI's message unless the code is MPI_SUCCESS. */
smp_status smp__comm_check(int code, const char *call);

/* Do all ranks of this machine live, as far as can be seen? Safe in a signal handler. */
bool smp__comm_node_lives(const smp_comm *comm);

/* The largest tag of a message in the pipeline. */
int smp__comm_max_tag(const smp_comm *comm);

/* Tells every other rank that this one failed (message: smp_last_error), so that their waits end
 * with SMP_ERR_PEER. Never blocks. Returns `status`. */
smp_status smp__comm_notify(smp_comm *comm, smp_status status);

/* A wait in progress: spins, then yields or sleeps, looks for what other ranks have to say, gives
 * up after the limit of where the job is. Time in which the process did not run does not count,
 * since a suspended job goes on. Zero-initialise before a wait. */
typedef struct smp_wait {
    long polls;
    double waited_s; /* since the first pause after spinning */
    double polled_s; /* monotonic, of the last one */
    bool patient;    /* not in a step: the others may have long work to do */
    long long noted; /* progress of this process when that was last looked at */
    double looked_s; /* when the others were last listened to */
    double called_s; /* waited_s when they were last asked whether they are in the step */
} smp_wait;

/* Is the last error what another rank said in a notice? That rank prints it. */
bool smp__comm_was_told(smp_status status);
/* So many seconds who was told leaves the teller, before its end ends all. */
enum { SMP_TELLER_S = 2 };

/* A piece of long work outside of steps is done: bytes are read or written, an operator is
 * prepared. Of all jobs of the process, by any thread. */
void smp__progress_note(void);
/* The same by a rank whose own thread does the work, between two pieces of it: answers those that
 * wait for this rank, which then go on to wait. SMP_ERR_PEER: one has failed. */
smp_status smp__comm_answer(smp_comm *comm);

/* One round of waiting for what the callback describes (called on time-out only). SMP_ERR_PEER: a
 * notice came, or time is up; the message then names the ranks that do not answer, and those that
 * have not come as far as this one. Of the ranks that run out of time together the lowest speaks,
 * the others are told. */
typedef void (*smp_wait_describe)(const void *context, char *buffer, size_t size);
smp_status smp__comm_pause(smp_comm *comm, smp_wait *wait, smp_wait_describe describe,
                           const void *context);
/* The executor's one way to wait: rounds of it until `test`, which must not block and may make
 * progress, says done or fails. */
typedef smp_status (*smp_wait_test)(void *context, bool *done);
smp_status smp__comm_wait_until(smp_comm *comm, smp_wait *wait, smp_wait_test test,
                                smp_wait_describe describe, void *context);

/* What follows is collective, waited for with the watchdog, in comm_collective.c. Whatever MPI may
 * still read or write after a failure must stay until the process ends. */

/* A copy of a group. */
smp_status smp__comm_duplicate(smp_comm *comm, MPI_Comm group, MPI_Comm *copy);
/* Waits patiently for comm->collective, which a non-blocking call of MPI has just started with this
 * code. `what`: whom or what for. */
smp_status smp__comm_finish(smp_comm *comm, int started, const char *what);
/* The same for a request of the caller's. */
smp_status smp__comm_finish_request(smp_comm *comm, MPI_Request *request, const char *what);

/* Every rank passes its own status; every rank returns the first failure (lowest rank) and has its
 * message, which names that rank. Collective. */
smp_status smp__comm_agree(smp_comm *comm, smp_status status);
/* Rank 0's bytes to every rank; *data is malloc'ed on the others. Collective. */
smp_status smp__comm_broadcast(smp_comm *comm, char **data, size_t *bytes);

/* The bytes of rank `root` to every rank, in pieces that pass through memory of `comm`: the
 * caller's memory is free again after a failure, too. */
smp_status smp__comm_share(smp_comm *comm, void *data, int64_t bytes, int root);
/* The same from one rank to one other; for the rest, and for a rank to itself, it does nothing. */
smp_status smp__comm_hand(smp_comm *comm, void *data, int64_t bytes, int from, int to);
/* The greatest of the values of all ranks. */
smp_status smp__comm_max(smp_comm *comm, int *value);
/* Every rank of this machine gets what each of them has, by rising rank: *all is malloc'ed. */
smp_status smp__comm_gather_node(smp_comm *comm, const void *own, int bytes, void **all);
/* What all ranks have, `bytes` of it here, one after the other by rising rank: *all is malloc'ed
 * and ends with a zero after its *total bytes. */
smp_status smp__comm_gather(smp_comm *comm, const void *own, size_t bytes, char **all,
                            size_t *total);
/* The lowest rank of the machine of each rank: *node_of is [world_size], malloc'ed. */
smp_status smp__comm_nodes(smp_comm *comm, int **node_of);

/* In-place sum of doubles over all ranks. Entries that only one rank sets are exact. */
smp_status smp__comm_sum(smp_comm *comm, double *values, int count);
/* The same in a step over the ranks of `group`. `what`: whom for. */
smp_status smp__comm_sum_group(smp_comm *comm, MPI_Comm group, double *values, int count,
                               const char *what);

/* A step begins: while it has not begun on all ranks, waits are as patient as between steps, since
 * a rank may still read data or write a checkpoint. Tells another rank, its witness, and returns at
 * once; the next smp__comm_sum completes it. */
void smp__comm_enter(smp_comm *comm);

/* All ranks are known to be in the step: takes what the other one has told. */
smp_status smp__comm_entered(smp_comm *comm);

#endif
