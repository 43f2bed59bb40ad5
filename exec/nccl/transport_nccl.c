/* NCCL transport: messages and sums move from device to device, ordered by the devices alone.
 *
 * Each lane has a communicator of two ranks, sender 0 and receiver 1, and a stream of high
 * priority. NCCL carries out what one communicator is told in the order in which it is told; as
 * messages of different lanes must not wait for each other, they may not share one. A message: the
 * lane's stream waits for the compute stream, sends or receives, and records an event, for which
 * `test` makes the compute stream wait. Sums and gathers have a communicator for every group of
 * ranks, and one stream of their own. */
#include "exec/nccl/nccl_open.h"
#include "graph/cuda/cuda.h"

static const double LOOK_EVERY_S = 1e-3;

static int64_t nccl_max_tag(void *context)
{
    (void)context;
    return INT64_MAX; /* lanes keep the order */
}

/* The next message of a lane: its stream goes on from where the compute stream is now. */
static smp_status start(smp__nccl_context *c, int index, void *data, int64_t bytes,
                        smp_request *request)
{
    smp__nccl_lane *l = &c->lane[index];
    *request = (smp_request){.active = false};
    if (bytes == 0)
        return SMP_OK; /* neither end waits for it */
    SMP_TRY(SMP_CUDA(cudaEventRecord, c->ready, c->compute));
    SMP_TRY(SMP_CUDA(cudaStreamWaitEvent, l->stream, c->ready, 0));
    ncclResult_t code =
        l->outgoing ? smp__nccl.ncclSend(data, (size_t)bytes, ncclInt8, 1, l->nccl, l->stream)
                    : smp__nccl.ncclRecv(data, (size_t)bytes, ncclInt8, 0, l->nccl, l->stream);
    const char *call = l->outgoing ? "ncclSend" : "ncclRecv";
    SMP_TRY(smp__nccl_blame(l, smp__nccl_check(l->nccl, code, call)));
    cudaEvent_t done = l->done[l->posted++ % l->n_message];
    *request = (smp_request){.handle = done, .active = true};
    return SMP_CUDA(cudaEventRecord, done, l->stream);
}

static smp_status nccl_send(void *context, int lane, int64_t tag, const void *data, int64_t bytes,
                            smp_request *request)
{
    (void)tag;
    return start(context, lane, (void *)data, bytes, request);
}

static smp_status nccl_receive(void *context, int lane, int64_t tag, void *data, int64_t bytes,
                               smp_request *request)
{
    (void)tag;
    return start(context, lane, data, bytes, request);
}

static smp_status nccl_test(void *context, smp_request *request, bool *done)
{
    smp__nccl_context *c = context;
    *done = true;
    if (!request->active)
        return SMP_OK;
    cudaEvent_t event = request->handle;
    *request = (smp_request){.active = false};
    return SMP_CUDA(cudaStreamWaitEvent, c->compute, event, 0);
}

smp_status smp__nccl_progress(void *context)
{
    smp__nccl_context *c = context;
    double now = smp_clock_s();
    if (now - c->looked_s < LOOK_EVERY_S)
        return SMP_OK;
    c->looked_s = now;
    return smp__nccl_look(c);
}

static smp_status nccl_reduce(void *context, const smp_sum *sum, smp_reduction **out)
{
    smp__nccl_context *c = context;
    smp_reduction *reduction = c->free;
    if (!reduction)
        return smp_fail(SMP_ERR_FAILED,
                        "more reductions at once than the transport was opened for");
    c->free = reduction->next;
    *out = reduction;
    SMP_TRY(SMP_CUDA(cudaEventRecord, c->ready, c->compute));
    SMP_TRY(SMP_CUDA(cudaStreamWaitEvent, c->reduce, c->ready, 0));
    SMP_TRY(smp__nccl_sum(c, sum));
    return SMP_CUDA(cudaEventRecord, reduction->done, c->reduce);
}

static smp_status nccl_reduce_test(void *context, smp_reduction **reduction, bool *done)
{
    smp__nccl_context *c = context;
    smp_reduction *finished = *reduction;
    *done = true;
    *reduction = NULL;
    finished->next = c->free;
    c->free = finished;
    return SMP_CUDA(cudaStreamWaitEvent, c->compute, finished->done, 0);
}

static const smp_op_group *nccl_group(void *context)
{
    return &((smp__nccl_context *)context)->within.group;
}

const smp_transport smp__transport_nccl = {
    .name = "nccl",
    .on_device = true,
    .max_message_bytes = INT64_MAX,
    .suits = smp__nccl_suits,
    .open = smp__nccl_connect,
    .close = smp__nccl_close,
    .abort = smp__nccl_abort,
    .max_tag = nccl_max_tag,
    .send = nccl_send,
    .receive = nccl_receive,
    .test = nccl_test,
    .progress = smp__nccl_progress,
    .reduce = nccl_reduce,
    .reduce_test = nccl_reduce_test,
    .group = nccl_group,
};
