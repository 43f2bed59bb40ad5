/* MPI transport. Messages are non-blocking sends and receives on one communicator, told apart by
 * tags. An all-reduce goes in pieces, each as reduce_blocks.h says: what a rank adds up is then
 * still in its cache, and the memory for it small. MPI wants collectives in one order on all ranks,
 * so reductions run one after the other, in the order in which they were asked for: that of the
 * plan. */
#include <limits.h>
#include <stdlib.h>

#include "exec/transport/reduce_blocks.h"
#include "exec/transport/transport.h"

enum { PIECE_ELEMENTS = 1 << 20 };

typedef enum reduction_state { QUEUED, SCATTERING, GATHERING, DONE } reduction_state;

struct smp_reduction {
    MPI_Request request;
    float *data;  /* of the piece under way */
    int64_t left; /* elements from there on */
    int block;    /* of the piece, per replica */
    reduction_state state;
    smp_reduction *next;
};

typedef struct mpi_context {
    smp_comm *comm;
    int *peer;                  /* [n_lane] */
    float *parts;               /* [PIECE_ELEMENTS]; NULL with one replica */
    smp_reduction *head, *tail; /* not done, in order; only the head is in flight */
    smp_reduction *free;        /* unused ones of the pool */
    smp_reduction pool[];
} mpi_context;

static smp_status mpi_suits(smp_comm *comm, const smp_device *device, void *device_context)
{
    (void)comm;
    (void)device_context;
    if (device->host_memory)
        return SMP_OK;
    return smp_fail(SMP_ERR_FAILED, "device '%s' has its own memory", device->name);
}

static void mpi_close(void *context)
{
    mpi_context *mpi = context;
    if (mpi) {
        free(mpi->peer);
        free(mpi->parts);
    }
    free(mpi);
}

static smp_status mpi_open(const smp_transport_options *options, void **context)
{
    smp_comm *comm = options->comm;
    size_t bytes = sizeof(mpi_context) + (size_t)options->reductions * sizeof(smp_reduction);
    mpi_context *mpi = calloc(1, bytes);
    int *peer = calloc((size_t)options->n_lane + 1, sizeof(*peer));
    const size_t parts_bytes = PIECE_ELEMENTS * sizeof(float);
    float *parts = comm->ddp_size > 1 ? aligned_alloc(64, parts_bytes) : NULL;
    if (!mpi || !peer || (comm->ddp_size > 1 && !parts)) {
        free(mpi);
        free(peer);
        free(parts);
        return smp_fail_memory(bytes + parts_bytes);
    }
    mpi->comm = comm;
    mpi->parts = parts;
    mpi->peer = peer;
    for (int i = 0; i < options->n_lane; i++)
        peer[i] = options->lane[i].peer;
    for (int i = 0; i < options->reductions; i++) {
        mpi->pool[i].next = mpi->free;
        mpi->free = &mpi->pool[i];
    }
    *context = mpi;
    return SMP_OK;
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
    SMP_TRY(smp__comm_check(MPI_Isend(data, (int)bytes, MPI_BYTE, mpi->peer[lane], (int)tag,
                                      mpi->comm->pipeline, &handle),
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
                                      mpi->comm->pipeline, &handle),
                            "MPI_Irecv"));
    *request = (smp_request){.handle = (void *)handle, .active = true};
    return SMP_OK;
}

static smp_status mpi_test(void *context, smp_request *request, bool *done)
{
    (void)context;
    if (!request->active) {
        *done = true;
        return SMP_OK;
    }
    MPI_Request handle = (MPI_Request)request->handle;
    int flag = 0;
    SMP_TRY(smp__comm_check(MPI_Test(&handle, &flag, MPI_STATUS_IGNORE), "MPI_Test"));
    if (flag)
        *request = (smp_request){.handle = NULL, .active = false};
    *done = flag;
    return SMP_OK;
}

/* The next piece of a reduction. */
static smp_status start_scatter(mpi_context *mpi, smp_reduction *reduction)
{
    const int replicas = mpi->comm->ddp_size, most = PIECE_ELEMENTS / replicas;
    reduction->state = SCATTERING;
    reduction->block = reduction->left / replicas < most ? (int)(reduction->left / replicas) : most;
    return smp__blocks_scatter(mpi->comm->ddp, reduction->data, mpi->parts, reduction->block,
                               &reduction->request);
}

static smp_status start_gather(mpi_context *mpi, smp_reduction *reduction)
{
    const smp_comm *comm = mpi->comm;
    reduction->state = GATHERING;
    smp__blocks_fold(comm->ddp_size, comm->replica, mpi->parts, reduction->data, reduction->block);
    return smp__blocks_gather(comm->ddp, reduction->data, reduction->block, &reduction->request);
}

/* Takes the reduction in flight to its next half or piece, or the next one in the queue into
 * flight. */
static smp_status advance(mpi_context *mpi)
{
    smp_reduction *head = mpi->head;
    if (!head)
        return SMP_OK;
    if (head->state == QUEUED)
        return start_scatter(mpi, head);
    int flag = 0;
    SMP_TRY(smp__comm_check(MPI_Test(&head->request, &flag, MPI_STATUS_IGNORE), "MPI_Test"));
    if (!flag)
        return SMP_OK;
    if (head->state == SCATTERING)
        return start_gather(mpi, head);
    const int64_t elements = (int64_t)head->block * mpi->comm->ddp_size;
    head->data += elements;
    head->left -= elements;
    if (head->left > 0)
        return start_scatter(mpi, head);
    head->state = DONE;
    mpi->head = head->next;
    if (!mpi->head)
        mpi->tail = NULL;
    return mpi->head ? start_scatter(mpi, mpi->head) : SMP_OK;
}

static smp_status mpi_progress(void *context)
{
    mpi_context *mpi = context;
    int found = 0; /* a tag never sent: a probe lets MPI move what is in flight */
    SMP_TRY(smp__comm_check(
        MPI_Iprobe(MPI_ANY_SOURCE, 0, mpi->comm->notice, &found, MPI_STATUS_IGNORE), "MPI_Iprobe"));
    return advance(mpi);
}

static smp_status mpi_reduce(void *context, float *data, int64_t count, smp_reduction **out)
{
    mpi_context *mpi = context;
    smp_reduction *reduction = mpi->free;
    if (!reduction)
        return smp_fail(SMP_ERR_FAILED,
                        "more reductions at once than the transport was opened for");
    mpi->free = reduction->next;
    *reduction = (smp_reduction){.data = data, .left = count};
    *out = reduction;
    if (mpi->comm->ddp_size == 1 || count == 0) { /* nothing to add */
        reduction->state = DONE;
        return SMP_OK;
    }
    if (mpi->tail)
        mpi->tail->next = reduction;
    else
        mpi->head = reduction;
    mpi->tail = reduction;
    return mpi->head == reduction ? start_scatter(mpi, reduction) : SMP_OK;
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
    .suits = mpi_suits,
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
