/* MPI transport. Messages are non-blocking sends and receives on one communicator, told apart by
 * tags. Sums go in pieces, each as reduce_blocks.h says: what a rank adds up is then still in its
 * cache, and the memory for it small. They run one after the other, in the order in which they were
 * asked for: that of the plan. */
#include <limits.h>
#include <stdlib.h>

#include "exec/transport/reduce_blocks.h"
#include "exec/transport/throttle.h"
#include "exec/transport/two_hops.h"
#include "exec/transport/transport.h"

typedef enum reduction_state {
    QUEUED,
    SCATTERING,
    GATHERING,
    HOPPING, /* in two hops */
    MOVED,
    DONE
} reduction_state;

struct smp_reduction {
    smp_sum sum;
    int64_t done; /* elements of every part, or all it has; in two hops of the whole */
    reduction_state state;
    smp__late_sum late;
    smp_reduction *next;
};

typedef struct mpi_context {
    smp_comm *comm;
    int *peer; /* [n_lane] */
    smp__blocks blocks[SMP_N_REACH];
    smp__two_hops hops; /* where the plan says so */
    smp__throttle throttle;
    smp_reduction *head, *tail; /* not done, in order; only the head is in flight */
    smp_reduction *free;        /* unused ones of the pool */
    smp_reduction pool[];
} mpi_context;

static void mpi_close(void *context)
{
    mpi_context *mpi = context;
    if (mpi) {
        free(mpi->peer);
        smp__throttle_close(&mpi->throttle);
        smp__two_hops_close(&mpi->hops);
        for (int i = 0; i < SMP_N_REACH; i++)
            smp__blocks_close(&mpi->blocks[i]);
    }
    free(mpi);
}

static smp_status mpi_open(const smp_transport_options *options, void **context)
{
    smp_comm *comm = options->comm;
    size_t bytes = sizeof(mpi_context) + (size_t)options->reductions * sizeof(smp_reduction);
    mpi_context *mpi = calloc(1, bytes);
    int *peer = calloc((size_t)options->n_lane + 1, sizeof(*peer));
    if (!mpi || !peer) {
        free(mpi);
        free(peer);
        return smp_fail_memory(bytes);
    }
    mpi->comm = comm;
    mpi->peer = peer;
    for (int i = 0; i < options->n_lane; i++)
        peer[i] = options->lane[i].peer;
    for (int i = 0; i < options->reductions; i++) {
        mpi->pool[i].next = mpi->free;
        mpi->free = &mpi->pool[i];
    }
    const MPI_Comm reach[SMP_N_REACH] = {comm->ddp, comm->shard, comm->across};
    smp_status status = smp__throttle_open(&mpi->throttle);
    for (int i = 0; i < SMP_N_REACH && status == SMP_OK; i++)
        status = smp__blocks_open(&mpi->blocks[i], reach[i], options->terms[i]);
    if (status == SMP_OK)
        status = smp__two_hops_open(&mpi->hops, comm->near, comm->far);
    if (status == SMP_OK)
        *context = mpi;
    else
        mpi_close(mpi);
    return status;
}

static int64_t mpi_max_tag(void *context)
{
    return smp__comm_max_tag(((mpi_context *)context)->comm);
}

static smp_status mpi_send(void *context, int lane, int64_t tag, const void *data, int64_t bytes,
                           smp_request *request)
{
    mpi_context *mpi = context;
    MPI_Request handle;
    if (mpi->throttle.bytes_per_s > 0.0)
        return smp__throttle_send(&mpi->throttle, data, (int)bytes, mpi->peer[lane], (int)tag,
                                  mpi->comm->messages, request);
    SMP_TRY(smp__comm_check(MPI_Isend(data, (int)bytes, MPI_BYTE, mpi->peer[lane], (int)tag,
                                      mpi->comm->messages, &handle),
                            "MPI_Isend"));
    *request = (smp_request){.handle = (void *)handle, .active = true};
    return SMP_OK;
}

