/* Opening and closing the communicators of the NCCL transport.
 *
 * No communicator blocks: what NCCL may have to wait for goes on in the background while the host
 * asks how it stands, listens to the other ranks and looks at the clock. So a rank that fails while
 * communicators are made, or hangs in NCCL, does not keep the others there: they abort theirs.
 *
 * Two ranks of a communicator connect when they first exchange something, and that is waited for.
 * In a step it would be in an order that nobody has proved, so every lane carries one message when
 * it is opened, and every pair that adds up one each way, all of them in one group: NCCL then
 * connects them in any order.
 *
 * An operation that waits for its peer occupies some multiprocessors (CTAs below; the environment
 * variable NCCL_MAX_CTAS overrides it): few, since kernels run meanwhile. Chosen, not measured. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/cuda/cuda_event.h"
#include "exec/cuda/cuda_kernels.h"
#include "exec/cuda/cuda_queues.h"
#include "exec/nccl/nccl_open.h"
#include "graph/base/library.h"

enum { LEAST_VERSION = 22400, LANE_CTAS = 4, REDUCE_CTAS = 16, SCRATCH_BYTES = 256, ID_TAG = 0 };

static const int64_t PARTS_BYTES = SMP__NCCL_PARTS_FLOATS * (int64_t)sizeof(float);

smp__nccl_calls smp__nccl;

static smp_status take_library(void)
{
#ifdef SMP_EMULATED
#define TAKE(name) smp__nccl.name = name;
    SMP__NCCL_CALLS(TAKE)
#undef TAKE
    return SMP_OK;
#else
    static const char *const symbol[] = {
#define NAME(name) #name,
        SMP__NCCL_CALLS(NAME)
#undef NAME
    };
    return smp_library_open("libnccl.so.2", SMP_CUDA_LIBRARY_DIR,
                            (int)(sizeof symbol / sizeof symbol[0]), symbol, (void **)&smp__nccl);
#endif
}

/* 2.22 aborts communicators together, but up to 2.23 it connects ranks in a thread that is on GPU 0,
 * whichever is the rank's, and takes memory there. */
smp_status smp__nccl_open(void)
{
    int version = 0;
    SMP_TRY(take_library());
    SMP_TRY(smp__nccl_check(NULL, smp__nccl.ncclGetVersion(&version), "ncclGetVersion"));
    if (version >= LEAST_VERSION)
        return SMP_OK;
    return smp_fail(SMP_ERR_FAILED, "NCCL %d.%d.%d, expected %d.%d or later", version / 10000,
                    version / 100 % 100, version % 100, LEAST_VERSION / 10000,
                    LEAST_VERSION / 100 % 100);
}

smp_status smp__nccl_check(ncclComm_t comm, ncclResult_t code, const char *call)
{
    if (code == ncclSuccess)
        return SMP_OK;
    const char *detail = smp__nccl.ncclGetLastError(comm);
    int more = detail && *detail;
    return smp_fail(code == ncclRemoteError ? SMP_ERR_PEER : SMP_ERR_FAILED, "%s: %s%s%s", call,
                    smp__nccl.ncclGetErrorString(code), more ? ": " : "", more ? detail : "");
}

ncclResult_t smp__nccl_send(const void *data, size_t n, ncclDataType_t type, int peer,
                            ncclComm_t comm, cudaStream_t stream)
{
    const ncclResult_t code = smp__nccl.ncclSend(data, n, type, peer, comm, stream);
    return code == ncclInProgress ? ncclSuccess : code;
}

ncclResult_t smp__nccl_receive(void *data, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                               cudaStream_t stream)
{
    const ncclResult_t code = smp__nccl.ncclRecv(data, n, type, peer, comm, stream);
    return code == ncclInProgress ? ncclSuccess : code;
}

smp_status smp__nccl_blame(const smp__nccl_lane *l, smp_status status)
{
    return smp_fail_context(status, "messages %s pipeline rank %d", l->outgoing ? "to" : "from",
                            l->peer);
}

