/* Opening and closing the communicators of the NCCL transport.
 *
 * They block: NCCL would start a thread for each group of others. The calls that wait for other
 * ranks (making them, their first messages, their end) are those of a thread, the caller, while the
 * rank's own listens to the other ranks and looks at the clock. So a rank that fails while
 * communicators are made, or hangs in NCCL, does not keep the others there: they abort theirs.
 * While the caller is inside, the rank's own thread makes no call of NCCL but that.
 *
 * Two ranks of a communicator connect when they first exchange something, and that is waited for.
 * In a step it would be in an order that nobody has proved, so every lane carries one message when
 * it is opened, and every pair that adds up one each way, all of them in one group: NCCL then
 * connects them in any order. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "exec/cuda/cuda_event.h"
#include "exec/cuda/cuda_kernels.h"
#include "exec/nccl/nccl_open.h"

enum { SCRATCH_BYTES = 256, ID_TAG = 0 };

/* So long the caller has to return from a call that is aborted: less than SMP_TELLER_S, so that a
 * rank whose caller does not can say so. */
static const double RETURN_S = 1.0;

static const int64_t PARTS_BYTES = SMP__NCCL_PARTS_FLOATS * (int64_t)sizeof(float);

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

/* Earlier sums among the same ranks. All but the group have one stream, and so may share a
 * communicator, which costs memory for every peer. */
static const smp__nccl_sums *find_lender(const smp__nccl_context *c, int sums)
{
    for (int i = 0; i < sums && sums != SMP__NCCL_TENSOR; i++) {
        int same = MPI_UNEQUAL;
        if (!c->sums[i].hops && c->sums[i].comm != MPI_COMM_NULL &&
            c->sums[sums].comm != MPI_COMM_NULL)
            MPI_Comm_compare(c->sums[i].comm, c->sums[sums].comm, &same);
        if (same == MPI_IDENT || same == MPI_CONGRUENT)
            return c->sums[i].lender ? c->sums[i].lender : &c->sums[i];
    }
    return NULL;
}

static bool has_communicator(const smp__nccl_sums *sums)
{
    return sums->members > 1 && !sums->lender && !sums->hops;
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
    const size_t blocks = (size_t)sums->members * (size_t)sums->terms->width;
    sums->cut = calloc((size_t)sums->members + 1, sizeof(*sums->cut));
    sums->converted = calloc(blocks, sizeof(*sums->converted));
    if (!sums->cut || !sums->converted)
        return smp_fail_memory(blocks * sizeof(*sums->converted));
    return SMP_OK;
}

/* Once all of them are prepared. */
static smp_status choose_communicators(smp__nccl_context *c)
{
    const int hops = c->sums[SMP__NCCL_NEAR].members * c->sums[SMP__NCCL_FAR].members;
    for (int i = 0; i < SMP__NCCL_SUMS; i++) {
        smp__nccl_sums *sums = &c->sums[i];
        sums->hops = (i == SMP_REACH_ALL || i == SMP_REACH_GROUP) &&
                     c->sums[SMP__NCCL_NEAR].members > 1 && sums->members == hops;
        sums->lender = sums->hops ? NULL : find_lender(c, i);
        if (has_communicator(sums) && sums->own == 0)
            SMP_TRY(smp__nccl_check(NULL, smp__nccl.ncclGetUniqueId(&sums->id), "ncclGetUniqueId"));
    }
    return SMP_OK;
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
    float *sum = (float *)c->scratch, *half = sum + 8;
    const smp__fold one = {.n = 1, .n_own = 1, .own = sum, .sum = sum};
    SMP_TRY(smp__cuda_fold(c->compute, &one, 1));
    SMP_TRY(smp__cuda_round16(c->compute, SMP_BF16, &(smp__conversion){half, sum, 1}, 1));
    return smp__cuda_widen16(c->compute, &(smp__conversion){sum, half, 1}, 1);
}

static smp_status prepare(smp__nccl_context *c, const smp_transport_options *options)
{
    SMP_TRY(smp__nccl_open());
    SMP_TRY(SMP_CUDA(cudaGetDevice, &c->gpu));
    SMP_TRY(smp__make_event(&c->ready));
    SMP_TRY(reserve(c));
    if (c->parts || c->came)
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
    SMP_TRY(choose_communicators(c));
    SMP_TRY(smp__make_urgent_stream(&c->reduce));
    SMP_TRY(smp__make_urgent_stream(&c->fold));
    for (int i = 0; i < 2; i++)
        SMP_TRY(smp__make_event(&c->arrived[i]));
    SMP_TRY(open_pace(&c->pace));
    SMP_TRY(open_pace(&c->within.pace));
    SMP_TRY(open_pace(&c->beside.pace));
    if (c->came_floats > 0) {
        SMP_TRY(smp__make_urgent_stream(&c->beside.stream));
        SMP_TRY(smp__make_event(&c->has_read));
    }
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
        if (has_communicator(&c->sums[i]))
            code = MPI_Ibcast(&c->sums[i].id, sizeof(c->sums[i].id), MPI_BYTE, 0, c->sums[i].comm,
                              &request[exchange.n++]);
    SMP_TRY(smp__comm_check(code, exchange_name)); /* from here on MPI may still use the requests */
    SMP_TRY(smp__comm_wait_until(c->comm, &(smp_wait){.patient = true}, test_exchange,
                                 describe_open, &exchange));
    free(request);
    return SMP_OK;
}

