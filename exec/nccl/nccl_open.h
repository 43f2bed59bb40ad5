/* What the files of the NCCL transport share: transport_nccl.c (messages),
 * nccl_sum.c (sums), nccl_group.c (devices that compute operators together),
 * nccl_open.c (communicators), nccl_calls.c (the library, waiting for it) and
 * nccl_suits.c. */
#ifndef SMP_EXEC_NCCL_NCCL_OPEN_H
#define SMP_EXEC_NCCL_NCCL_OPEN_H

#include <nccl.h>
#include <stdatomic.h>

#include "exec/transport/own_core.h"
#include "exec/transport/transport.h"
#include "graph/cuda/cuda.h"
#include "schedule/memory/communicators.h"

/* NCCL, opened when a GPU is: smp__nccl.ncclSend(...) is the library's
 * function. */
#define SMP__NCCL_CALLS(X)                                                                         \
    X(ncclGetVersion)                                                                              \
    X(ncclGetUniqueId)                                                                             \
    X(ncclCommInitRankConfig)                                                                      \
    X(ncclCommFinalize)                                                                            \
    X(ncclCommDestroy)                                                                             \
    X(ncclCommAbort)                                                                               \
    X(ncclCommGetAsyncError)                                                                       \
    X(ncclGetErrorString)                                                                          \
    X(ncclGetLastError)                                                                            \
    X(ncclSend)                                                                                    \
    X(ncclRecv)                                                                                    \
    X(ncclGroupStart)                                                                              \
    X(ncclGroupEnd)

typedef struct smp__nccl_calls {
#define SMP__NCCL_FIELD(name) __typeof__(&name) name;
    SMP__NCCL_CALLS(SMP__NCCL_FIELD)
#undef SMP__NCCL_FIELD
} smp__nccl_calls;

extern smp__nccl_calls smp__nccl; /* filled by smp__nccl_open */
extern bool smp__nccl_left;       /* a thread of this process is in NCCL for ever */
smp_status smp__nccl_open(void);
/* SMP_ERR_PEER if another rank is to blame, else SMP_ERR_FAILED, with the
 * call's name and NCCL's message, unless the code is ncclSuccess. comm: NULL if
 * there is none. */
smp_status smp__nccl_check(ncclComm_t comm, ncclResult_t code, const char *call);

struct smp_reduction {
    cudaEvent_t done;
    smp_reduction *next;
};

/* So many launches at most of one stream stand behind a wait for other ranks: a
 * launch queue holds about a thousand, and behind a full one the host waits
 * where nobody watches. Emulated, small tests wait. */
#ifdef SMP_EMULATED
enum { SMP__NCCL_LAUNCHES = 16 };
#else
enum { SMP__NCCL_LAUNCHES = 512 };
#endif

/* Of a stream: the first half of what may stand in it must be done before the
 * third is enqueued. */
typedef struct smp__nccl_pace {
    cudaEvent_t passed[2]; /* recorded in turn, half of the launches apart */
    int launched;          /* since then */
    int64_t recorded;
} smp__nccl_pace;

typedef struct smp__nccl_lane {
    ncclComm_t nccl; /* NULL after abort */
    cudaStream_t stream;
    int peer; /* pipeline rank */
    bool outgoing;
    int64_t n_message, posted;
    cudaEvent_t *done; /* [n_message] of message number `posted` at posted % n_message */
    ncclUniqueId id;   /* while opening */
} smp__nccl_lane;

enum { SMP__NCCL_NEAR = SMP_N_REACH, SMP__NCCL_FAR, SMP__NCCL_TENSOR, SMP__NCCL_SUMS };

/* Floats of all members together that are added up at once: of sums over
 * replicas; in operators, where the exchanges are no longer than that. Below
 * this an exchange over NVLink is mostly latency (not measured); emulated,
 * small tests have several pieces. */
#ifdef SMP_EMULATED
enum { SMP__NCCL_PARTS_FLOATS = 1 << 18, SMP__NCCL_CAME_FLOATS = 1 << 12 };
#else
enum { SMP__NCCL_PARTS_FLOATS = 8 << 20, SMP__NCCL_CAME_FLOATS = 8 << 20 };
#endif

/* Multiprocessors that an operation occupies at most while it waits for its
 * peers; the environment variable NCCL_MAX_CTAS overrides it. */
enum { SMP__NCCL_LANE_CTAS = SMP_LANE_CHANNELS, SMP__NCCL_SUM_CTAS = SMP_SUM_CHANNELS };

/* Floats: where shares begin that are cut out of an array, so that they are as
 * aligned as it is. */
enum { SMP__NCCL_ALIGNED = 32 };

static inline int64_t smp__nccl_aligned(int64_t n)
{
    return (n + SMP__NCCL_ALIGNED - 1) / SMP__NCCL_ALIGNED * SMP__NCCL_ALIGNED;
}