/* *busy: something of it is in progress; else it stays as it is. */
static smp_status look_at_communicator(ncclComm_t nccl, bool *busy)
{
    ncclResult_t state = ncclSuccess;
    if (!nccl)
        return SMP_OK;
    SMP_TRY(smp__nccl_check(nccl, smp__nccl.ncclCommGetAsyncError(nccl, &state),
                            "ncclCommGetAsyncError"));
    *busy = *busy || state == ncclInProgress;
    return state == ncclInProgress ? SMP_OK : smp__nccl_check(nccl, state, "NCCL");
}

smp_status smp__nccl_look(const smp__nccl_context *c, bool *quiet)
{
    bool busy = false;
    for (int i = 0; i < c->n_lane; i++)
        SMP_TRY(smp__nccl_blame(&c->lane[i], look_at_communicator(c->lane[i].nccl, &busy)));
    for (int i = 0; i < SMP__NCCL_SUMS; i++)
        SMP_TRY(smp_fail_context(look_at_communicator(c->sums[i].nccl, &busy),
                                 i == SMP__NCCL_TENSOR ? "devices that compute layers together"
                                                       : "sums over the replicas"));
    *quiet = !busy;
    return SMP_OK;
}

typedef struct settling {
    const smp__nccl_context *of;
    ncclComm_t comm;
    const char *call;
} settling;

static void describe_settle(const void *context, char *buffer, size_t size)
{
    snprintf(buffer, size, "NCCL to begin: %s", ((const settling *)context)->call);
}

static smp_status test_settled(void *context, bool *done)
{
    const settling *s = context;
    bool busy = false;
    if (look_at_communicator(s->comm, &busy) != SMP_OK)
        return smp__nccl_look(s->of, done); /* the same, and whose communicator it is */
    *done = !busy;
    return SMP_OK;
}

smp_status smp__nccl_settle(smp__nccl_context *c, ncclComm_t comm, ncclResult_t code,
                            const char *call)
{
    settling of = {c, comm, call};
    if (code != ncclInProgress)
        return smp__nccl_check(comm, code, call);
    return smp__comm_wait_until(c->comm, &(smp_wait){0}, test_settled, describe_settle, &of);
}

smp_status smp__nccl_end(smp__nccl_context *c, ncclComm_t comm, ncclResult_t code, const char *call)
{
    const ncclResult_t end = smp__nccl.ncclGroupEnd();
    return smp__nccl_settle(c, comm, code == ncclSuccess ? end : code, call);
}

typedef struct pacing {
    smp__nccl_context *of;
    cudaEvent_t event;
} pacing;

static void describe_pace(const void *context, char *buffer, size_t size)
{
    (void)context;
    snprintf(buffer, size, "the other ranks of a sum, which the device adds up");
}

static smp_status test_pace(void *context, bool *done)
{
    const pacing *p = context;
    int passed;
    SMP_TRY(smp__event_passed(p->event, &passed));
    *done = passed;
    return passed ? SMP_OK : smp__nccl_progress(p->of);
}

smp_status smp__nccl_keep_pace(smp__nccl_context *c, smp__nccl_pace *pace, cudaStream_t stream,
                               int launches)
{
    pace->launched += launches;
    if (pace->launched < SMP__NCCL_LAUNCHES / 2)
        return SMP_OK;
    pace->launched = 0;
    SMP_TRY(SMP_CUDA(cudaEventRecord, pace->passed[pace->recorded++ % 2], stream));
    pacing before = {c, pace->passed[pace->recorded % 2]};
    if (pace->recorded == 1)
        return SMP_OK;
    return smp__comm_wait_until(c->comm, &(smp_wait){0}, test_pace, describe_pace, &before);
}

static smp_status open_pace(smp__nccl_pace *pace)
{
    SMP_TRY(smp__make_event(&pace->passed[0]));
    return smp__make_event(&pace->passed[1]);
}

static void close_pace(smp__nccl_pace *pace)
{
    for (int i = 0; i < 2; i++)
        if (pace->passed[i])
            cudaEventDestroy(pace->passed[i]);
}

/* For tests on an emulated GPU. */
static bool may_share(void)
{
    const char *allowed = getenv("SMP_NCCL_SHARED");
    return allowed && strcmp(allowed, "1") == 0;
}

static smp_status find_bus(char bus[64])
{
    int device;
    SMP_TRY(SMP_CUDA(cudaGetDevice, &device));
    return SMP_CUDA(cudaDeviceGetPCIBusId, bus, 64, device);
}