static ncclResult_t make(smp__nccl_context *c)
{
    ncclConfig_t few = NCCL_CONFIG_INITIALIZER, more = NCCL_CONFIG_INITIALIZER;
    few.blocking = more.blocking = 1;
    few.minCTAs = more.minCTAs = 1;
    few.maxCTAs = SMP__NCCL_LANE_CTAS;
    more.maxCTAs = SMP__NCCL_SUM_CTAS;
    ncclResult_t code = ncclSuccess;
    for (int i = 0; code == ncclSuccess && i < c->n_lane; i++) {
        smp__nccl_lane *l = &c->lane[i];
        code = smp__nccl.ncclCommInitRankConfig(&l->nccl, 2, l->id, l->outgoing ? 0 : 1, &few);
    }
    for (int i = 0; code == ncclSuccess && i < SMP__NCCL_SUMS; i++) {
        smp__nccl_sums *sums = &c->sums[i];
        if (has_communicator(sums))
            code = smp__nccl.ncclCommInitRankConfig(&sums->nccl, sums->members, sums->id, sums->own,
                                                    &more);
    }
    return code;
}

static ncclResult_t send_first_messages(smp__nccl_context *c)
{
    ncclResult_t code = ncclSuccess;
    for (int i = 0; code == ncclSuccess && i < c->n_lane; i++) {
        smp__nccl_lane *l = &c->lane[i];
        char *data = c->scratch + (int64_t)i * SCRATCH_BYTES;
        code = l->outgoing ? smp__nccl.ncclSend(data, 1, ncclInt8, 1, l->nccl, l->stream)
                           : smp__nccl.ncclRecv(data, 1, ncclInt8, 0, l->nccl, l->stream);
    }
    for (int i = 0; code == ncclSuccess && i < SMP__NCCL_SUMS; i++)
        code = smp__nccl_sum_first(c, &c->sums[i], i == SMP__NCCL_TENSOR ? c->came : c->parts);
    return code;
}

static ncclResult_t finalize(smp__nccl_context *c)
{
    ncclResult_t code = ncclSuccess;
    for (int i = 0; code == ncclSuccess && i < c->n_lane; i++)
        code = smp__nccl.ncclCommFinalize(c->lane[i].nccl);
    for (int i = 0; code == ncclSuccess && i < SMP__NCCL_SUMS; i++)
        if (c->sums[i].nccl)
            code = smp__nccl.ncclCommFinalize(c->sums[i].nccl);
    return code;
}

/* In this order. */
enum { MAKE, CONNECT, FINALIZE, CALLS };
static const struct {
    ncclResult_t (*tell)(smp__nccl_context *);
    const char *name;
} calls[CALLS] = {{make, "ncclCommInitRankConfig"},
                  {send_first_messages, "first NCCL messages"},
                  {finalize, "ncclCommFinalize"}};

/* Where the caller is: has yet to tell NCCL all of a group, waits for its end, has returned. */
enum { OUTSIDE, WAITING, TELLING };

/* One group, so that it does not matter in which order ranks wait for each other. */
static smp_status call_nccl(void *of, int64_t number)
{
    smp__nccl_context *c = of;
    smp_status status = SMP_CUDA(cudaSetDevice, c->gpu); /* each thread has its own */
    if (status == SMP_OK) {
        ncclResult_t code = smp__nccl.ncclGroupStart();
        if (code == ncclSuccess)
            code = calls[number].tell(c);
        atomic_store(&c->caller_at, WAITING);
        status = smp__nccl_end(NULL, code, calls[number].name);
    }
    atomic_store(&c->caller_at, OUTSIDE);
    return status;
}

static smp_status test_call(void *context, bool *done)
{
    const smp__nccl_context *c = context;
    return smp__worker_test(c->caller, c->call, done);
}

