/* MPI transport. Messages are non-blocking sends and receives on one communicator, told apart by
 * tags. An all-reduce is the two halves of reduce_blocks.h. MPI wants collectives in one order on
 * all ranks, so reductions run one after the other, in the order in which they were asked for: that
 * of the plan. */
#include <limits.h>
#include <stdlib.h>

#include "exec/transport/reduce_blocks.h"
#include "exec/transport/transport.h"

typedef enum reduction_state { QUEUED, SCATTERING, GATHERING, DONE } reduction_state;

struct smp_reduction {
    MPI_Request request;
    float *data;
    int block; /* elements per replica */
    reduction_state state;
    smp_reduction *next;
};

typedef struct mpi_context {
    smp_comm *comm;
    int *peer;                  /* [n_lane] */
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
    if (mpi)
        free(mpi->peer);
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

static smp_status start_scatter(smp_comm *comm, smp_reduction *reduction)
{
    reduction->state = SCATTERING;
    return smp__blocks_scatter(comm->ddp, reduction->data, reduction->block, &reduction->request);
}

static smp_status start_gather(smp_comm *comm, smp_reduction *reduction)
{
    reduction->state = GATHERING;
    return smp__blocks_gather(comm->ddp, comm->replica, reduction->data, reduction->block,
                              &reduction->request);
}

/* Takes the reduction in flight to its next half, or the next one in the queue into flight. */
static smp_status advance(mpi_context *mpi)
{
    smp_reduction *head = mpi->head;
    if (!head)
        return SMP_OK;
    if (head->state == QUEUED)
        return start_scatter(mpi->comm, head);
    int flag = 0;
    SMP_TRY(smp__comm_check(MPI_Test(&head->request, &flag, MPI_STATUS_IGNORE), "MPI_Test"));
    if (!flag)
        return SMP_OK;
    if (head->state == SCATTERING)
        return start_gather(mpi->comm, head);
    head->state = DONE;
    mpi->head = head->next;
    if (!mpi->head)
        mpi->tail = NULL;
    return mpi->head ? start_scatter(mpi->comm, mpi->head) : SMP_OK;
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
    *reduction = (smp_reduction){.data = data, .block = (int)(count / mpi->comm->ddp_size)};
    if (mpi->tail)
        mpi->tail->next = reduction;
    else
        mpi->head = reduction;
    mpi->tail = reduction;
    *out = reduction;
    return mpi->head == reduction ? start_scatter(mpi->comm, reduction) : SMP_OK;
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
    .max_reduce_elements = INT_MAX,
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