/* Two ranks of this machine with the same GPU: NCCL refuses them. It tells GPUs apart by where they
 * are on the bus: slices of one (MIG) have names of their own, but one place. */
static smp_status check_shared(smp_comm *comm)
{
    char own[64] = "";
    smp_status status = find_bus(own);
    void *all;
    SMP_TRY(smp__comm_gather_node(comm, own, 64, &all));
    const char(*id)[64] = all;
    for (int i = 0; i < comm->node_size; i++)
        for (int j = 0; status == SMP_OK && j < i; j++)
            if (memcmp(id[i], id[j], sizeof(*id)) == 0 && !may_share())
                status = smp_fail(SMP_ERR_FAILED, "two ranks share GPU %.64s", id[i]);
    free(all);
    return status;
}

/* A stream for each lane, beside those of computing, sums, the group, and of what travels to the
 * host and back: two in one queue would wait for each other. */
static smp_status check_queues(const smp_transport_options *options)
{
    enum { OTHERS = 5 };
    if (options->n_lane + OTHERS <= smp__cuda_queues())
        return SMP_OK;
    return smp_fail(SMP_ERR_FAILED,
                    "%d lanes of messages and %d streams besides, the GPU has %d queues (%s)",
                    options->n_lane, (int)OTHERS, smp__cuda_queues(), SMP__CUDA_QUEUES);
}

/* What comes from the devices of a group, in pieces of the longest sum. */
static int64_t came_floats(const smp_transport_options *options)
{
    const int64_t least = options->comm->tensor_size * (int64_t)SMP__NCCL_ALIGNED;
    const int64_t most = least > SMP__NCCL_CAME_FLOATS ? least : SMP__NCCL_CAME_FLOATS;
    if (options->comm->tensor_size == 1 || options->group_floats == 0)
        return 0;
    return options->group_floats < most - least ? options->group_floats + least : most;
}

/* Multiprocessors that operations take while they wait for their peers: of the lanes, of sums over
 * replicas and of the group, each of which has one stream. */
static int taken_by(const smp_transport_options *options)
{
    const bool sums = options->comm->ddp_size > 1, group = came_floats(options) > 0;
    return options->n_lane * LANE_CTAS + (sums + group) * REDUCE_CTAS;
}

/* When all are taken, the kernels whose results others wait for have none. */
static smp_status check_multiprocessors(const smp_transport_options *options)
{
    const smp_cuda *cuda = options->device->kernel_context(options->device_context);
    const int taken = taken_by(options);
    if (taken < cuda->multiprocessors || may_share())
        return SMP_OK;
    return smp_fail(SMP_ERR_FAILED,
                    "%d lanes of messages, and sums, can take %d multiprocessors, the GPU has %d",
                    options->n_lane, taken, cuda->multiprocessors);
}

smp_status smp__nccl_suits(const smp_transport_options *options)
{
    SMP_TRY(check_shared(options->comm)); /* all ranks of the machine take part */
    SMP_TRY(check_queues(options));
    SMP_TRY(check_multiprocessors(options));
    return smp__nccl_open();
}

/* What every rank does by itself. */
static smp_status prepare_lane(const smp_lane *from, smp__nccl_lane *l)
{
    l->peer = from->peer;
    l->outgoing = from->outgoing;
    l->n_message = from->messages > 0 ? from->messages : 1;
    l->done = calloc((size_t)l->n_message, sizeof(*l->done));
    if (!l->done)
        return smp_fail_memory((size_t)l->n_message * sizeof(*l->done));
    for (int64_t i = 0; i < l->n_message; i++)
        SMP_TRY(smp__make_event(&l->done[i]));
    if (l->outgoing)
        SMP_TRY(smp__nccl_check(NULL, smp__nccl.ncclGetUniqueId(&l->id), "ncclGetUniqueId"));
    return smp__make_urgent_stream(&l->stream);
}

static MPI_Comm comm_of(const smp__nccl_context *c, int sums)
{
    if (sums == SMP__NCCL_TENSOR)
        return c->came_floats > 0 ? c->comm->tensor : MPI_COMM_NULL;
    return sums == SMP__NCCL_NEAR  ? c->comm->near
           : sums == SMP__NCCL_FAR ? c->comm->far
                                   : smp__transport_reach(c->comm, (smp_reach)sums);
}