static smp_status mpi_receive(void *context, int lane, int64_t tag, void *data, int64_t bytes,
                              smp_request *request)
{
    mpi_context *mpi = context;
    MPI_Request handle;
    SMP_TRY(smp__comm_check(MPI_Irecv(data, (int)bytes, MPI_BYTE, mpi->peer[lane], (int)tag,
                                      mpi->comm->messages, &handle),
                            "MPI_Irecv"));
    *request = (smp_request){.handle = (void *)handle, .active = true};
    return SMP_OK;
}

static smp_status mpi_test(void *context, smp_request *request, bool *done)
{
    SMP_TRY(smp__throttle_progress(&((mpi_context *)context)->throttle));
    *done = !request->active;
    if (*done || !request->handle) /* a throttled send has not begun */
        return SMP_OK;
    MPI_Request handle = (MPI_Request)request->handle;
    int flag = 0;
    SMP_TRY(smp__comm_check(MPI_Test(&handle, &flag, MPI_STATUS_IGNORE), "MPI_Test"));
    if (flag)
        *request = (smp_request){.handle = NULL, .active = false};
    *done = flag;
    return SMP_OK;
}

static int64_t longest_part(const smp_reduction *reduction, int members)
{
    const int64_t *cut = reduction->sum.cut;
    int64_t most = 0;
    for (int i = 0; i < members; i++)
        if (cut[i + 1] - cut[i] > most)
            most = cut[i + 1] - cut[i];
    return most;
}

/* Whole sums over all replicas, sums and gathers of parts in a group. */
static bool takes_two_hops(const mpi_context *mpi, const smp_sum *sum)
{
    const smp__two_hops *h = &mpi->hops;
    const bool whole = sum->add && sum->gather;
    return h->near.members > 1 && sum->reach == (whole ? SMP_REACH_ALL : SMP_REACH_GROUP) &&
           h->near.members * h->far.members == mpi->blocks[sum->reach].members;
}

static smp_status start_hops(mpi_context *mpi, smp_reduction *reduction)
{
    const int64_t *cut = reduction->sum.cut, begin = cut[0] + reduction->done;
    const int64_t left = cut[mpi->comm->ddp_size] - begin;
    const int64_t count = left < SMP__PIECE_FLOATS ? left : SMP__PIECE_FLOATS;
    reduction->done += count;
    reduction->state = HOPPING;
    return smp__two_hops_start(&mpi->hops, reduction->sum.data, begin, count);
}

/* The next piece of a reduction: a block of each part. */
static smp_status start_piece(mpi_context *mpi, smp_reduction *reduction)
{
    const bool hops = takes_two_hops(mpi, &reduction->sum);
    smp__two_hops_bf16(&mpi->hops, reduction->sum.bf16);
    if (hops && reduction->sum.reach == SMP_REACH_ALL)
        return start_hops(mpi, reduction);
    smp__blocks *b = &mpi->blocks[reduction->sum.reach];
    b->bf16 = reduction->sum.bf16;
    b->more = reduction->sum.more;
    b->stride = reduction->sum.stride;
    const int64_t *cut = reduction->sum.cut, most = b->most;
    for (int i = 0; i < b->members; i++) {
        const int64_t left = cut[i + 1] - cut[i] - reduction->done;
        b->block[i].count = left <= 0 ? 0 : (int)(left < most ? left : most);
        b->block[i].offset = left <= 0 ? 0 : cut[i] + reduction->done;
    }
    reduction->done += most;
    if (hops) {
        reduction->state = HOPPING;
        return reduction->sum.add ? smp__two_hops_scatter(&mpi->hops, reduction->sum.data, b->block)
                                  : smp__two_hops_gather(&mpi->hops, reduction->sum.data, b->block);
    }
    reduction->state = reduction->sum.add ? SCATTERING : GATHERING;
    return reduction->sum.add ? smp__blocks_scatter(b, reduction->sum.data)
                              : smp__blocks_gather(b, reduction->sum.data);
}

static smp_status begin(mpi_context *mpi, smp_reduction *reduction)
{
    SMP_TRY(smp__throttle_begin(&mpi->throttle, mpi->blocks[reduction->sum.reach].comm,
                                &reduction->late));
    return start_piece(mpi, reduction);
}