/* All ranks have just agreed to come: without patience, but at the end. */
static smp_status let_call(smp__nccl_context *c, int call)
{
    c->call = call;
    atomic_store(&c->caller_at, TELLING);
    smp__worker_ask(c->caller, call + 1);
    return smp__comm_wait_until(c->comm, &(smp_wait){.patient = call == FINALIZE}, test_call,
                                describe_open, c);
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

/* Ranks connect at the end of the group of first messages. */
static smp_status connect_ranks(smp__nccl_context *c)
{
    SMP_TRY(let_call(c, CONNECT));
    return smp__comm_wait_until(c->comm, &(smp_wait){0}, test_streams, describe_open, c);
}

/* Is the caller there, or further, within RETURN_S? */
static bool has_come(smp__nccl_context *c, int where)
{
    const double end_s = smp_clock_s() + RETURN_S;
    while (atomic_load(&c->caller_at) > where && smp_clock_s() < end_s)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return atomic_load(&c->caller_at) <= where;
}

/* Who aborts a communicator waits for the device, and that for the messages of the others: in one
 * group all of them give up before any is waited for. To be told of it makes the caller return; the
 * end of the group frees what the caller has used until then. Where it does not return, it is left
 * with all that it uses. */
void smp__nccl_abort(void *context)
{
    smp__nccl_context *c = context;
    if (!smp__nccl.ncclGroupStart)
        return; /* NCCL could not be opened: there is nothing to abort */
    c->connected = false;
    if (!has_come(c, WAITING)) {
        c->left = smp__nccl_left = true;
        return;
    }
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
    if (has_come(c, OUTSIDE))
        smp__nccl.ncclGroupEnd();
    else
        c->left = smp__nccl_left = true;
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

/* Every message of the job is done, so this waits for nobody's work. What cannot be finished is
 * given up; the last error stays what it was. */
static void finish(smp__nccl_context *c)
{
    char before[1024];
    snprintf(before, sizeof before, "%s", smp_last_error());
    if (let_call(c, FINALIZE) == SMP_OK)
        return;
    smp_fail(SMP_ERR_FAILED, "%s", before);
    smp__nccl_abort(c);
}

void smp__nccl_close(void *context)
{
    smp__nccl_context *c = context;
    if (!c)
        return;
    if (c->connected)
        finish(c);
    if (c->left) {
        smp__worker_leave(c->caller);
        return;
    }
    smp__worker_stop(c->caller);
    for (int i = 0; i < c->n_lane; i++)
        close_lane(&c->lane[i]);
    if (c->reduce)
        cudaStreamSynchronize(c->reduce);
    if (c->fold)
        cudaStreamSynchronize(c->fold);
    if (c->beside.stream)
        cudaStreamSynchronize(c->beside.stream);
    for (int i = 0; i < SMP__NCCL_SUMS; i++) {
        if (c->sums[i].nccl)
            smp__nccl.ncclCommDestroy(c->sums[i].nccl);
        free(c->sums[i].cut);
        free(c->sums[i].converted);
        smp__sum_terms_free(&c->sums[i].single);
    }
    for (int i = 0; i < c->n_pool; i++)
        if (c->pool[i].done)
            cudaEventDestroy(c->pool[i].done);
    if (c->reduce)
        cudaStreamDestroy(c->reduce);
    if (c->fold)
        cudaStreamDestroy(c->fold);
    for (int i = 0; i < 2; i++)
        if (c->arrived[i])
            cudaEventDestroy(c->arrived[i]);
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
    if (c->has_read)
        cudaEventDestroy(c->has_read);
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

/* Matrix products are shared out over the multiprocessors that nothing takes which waits: as many
 * on all ranks, by the one where most are taken, at least three quarters. */
static smp_status take_multiprocessors(smp__nccl_context *c, int taken)
{
    smp_cuda *cuda = c->device->kernel_context(c->device_context);
    const int most = cuda->multiprocessors / 4;
    SMP_TRY(smp__comm_max(c->comm, &taken));
    cuda->taken_multiprocessors = taken < most ? taken : most;
    c->beside_device.taken_multiprocessors = cuda->taken_multiprocessors;
    return SMP_OK;
}

/* A caller that does not return is why others were waited for in vain. Who ran out of time first
 * leaves its rank time to say so. */
static smp_status give_up(smp__nccl_context *c, smp_status status)
{
    const bool waited = atomic_load(&c->caller_at) != OUTSIDE;
    smp__nccl_abort(c);
    if (c->left)
        return smp_fail(SMP_ERR_PEER, "rank %d: NCCL does not return from: %s", c->comm->world_rank,
                        calls[c->call].name);
    if (waited && !smp__comm_was_told(status))
        nanosleep(&(struct timespec){.tv_sec = SMP_TELLER_S}, NULL);
    return status;
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
        c->came_floats = smp__nccl_came_floats(options);
        status = prepare(c, options);
        if (status == SMP_OK)
            status = smp__worker_start(call_nccl, c, &c->caller);
    }
    /* Before each part that waits for other ranks, all of them know that all have got so far. */
    status = smp__comm_agree(options->comm, status);
    if (status == SMP_OK)
        status = take_multiprocessors(c, smp__nccl_taken(options));
    if (status == SMP_OK)
        status = smp__comm_agree(c->comm, exchange_ids(c));
    if (status == SMP_OK)
        status = tell_others(c, let_call(c, MAKE));
    if (status == SMP_OK)
        status = tell_others(c, connect_ranks(c));
    if (status == SMP_OK) {
        c->connected = true;
        *context = c;
    } else if (c) {
        status = give_up(c, status);
        smp__nccl_close(c);
    }
    return status;
}