static int64_t came_bytes(const smp__nccl_context *c)
{
    return c->came_floats * (int64_t)sizeof(float);
}

/* terms: of the sums; NULL: one of each member. */
static smp_status prepare_sums(smp__nccl_sums *sums, MPI_Comm comm, const smp_sum_terms *terms)
{
    sums->comm = comm;
    sums->members = 1;
    if (comm == MPI_COMM_NULL)
        return SMP_OK;
    MPI_Comm_size(comm, &sums->members);
    MPI_Comm_rank(comm, &sums->own);
    sums->terms = terms ? terms : &sums->single;
    if (!terms)
        SMP_TRY(smp__sum_terms_make(&sums->single, sums->members, sums->members,
                                    (smp_sum_members){.n = sums->members, .each = 1}));
    sums->cut = calloc((size_t)sums->members + 1, sizeof(*sums->cut));
    if (!sums->cut)
        return smp_fail_memory((size_t)sums->members * sizeof(*sums->cut));
    if (sums->own > 0)
        return SMP_OK;
    return smp__nccl_check(NULL, smp__nccl.ncclGetUniqueId(&sums->id), "ncclGetUniqueId");
}

static smp_status reserve(smp__nccl_context *c)
{
    char *parts = NULL, *came = NULL;
    SMP_TRY(c->device->reserve(c->device_context, ((int64_t)c->n_lane + 1) * SCRATCH_BYTES,
                               &c->scratch));
    if (c->comm->ddp_size > 1)
        SMP_TRY(c->device->reserve(c->device_context, PARTS_BYTES, &parts));
    c->parts = (float *)parts;
    if (c->came_floats > 0)
        SMP_TRY(c->device->reserve(c->device_context, came_bytes(c), &came));
    c->came = (float *)came;
    if (c->came_floats > 0)
        SMP_TRY(c->device->reserve_host(c->device_context, SMP_GROUP_READ, &c->read));
    return SMP_OK;
}

/* CUDA loads a kernel when it is first launched, and may wait for all others to end: for a receive
 * whose sender waits for what this rank has yet to do. What sums launch is loaded here, as the
 * kernels of operators are in the warm-up; to load all of the program (CUDA_MODULE_LOADING=EAGER)
 * would take the kernels of libraries too. */
static smp_status load_kernels(smp__nccl_context *c)
{
    float *sum = (float *)c->scratch, *term = sum + 4, *half = sum + 8;
    SMP_TRY(smp__cuda_accumulate(c->compute, SMP_F32, sum, term, 1));
    SMP_TRY(smp__cuda_add_rows(c->compute, sum, term, 1, 1, 1));
    SMP_TRY(smp__cuda_round16(c->compute, SMP_BF16, half, sum, 1));
    return smp__cuda_widen16(c->compute, sum, half, 1);
}

static smp_status prepare(smp__nccl_context *c, const smp_transport_options *options)
{
    SMP_TRY(smp__nccl_open());
    SMP_TRY(smp__make_event(&c->ready));
    SMP_TRY(reserve(c));
    SMP_TRY(load_kernels(c));
    for (int i = 0; i < c->n_lane; i++)
        SMP_TRY(prepare_lane(&options->lane[i], &c->lane[i]));
    c->pool = calloc((size_t)options->reductions + 1, sizeof(*c->pool));
    if (!c->pool)
        return smp_fail_memory((size_t)options->reductions * sizeof(*c->pool));
    c->n_pool = options->reductions;
    for (int i = 0; i < c->n_pool; i++) {
        SMP_TRY(smp__make_event(&c->pool[i].done));
        c->pool[i].next = c->free;
        c->free = &c->pool[i];
    }
    for (int i = 0; i < SMP__NCCL_SUMS; i++)
        SMP_TRY(
            prepare_sums(&c->sums[i], comm_of(c, i), i < SMP_N_REACH ? options->terms[i] : NULL));
    SMP_TRY(smp__make_urgent_stream(&c->reduce));
    SMP_TRY(open_pace(&c->pace));
    SMP_TRY(open_pace(&c->within.pace));
    SMP_TRY(open_pace(&c->beside.pace));
    if (c->came_floats > 0)
        SMP_TRY(smp__make_urgent_stream(&c->beside.stream));
    smp__nccl_group_fill(c);
    return SMP_OK;
}