static smp_status start_gather(smp__blocks *b, smp_reduction *reduction)
{
    reduction->state = GATHERING;
    return smp__blocks_gather(b, reduction->sum.data);
}

/* Takes the reduction in flight to its next half or piece, or the next one in the queue into
 * flight. */
static smp_status advance(mpi_context *mpi)
{
    smp_reduction *head = mpi->head;
    if (!head)
        return SMP_OK;
    if (head->state == QUEUED)
        return begin(mpi, head);
    smp__blocks *b = &mpi->blocks[head->sum.reach];
    bool done = head->state == MOVED;
    if (head->state == HOPPING)
        SMP_TRY(smp__two_hops_test(&mpi->hops, head->sum.data, &done));
    else if (!done)
        SMP_TRY(smp__blocks_test(b, &done));
    if (!done)
        return SMP_OK;
    if (head->state == SCATTERING) {
        smp__blocks_fold(b, head->sum.data);
        if (head->sum.gather)
            return start_gather(b, head);
    }
    const int64_t most = longest_part(head, b->members);
    const bool whole = head->state == HOPPING && head->sum.reach == SMP_REACH_ALL;
    const int64_t end = whole ? head->sum.cut[b->members] - head->sum.cut[0] : most;
    if (head->done < end)
        return start_piece(mpi, head);
    head->state = MOVED;
    SMP_TRY(smp__throttle_arrived(&mpi->throttle, &head->late,
                                  head->sum.add * b->terms->width + head->sum.gather,
                                  (head->sum.bf16 ? 2 : 4) * most * (b->members - 1), &done));
    if (!done)
        return SMP_OK;
    head->state = DONE;
    mpi->head = head->next;
    if (!mpi->head)
        mpi->tail = NULL;
    return mpi->head ? begin(mpi, mpi->head) : SMP_OK;
}

static smp_status mpi_progress(void *context)
{
    mpi_context *mpi = context;
    int found = 0; /* a tag never sent: a probe lets MPI move what is in flight */
    SMP_TRY(smp__comm_check(
        MPI_Iprobe(MPI_ANY_SOURCE, 0, mpi->comm->notice, &found, MPI_STATUS_IGNORE), "MPI_Iprobe"));
    SMP_TRY(smp__throttle_progress(&mpi->throttle));
    return advance(mpi);
}

static smp_status mpi_reduce(void *context, const smp_sum *sum, smp_reduction **out)
{
    mpi_context *mpi = context;
    smp_reduction *reduction = mpi->free;
    const int members = mpi->blocks[sum->reach].members;
    if (!reduction)
        return smp_fail(SMP_ERR_FAILED,
                        "more reductions at once than the transport was opened for");
    mpi->free = reduction->next;
    *reduction = (smp_reduction){.sum = *sum};
    smp__throttle_ask(&mpi->throttle, &reduction->late);
    *out = reduction;
    if (members == 1 || sum->cut[members] == sum->cut[0]) { /* nothing to do */
        reduction->state = DONE;
        return SMP_OK;
    }
    if (mpi->tail)
        mpi->tail->next = reduction;
    else
        mpi->head = reduction;
    mpi->tail = reduction;
    return mpi->head == reduction ? begin(mpi, reduction) : SMP_OK;
}

static smp_status mpi_reduce_test(void *context, smp_reduction **reduction, bool *done)
{
    mpi_context *mpi = context;
    SMP_TRY(advance(mpi));
    *done = (*reduction)->state == DONE;
    if (*done) {
        (*reduction)->next = mpi->free;
        mpi->free = *reduction;
        *reduction = NULL;
    }
    return SMP_OK;
}

const smp_transport smp__transport_mpi = {
    .name = "mpi",
    .max_message_bytes = INT_MAX,
    .open = mpi_open,
    .close = mpi_close,
    .max_tag = mpi_max_tag,
    .send = mpi_send,
    .receive = mpi_receive,
    .test = mpi_test,
    .progress = mpi_progress,
    .reduce = mpi_reduce,
    .reduce_test = mpi_reduce_test,
};
