/* The transport interface: moving tensors between ranks. One static smp_transport per file, listed
 * once in exec/transport/transport.c. Nothing blocks: everything is started, then tested; data
 * moves only while somebody tests, so the executor tests between operators.
 *
 * Order on a device: a message is started in the order of the device's compute stream (a send reads
 * what was computed before it, a receive writes after what was enqueued before it), and once `test`
 * has said done, what is enqueued later comes after the message: a sent buffer may be overwritten,
 * a received one read. With `on_device` that takes no waiting of the host: `test` says done at
 * once, the device waits. */
#ifndef SMP_EXEC_TRANSPORT_TRANSPORT_H
#define SMP_EXEC_TRANSPORT_TRANSPORT_H

#include "exec/transport/comm.h"
#include "schedule/plan/sum_terms.h"
#include "exec/device/device.h"

/* Which of the ranks with the same stages: all replicas, those of a shard group, those with the
 * same part in every group. */
typedef enum smp_reach { SMP_REACH_ALL, SMP_REACH_GROUP, SMP_REACH_ACROSS } smp_reach;
enum { SMP_N_REACH = 3 };

/* Messages from one rank of a replica to another that are sent in the order in which they are
 * received (exec/step/message_lanes.c says why). Messages of different lanes never wait for each
 * other. */
typedef struct smp_lane {
    int64_t id; /* the same at both ends, unique in the replica */
    int peer;   /* in comm->messages */
    bool outgoing;
    int64_t messages;  /* in one step */
    int64_t max_bytes; /* of one message */
} smp_lane;

typedef struct smp_transport_options {
    smp_comm *comm;
    const smp_device *device;
    void *device_context;
    int reductions; /* how many may be in flight or queued at the same time */
    int n_lane;
    const smp_lane *lane; /* [n_lane] by rising id */
    int64_t group_floats; /* of the group's longest sum; 0: nobody asks for the group */
    int64_t later_bytes;  /* of the device, that the job reserves once the transport is open */
    const smp_sum_terms *terms[SMP_N_REACH]; /* of sums of a reach; the caller's until `close`.
                                                NULL: one of each member, one is left */
} smp_transport_options;

/* A message in flight; storage owned by the executor, contents by the transport. */
typedef struct smp_request {
    void *handle;
    int lane;
    bool active;
} smp_request;

/* An array of which member p holds part p, elements cut[p] .. cut[p + 1] - 1. */
typedef struct smp_sum {
    float *data; /* with `add`: of the last of this member's terms, and of what is left, ... */
    float *more; /* ... and of those before it, as long, `stride` apart; NULL: none of either */
    int64_t stride;
    const int64_t *cut; /* [members + 1], the caller's until it is done */
    smp_reach reach;    /* in two hops (comm->near) ALL adds and gathers, GROUP does one of them */
    bool add;           /* the members' arrays are added up, each part where it is held */
    bool bf16;   /* with `add`: what is sent is rounded to bf16, also what a member adds of its own,
                    and so is the sum, so that no choice of who adds what shows; added in fp32 */
    bool gather; /* every member gets the parts of the others; else it may lose what it has there */
} smp_sum;

typedef struct smp_reduction smp_reduction; /* a sum in flight */

typedef struct smp_transport {
    const char *name;
    bool on_device; /* see above */
    int64_t max_message_bytes;
    /* Can it serve the job, on a device that lists it? SMP_ERR_FAILED: no, and the reason ("two
     * ranks share GPU 0000:17:00.0"). Every rank is asked, by smp_transport_choose, which makes one
     * answer of theirs. NULL: it always can. */
    smp_status (*suits)(const smp_transport_options *options);
    smp_status (*open)(const smp_transport_options *options, void **context); /* collective */
    void (*close)(void *context);
    /* After a failure: gives up everything in flight without waiting for peers. NULL: nothing to
     * do. */
    void (*abort)(void *context);
    /* Largest tag a message may carry; both ends of a message use one tag, unique in a step. */
    int64_t (*max_tag)(void *context);
    /* `lane`: index into options.lane, of that direction. The buffer stays with the transport until
     * done. */
    smp_status (*send)(void *context, int lane, int64_t tag, const void *data, int64_t bytes,
                       smp_request *request);
    smp_status (*receive)(void *context, int lane, int64_t tag, void *data, int64_t bytes,
                          smp_request *request);
    /* Also makes progress on everything else in flight. An inactive request is done. */
    smp_status (*test)(void *context, smp_request *request, bool *done);
    /* Progress alone; errors of the network appear here. */
    smp_status (*progress)(void *context);
    /* Starts a sum, in place, in the tree of sum_terms.h over the members; every one ends with the
     * same bits. All members ask for the same ones in the same order. */
    smp_status (*reduce)(void *context, const smp_sum *sum, smp_reduction **out);
    /* Sets *reduction to NULL when done, in the sense of `test`. */
    smp_status (*reduce_test)(void *context, smp_reduction **reduction, bool *done);
    /* The devices of comm->tensor, for arrays in device memory and in the order of the compute
     * stream; until `close`. NULL: it has none, host memory does (exec/group/op_group.h). */
    const smp_op_group *(*group)(void *context);
} smp_transport;

/* Whom sums of a reach go to, a communicator of `comm`; MPI_COMM_NULL: this rank is alone, or its
 * job has no such sums. */
MPI_Comm smp__transport_reach(const smp_comm *comm, smp_reach reach);

static inline smp_status smp_transport_suits(const smp_transport *transport,
                                             const smp_transport_options *options)
{
    return transport->suits ? transport->suits(options) : SMP_OK;
}

const smp_transport *smp_transport_find(const char *name); /* NULL if unknown or not built in */

/* The first of the device's transports that suits; `why` (may be NULL): what the better ones said,
 * as text "nccl: two ranks share GPU 0000:17:00.0", or empty. NULL if there is none, or the job has
 * failed. Collective. */
const smp_transport *smp_transport_choose(const smp_transport_options *options, char *why,
                                          size_t size);

#endif