static void describe_open(const void *context, char *buffer, size_t size)
{
    (void)context;
    snprintf(buffer, size, "the other ranks to open NCCL");
}

static const char exchange_name[] = "exchange of NCCL's ids";

typedef struct id_exchange {
    int n;
    MPI_Request *request;
} id_exchange;

static smp_status test_exchange(void *context, bool *done)
{
    const id_exchange *exchange = context;
    int flag = 0;
    SMP_TRY(smp__comm_check(MPI_Testall(exchange->n, exchange->request, &flag, MPI_STATUSES_IGNORE),
                            exchange_name));
    *done = flag;
    return SMP_OK;
}

/* The senders' ids to the receivers, those of the first members to the others. Both ends of a pair
 * go through their lanes by rising id, so one tag is enough. */
static smp_status exchange_ids(smp__nccl_context *c)
{
    MPI_Request *request = calloc((size_t)c->n_lane + SMP__NCCL_SUMS, sizeof(*request));
    if (!request)
        return smp_fail_memory((size_t)c->n_lane * sizeof(*request));
    id_exchange exchange = {.request = request};
    int code = MPI_SUCCESS;
    for (int i = 0; code == MPI_SUCCESS && i < c->n_lane; i++) {
        smp__nccl_lane *l = &c->lane[i];
        code = l->outgoing ? MPI_Isend(&l->id, sizeof(l->id), MPI_BYTE, l->peer, ID_TAG,
                                       c->comm->messages, &request[exchange.n++])
                           : MPI_Irecv(&l->id, sizeof(l->id), MPI_BYTE, l->peer, ID_TAG,
                                       c->comm->messages, &request[exchange.n++]);
    }
    for (int i = 0; code == MPI_SUCCESS && i < SMP__NCCL_SUMS; i++)
        if (c->sums[i].comm != MPI_COMM_NULL)
            code = MPI_Ibcast(&c->sums[i].id, sizeof(c->sums[i].id), MPI_BYTE, 0, c->sums[i].comm,
                              &request[exchange.n++]);
    SMP_TRY(smp__comm_check(code, exchange_name)); /* from here on MPI may still use the requests */
    SMP_TRY(smp__comm_wait_until(c->comm, &(smp_wait){.patient = true}, test_exchange,
                                 describe_open, &exchange));
    free(request);
    return SMP_OK;
}

static bool goes_on(ncclResult_t code)
{
    return code == ncclSuccess || code == ncclInProgress;
}

static smp_status test_quiet(void *context, bool *done)
{
    return smp__nccl_look(context, done);
}

/* Ends a group, and waits until nothing is in progress any more. All ranks have just agreed to
 * come, and NCCL's threads do the work: so without patience. */
static smp_status end_all(smp__nccl_context *c, ncclResult_t code, const char *call)
{
    const ncclResult_t end = smp__nccl.ncclGroupEnd();
    code = goes_on(code) ? end : code;
    if (code != ncclInProgress)
        SMP_TRY(smp__nccl_check(NULL, code, call));
    return smp__comm_wait_until(c->comm, &(smp_wait){0}, test_quiet, describe_open, c);
}

/* In one group, so that it does not matter in which order ranks wait for each other. */
static smp_status init(smp__nccl_context *c)
{
    ncclConfig_t few = NCCL_CONFIG_INITIALIZER, more = NCCL_CONFIG_INITIALIZER;
    few.blocking = more.blocking = 0;
    few.minCTAs = more.minCTAs = 1;
    few.maxCTAs = LANE_CTAS;
    more.maxCTAs = REDUCE_CTAS;
    ncclResult_t code = smp__nccl.ncclGroupStart();
    for (int i = 0; goes_on(code) && i < c->n_lane; i++) {
        smp__nccl_lane *l = &c->lane[i];
        code = smp__nccl.ncclCommInitRankConfig(&l->nccl, 2, l->id, l->outgoing ? 0 : 1, &few);
    }
    for (int i = 0; goes_on(code) && i < SMP__NCCL_SUMS; i++) {
        smp__nccl_sums *sums = &c->sums[i];
        if (sums->comm != MPI_COMM_NULL)
            code = smp__nccl.ncclCommInitRankConfig(&sums->nccl, sums->members, sums->id, sums->own,
                                                    &more);
    }
    return end_all(c, code, "ncclCommInitRankConfig");
}