/* Whom sums of a reach are exchanged with. */
typedef struct smp__nccl_sums {
    MPI_Comm comm;                       /* the job's; MPI_COMM_NULL: nobody */
    ncclComm_t nccl;                     /* NULL: nobody, others', or after abort */
    const struct smp__nccl_sums *lender; /* of the same ranks, for all; NULL: itself */
    bool hops;                           /* they go by those of the two hops */
    int members, own;
    const smp_sum_terms *terms; /* of sums */
    smp_sum_terms single;       /* where each member has one */
    int64_t *cut;               /* [members + 1] of one of the two hops */
    ncclUniqueId id;            /* while opening */
    /* [members * terms->width] blocks of a piece. */
    struct smp__conversion *converted;
} smp__nccl_sums;

/* NULL: nobody to exchange anything with, or they go in two hops. */
static inline ncclComm_t smp__nccl_of(const smp__nccl_sums *sums)
{
    return sums->lender ? sums->lender->nccl : sums->nccl;
}

/* The group of devices on one of two streams. */
typedef struct smp__nccl_way {
    struct smp__nccl_context *of;
    cudaStream_t stream;
    smp__nccl_pace pace;
    smp_op_group group; /* its context is this */
} smp__nccl_way;

typedef struct smp__nccl_context {
    smp_comm *comm;
    int gpu;
    smp__worker *caller;  /* makes the calls that wait for other ranks */
    int call;             /* the last one that it was asked for */
    atomic_int caller_at; /* nccl_open.c */
    bool left;            /* it did not return, or too late: nothing of this may be freed */
    bool connected;
    const smp_device *device;
    void *device_context;
    cudaStream_t compute;
    cudaEvent_t ready; /* recorded for each message; what waits for it has seen
                        that record */
    char *scratch;     /* device memory for the first messages */
    double looked_s;   /* for errors of the network */
    float *parts;      /* [SMP__NCCL_PARTS_FLOATS] of device memory; NULL: one replica */
    smp__nccl_sums sums[SMP__NCCL_SUMS]; /* by reach; the two hops of whole sums;
                                          the group */
    smp__nccl_way within, beside; /* the group on the compute stream; on one of its own, ... */
    smp_cuda beside_device;       /* ... where kernels run that belong to an exchange */
    bool under_way;               /* there, and the compute stream has yet to wait for it */
    char *read;                   /* [SMP_GROUP_READ] of pinned memory; NULL: there is no group */
    cudaEvent_t has_read;         /* what is read is there */
    int64_t came_floats;          /* 0: there is no group */
    float *came;                  /* [came_floats] of device memory */
    /* The stream of all sums: in one order on all ranks, so none waits for
   * another's; on a rank one after the other, through `parts`. Their kernels
   * are on `fold`, two pieces under way, each in half of `parts`; `arrived`:
   * its exchange is done. */
    cudaStream_t reduce, fold;
    cudaEvent_t arrived[2];
    smp__nccl_pace pace; /* of both */
    smp_reduction *free; /* unused ones of the pool */
    int n_pool;
    smp_reduction *pool;
    int n_lane;
    smp__nccl_lane lane[];
} smp__nccl_context;

/* Those of all: of the lanes, of sums over replicas and of the group, which
 * have a stream each. */
int smp__nccl_taken(const smp_transport_options *options);
/* What comes from the devices of a group, in pieces of the longest sum. */
int64_t smp__nccl_came_floats(const smp_transport_options *options);

/* As in smp_transport. */
smp_status smp__nccl_suits(const smp_transport_options *options);
smp_status smp__nccl_connect(const smp_transport_options *options, void **context);
void smp__nccl_close(void *context);
void smp__nccl_abort(void *context);
smp_status smp__nccl_progress(void *context);

/* Ends a group of operations of one communicator, which then stand in their
 * streams: nothing is waited for. code: of the first that failed in it. */
smp_status smp__nccl_end(ncclComm_t comm, ncclResult_t code, const char *call);

/* After every launch of a stream that may wait for other ranks, or some: waits,
 * watched, while too many of them stand in it. That cannot make ranks wait for
 * each other: those of a sum run one program, so all come to the sum in the
 * same place of it, and what was to be sent before has been sent. */
smp_status smp__nccl_keep_pace(smp__nccl_context *c, smp__nccl_pace *pace, cudaStream_t stream,
                               int launches);

/* What comes next on stream `after` waits for what is enqueued on `before`. */
static inline smp_status smp__nccl_order(smp__nccl_context *c, cudaStream_t before,
                                         cudaStream_t after)
{
    SMP_TRY(SMP_CUDA(cudaEventRecord, c->ready, before));
    return SMP_CUDA(cudaStreamWaitEvent, after, c->ready, 0);
}

/* What an error of the group begins with. */
#define SMP__NCCL_DEVICES "devices that compute layers together"
/* Looks at all communicators for errors, which name their communicator. */
smp_status smp__nccl_look(const smp__nccl_context *c);
/* Says whose messages failed, before what NCCL says. */
smp_status smp__nccl_blame(const smp__nccl_lane *l, smp_status status);

/* Enqueues a sum, after and before what is on the stream of exchanges. */
smp_status smp__nccl_sum(smp__nccl_context *c, const smp_sum *sum);
/* In a group: a message to all of `of` and one from each, through `scratch`
 * [members]. */
ncclResult_t smp__nccl_sum_first(smp__nccl_context *c, const smp__nccl_sums *of, float *scratch);

/* Fills the groups; the communicator is there when it is first called. */
void smp__nccl_group_fill(smp__nccl_context *c);

#endif