/* Are all streams idle? */
static smp_status test_streams(void *context, bool *done)
{
    smp__nccl_context *c = context;
    for (int i = 0; i <= c->n_lane; i++) {
        cudaError_t code = cudaStreamQuery(i < c->n_lane ? c->lane[i].stream : c->reduce);
        if (code == cudaErrorNotReady)
            return smp__nccl_progress(c);
        SMP_TRY(smp__cuda_check(code, "cudaStreamQuery"));
    }
    *done = true;
    return SMP_OK;
}

static smp_status send_first_messages(smp__nccl_context *c)
{
    ncclResult_t code = smp__nccl.ncclGroupStart();
    for (int i = 0; code == ncclSuccess && i < c->n_lane; i++) {
        smp__nccl_lane *l = &c->lane[i];
        char *data = c->scratch + (int64_t)i * SCRATCH_BYTES;
        code = l->outgoing ? smp__nccl_send(data, 1, ncclInt8, 1, l->nccl, l->stream)
                           : smp__nccl_receive(data, 1, ncclInt8, 0, l->nccl, l->stream);
    }
    for (int i = 0; code == ncclSuccess && i < SMP__NCCL_SUMS; i++)
        code = smp__nccl_sum_first(c, &c->sums[i], i == SMP__NCCL_TENSOR ? c->came : c->parts);
    SMP_TRY(end_all(c, code, "first NCCL messages")); /* ranks connect here */
    return smp__comm_wait_until(c->comm, &(smp_wait){0}, test_streams, describe_open, c);
}

/* Who aborts a communicator waits for the device, and that for the messages of the others: in one
 * group all of them give up before any is waited for. */
void smp__nccl_abort(void *context)
{
    smp__nccl_context *c = context;
    if (!smp__nccl.ncclGroupStart)
        return; /* NCCL could not be opened: there is nothing to abort */
    smp__nccl.ncclGroupStart();
    for (int i = 0; i < c->n_lane; i++) { /* unwatched: the job has failed, and all ranks know */
        if (c->lane[i].nccl)
            smp__nccl.ncclCommAbort(c->lane[i].nccl);
        c->lane[i].nccl = NULL;
    }
    for (int i = 0; i < SMP__NCCL_SUMS; i++) {
        if (c->sums[i].nccl)
            smp__nccl.ncclCommAbort(c->sums[i].nccl);
        c->sums[i].nccl = NULL;
    }
    smp__nccl.ncclGroupEnd();
}

static void close_lane(smp__nccl_lane *l)
{
    if (l->stream)
        cudaStreamSynchronize(l->stream); /* unwatched: what the device alone waited for */
    if (l->nccl)
        smp__nccl.ncclCommDestroy(l->nccl);
    for (int64_t i = 0; l->done && i < l->n_message; i++)
        if (l->done[i])
            cudaEventDestroy(l->done[i]);
    if (l->stream)
        cudaStreamDestroy(l->stream);
    free(l->done);
}

static ncclResult_t finalize(ncclComm_t nccl, ncclResult_t before)
{
    return nccl && goes_on(before) ? smp__nccl.ncclCommFinalize(nccl) : before;
}

/* Every message of the job is done, so this waits for nobody's work. What cannot be finished is
 * given up; the last error stays what it was. */
static void finish(smp__nccl_context *c)
{
    char before[1024];
    ncclResult_t code = ncclSuccess;
    for (int i = 0; i < c->n_lane; i++)
        code = finalize(c->lane[i].nccl, code);
    for (int i = 0; i < SMP__NCCL_SUMS; i++)
        code = finalize(c->sums[i].nccl, code);
    snprintf(before, sizeof before, "%s", smp_last_error());
    if (goes_on(code) && smp__comm_wait_until(c->comm, &(smp_wait){.patient = true}, test_quiet,
                                              describe_open, c) == SMP_OK)
        return;
    smp_fail(SMP_ERR_FAILED, "%s", before);
    smp__nccl_abort(c);
}

void smp__nccl_close(void *context)
{
    smp__nccl_context *c = context;
    if (!c)
        return;
    finish(c);
    for (int i = 0; i < c->n_lane; i++)
        close_lane(&c->lane[i]);
    if (c->reduce)
        cudaStreamSynchronize(c->reduce);
    if (c->beside.stream)
        cudaStreamSynchronize(c->beside.stream);
    for (int i = 0; i < SMP__NCCL_SUMS; i++) {
        if (c->sums[i].nccl)
            smp__nccl.ncclCommDestroy(c->sums[i].nccl);
        free(c->sums[i].cut);
        smp__sum_terms_free(&c->sums[i].single);
    }
    for (int i = 0; i < c->n_pool; i++)
        if (c->pool[i].done)
            cudaEventDestroy(c->pool[i].done);
    if (c->reduce)
        cudaStreamDestroy(c->reduce);
    if (c->beside.stream)
        cudaStreamDestroy(c->beside.stream);
    close_pace(&c->pace);
    close_pace(&c->within.pace);
    close_pace(&c->beside.pace);
    if (c->ready)
        cudaEventDestroy(c->ready);
    if (c->scratch)
        c->device->release(c->device_context, c->scratch, ((int64_t)c->n_lane + 1) * SCRATCH_BYTES);
    if (c->parts)
        c->device->release(c->device_context, (char *)c->parts, PARTS_BYTES);
    if (c->read)
        c->device->release_host(c->device_context, c->read);
    if (c->came)
        c->device->release(c->device_context, (char *)c->came, came_bytes(c));
    free(c->pool);
    free(c);
}

/* Tells the others, who may wait in NCCL, at once. */
static smp_status tell_others(smp__nccl_context *c, smp_status status)
{
    if (status != SMP_OK && !c->comm->failed) {
        smp_fail_context(status, "rank %d", c->comm->world_rank);
        status = smp__comm_notify(c->comm, SMP_ERR_PEER);
    }
    return smp__comm_agree(c->comm, status);
}

/* Matrix products are shared out over the multiprocessors that nothing takes which waits: as many on
 * all ranks, by the one where most are taken, at least three quarters. */
static smp_status take_multiprocessors(smp__nccl_context *c, int taken)
{
    smp_cuda *cuda = c->device->kernel_context(c->device_context);
    const int most = cuda->multiprocessors / 4;
    SMP_TRY(smp__comm_max(c->comm, &taken));
    cuda->taken_multiprocessors = taken < most ? taken : most;
    c->beside_device.taken_multiprocessors = cuda->taken_multiprocessors;
    return SMP_OK;
}

smp_status smp__nccl_connect(const smp_transport_options *options, void **context)
{
    size_t bytes = sizeof(smp__nccl_context) + (size_t)options->n_lane * sizeof(smp__nccl_lane);
    smp__nccl_context *c = calloc(1, bytes);
    smp_status status = c ? SMP_OK : smp_fail_memory(bytes);
    if (c) {
        const smp_cuda *cuda = options->device->kernel_context(options->device_context);
        c->comm = options->comm;
        c->device = options->device;
        c->device_context = options->device_context;
        c->compute = c->within.stream = cuda->stream;
        c->beside_device = *cuda;
        c->n_lane = options->n_lane;
        c->came_floats = came_floats(options);
        status = prepare(c, options);
    }
    /* Before each part that waits for other ranks, all of them know that all have got so far. */
    status = smp__comm_agree(options->comm, status);
    if (status == SMP_OK)
        status = take_multiprocessors(c, taken_by(options));
    if (status == SMP_OK)
        status = smp__comm_agree(c->comm, exchange_ids(c));
    if (status == SMP_OK)
        status = tell_others(c, init(c));
    if (status == SMP_OK)
        status = tell_others(c, send_first_messages(c));
    if (status == SMP_OK) {
        *context = c;
    } else if (c) {
        smp__nccl_abort(c);
        smp__nccl_close(c);
    }
    return status;
}
